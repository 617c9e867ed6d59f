"""Tracks through the labs: an order of labs, sections and pages for one audience, within stated hours.

    [afternoon]                                   labs/tracks.toml
    title = "A first afternoon"
    audience = "anyone new to distributed training"
    hours = 4
    steps = ["00", "01", { lab = "08", sections = ["Further: topology"] }, { page = "docs/teaching.md", minutes = 60 }]

A string is a lab without its folded sections. Three rules hold for each track:

 1  its labs, sections and pages exist
 2  the labs that a lab needs come before it
 3  minutes add up to the hours, or to less than half an hour below them
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lablib.course.building.master import Master
from lablib.course.errors import CourseError, CourseFailure
from lablib.errors import unknown_name
from lablib.text.files import parse_toml, read_text

SLACK_MINUTES = 30


@dataclass(frozen=True, slots=True)
class Step:
    """A lab or a page. Attributes: `sections` of the lab; empty: all that are not folded."""

    lab: str = ""
    sections: Sequence[str] = ()
    page: str = ""
    minutes: float = 0.0


@dataclass(frozen=True, slots=True)
class Track:
    name: str
    title: str
    audience: str
    hours: float
    steps: tuple[Step, ...]

    @property
    def minutes(self) -> float:
        return sum(step.minutes for step in self.steps)


def read_tracks(folder: Path, masters: Mapping[str, Master]) -> dict[str, Track]:
    """The tracks of a labs folder, by name; `masters` are its labs, by number.

    Raises CourseFailure: no file, a file that is not TOML or has other fields, or a track that breaks a rule.
    """
    path = folder / "tracks.toml"
    try:
        tables = parse_toml(read_text(path))
        tracks = {name: _track(name, table, masters) for name, table in tables.items()}
    except FileNotFoundError:
        raise CourseFailure(f"there are no tracks here: expected {path}; restore it from git.") from None
    except (OSError, ValueError) as error:
        raise CourseFailure(f"cannot read {path}: {error}; correct it.") from None
    except (TypeError, KeyError, AttributeError) as error:
        message = f"a track has title, audience, hours and steps: {path}: {type(error).__name__}: {error}; correct it."
        raise CourseFailure(message) from None
    for track in tracks.values():
        for finding in _findings(track, masters, folder.parent):
            raise CourseFailure(f"{path}: track {track.name!r}: {finding}")
    return tracks


def find_track(tracks: Mapping[str, Track], name: str) -> Track:
    """A track by its name. Raises CourseError: an unknown name; the message has the nearest."""
    if name not in tracks:
        raise CourseError(str(unknown_name("track", name, list(tracks))))
    return tracks[name]


def _track(name: str, table: Mapping[str, Any], masters: Mapping[str, Master]) -> Track:
    fields = {"title", "audience", "hours", "steps"}
    if table.keys() != fields:
        raise ValueError(f"track {name!r} must have {', '.join(sorted(fields))}: got {', '.join(table) or 'none'}")
    steps = [Step(lab=step) if isinstance(step, str) else Step(**step) for step in table["steps"]]
    for number, step in enumerate(steps):
        if not step.page and (master := masters.get(step.lab)):  # _findings names an unknown lab
            chosen = [section.minutes for section in master.sections if section.title in step.sections]
            steps[number] = replace(step, minutes=sum(chosen) if step.sections else master.minutes)
    return Track(name, str(table["title"]), str(table["audience"]), float(table["hours"]), tuple(steps))


def _findings(track: Track, masters: Mapping[str, Master], root: Path) -> Iterator[str]:
    before: set[str] = set()
    for step in track.steps:
        if step.page:
            if not (root / step.page).is_file():
                yield f"each page must exist: got {step.page}; correct its path."
            continue
        if step.lab not in masters:
            yield f"each lab must exist: got {step.lab!r}; there are {', '.join(masters)}."
            continue
        titles = [section.title for section in masters[step.lab].sections]
        for title in step.sections:
            if title not in titles:
                yield f"each section must exist: lab {step.lab} has no {title!r}; `lab list {step.lab}` lists them."
        stated = masters[step.lab].prerequisites
        missing = [number for number in (stated.needed if stated else ()) if number not in before]
        if missing:
            yield f"a lab comes after those that it needs: {step.lab} needs {', '.join(missing)}; add them before it."
        before.add(step.lab)
    short = track.hours * 60 - track.minutes
    if not 0 <= short < SLACK_MINUTES:
        yield (
            f"minutes must add up to the hours: got {track.minutes:g} for {track.hours:g} hours; "
            f"{'remove' if short < 0 else 'add'} a step."
        )
