"""`lab list` and `lab progress`: the labs, tracks through them, and the learner's progress."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from lablib.course.building.master import Master, Prerequisites, of_notebook, read_master
from lablib.course.building.notebook import read_notebook
from lablib.course.errors import CourseError, CourseFailure
from lablib.course.places import Lab, find_lab, some_labs
from lablib.course.progress import Entry, Labs, entry_of, progress_path, read_progress, reset_progress
from lablib.course.table import table
from lablib.course.tracks import find_track, read_tracks
from lablib.course.work import state_of
from lablib.text.units import plural


def list_labs(folder: Path) -> str:
    """One line per lab: number, title, labs it needs, exercises done, state of the learner's copy, question."""
    progress, rows = own_progress(), []
    for lab in some_labs(folder):
        about = _about(lab)
        before = about.prerequisites or Prerequisites()
        rows.append(
            [lab.number, about.title or lab.name[3:], _minutes(about.minutes), " ".join(before.needed)]
            + [_done(progress, about), state_of(lab).value, about.question]
        )
    return table(["lab", "title", "minutes", "needs", "done", "work/", "question"], rows)


def list_tracks(folder: Path) -> str:
    """One line per track. Raises CourseFailure: as `read_tracks`."""
    tracks = read_tracks(folder, _by_number(folder)).values()
    rows = [[t.name, f"{t.hours:g}", str(len({step.lab for step in t.steps} - {""})), t.audience] for t in tracks]
    return table(["track", "hours", "labs", "for"], rows)


def list_track(folder: Path, name: str) -> str:
    """One line per step of a track: minutes, time when it ends, exercises done. Raises CourseError: no such track."""
    masters, progress = _by_number(folder), own_progress()
    track, until, rows = find_track(read_tracks(folder, masters), name), 0.0, []
    for step in track.steps:
        until += step.minutes
        about = masters.get(step.lab)
        title = f"{step.lab} {about.title}" if about else step.page
        done = _done(progress, about) if about and not step.sections else ""
        content = "; ".join(step.sections) or (about.question if about else "")
        rows.append([title, _minutes(step.minutes), f"{until // 60:.0f}:{until % 60:02.0f}", done, content])
    heading = f"{track.title}: {track.hours:g} hours ({track.minutes:g} minutes), for {track.audience}."
    return f"{heading}\n\n{table(['step', 'minutes', 'until', 'done', 'question or sections'], rows)}"


def list_sections(lab: Lab) -> str:
    """Prerequisites; one line per section: its minutes, its number of exercises, and whether it is optional."""
    about = _about(lab)
    counts = [sum(cell.tagged("exercise") for cell in section.cells) for section in about.sections]
    rows = [
        [section.title, _minutes(section.minutes), str(count or ""), "may be skipped" if section.is_further else ""]
        for section, count in zip(about.sections, counts, strict=True)
    ]
    needed = sum(count for section, count in zip(about.sections, counts, strict=True) if not section.is_further)
    rows.append(["together", _minutes(about.minutes), str(needed), "without what may be skipped"])
    before = about.prerequisites or Prerequisites()
    words = [f"needs lab {number}" for number in before.needed] + [f"lab {number} helps" for number in before.helpful]
    return f"{', '.join(words) or 'needs no other lab'}\n\n{table(['section', 'minutes', 'exercises', ''], rows)}"


def _minutes(minutes: float) -> str:
    return f"{minutes:g}" if minutes else ""


def _done(progress: Labs, about: Master) -> str:
    """ "2/5": exercises passed, of all."""
    names = [check.check_name or "" for _, check in about.exercises]
    return f"{sum(bool(entry_of(progress, about.lab.number, name).passed_at) for name in names)}/{len(names)}"


def show_progress(folder: Path) -> str:
    """One line per exercise: whether and when it was passed, attempts, hints taken."""
    progress, rows = own_progress(), []
    for lab in some_labs(folder):
        for _, name in exercises_of_labs([lab]):
            entry = entry_of(progress, lab.number, name)
            state = "passed" if entry.passed_at else entry.status
            rows.append([lab.name, name, state, _date(entry), str(entry.attempts), str(entry.hints)])
    passed = sum(row[2] == "passed" for row in rows)
    heading = ["lab", "exercise", "state", "passed on", "attempts", "hints"]
    return (
        f"{table(heading, rows)}\n{passed} of {plural(len(rows), 'exercises')} passed; kept in "
        f"{progress_path() or 'no file'}"
    )


def reset(folder: Path, text: str) -> str:
    """Delete the progress of one lab. Raises CourseError: no such lab, or the progress file cannot be changed."""
    lab, path = find_lab(text, folder), progress_path()
    try:
        forgotten = reset_progress(path, lab.number) if path else 0
    except (OSError, TimeoutError) as error:
        raise CourseFailure(f"cannot change {path}: {error}; check that folder.") from None
    return f"{lab.name}: forgot {plural(forgotten, 'exercises')}"


def _by_number(folder: Path) -> dict[str, Master]:
    return {lab.number: _about(lab) for lab in some_labs(folder)}


def exercises_of_labs(labs: Sequence[Lab]) -> list[tuple[str, str]]:
    """Number of the lab and name, for each exercise, in order."""
    return [(lab.number, check.check_name or "") for lab in labs for _, check in _about(lab).exercises]


def own_progress() -> Labs:
    path = progress_path()
    try:
        return read_progress(path) if path else {}
    except OSError as error:
        raise CourseFailure(f"cannot read {path}: {error.strerror}; check that folder.") from None


def _about(lab: Lab) -> Master:
    """A lab's master, or its notebook if the master is missing or broken."""
    try:
        return read_master(lab)
    except CourseError:
        try:
            return of_notebook(lab, read_notebook(lab.notebook))
        except Exception:  # no notebook either, or a broken one: the list must not fail
            return Master(lab, ())


def _date(entry: Entry) -> str:
    """The day of the first success, in the local time zone."""
    try:
        return f"{datetime.fromisoformat(entry.passed_at):%Y-%m-%d}"
    except ValueError:
        return "-"
