"""Tracks: those of the course keep the rules, and each broken rule is named."""

from pathlib import Path

import pytest

from lablib.cli.main import main
from lablib.course.building.master import Master, read_master
from lablib.course.errors import CourseError, CourseFailure
from lablib.course.places import find_labs
from lablib.course.tracks import find_track, read_tracks

ROOT = Path(__file__).parents[2]
EXAMPLE = """
[short]
title = "Short"
audience = "somebody"
hours = 0.25
steps = ["90", {lab = "90", sections = ["Exercise 2: a size"]}, {page = "labs/tracks.toml", minutes = 4}]
"""


@pytest.fixture
def masters(labs: Path) -> dict[str, Master]:
    """The example lab, without prerequisites."""
    (lab,) = find_labs(labs)
    lab.master.write_text(lab.master.read_text().replace("Lab 08; helpful: labs 02 and 03", "None"))
    (labs / "tracks.toml").write_text(EXAMPLE)
    return {"90": read_master(lab)}


@pytest.fixture(scope="module")
def course() -> dict[str, Master]:
    return {lab.number: read_master(lab) for lab in find_labs(ROOT / "labs")}


def test_the_tracks_of_the_course_take_4_8_and_20_hours_and_hold_only_labs_that_exist(course: dict[str, Master]):
    tracks = read_tracks(ROOT / "labs", course)  # raises if a rule is broken
    hours = {name: track.hours for name, track in tracks.items()}
    assert hours == {"afternoon": 4, "performance": 8, "researcher": 20, "instructor": 8}
    for track in tracks.values():
        whole = [step.lab for step in track.steps if step.lab and not step.sections]
        assert len(set(whole)) == len(whole) and whole[0] == "00"
        by_hand = sum(
            section.minutes
            for step in track.steps
            if step.lab
            for section in course[step.lab].sections
            if (section.title in step.sections if step.sections else not section.is_further)
        )
        assert track.minutes == by_hand + sum(step.minutes for step in track.steps if step.page)
        assert 60 * track.hours - 30 < track.minutes <= 60 * track.hours
    assert {step.lab for step in tracks["researcher"].steps} == set(course)


def test_a_track_is_printed_with_the_time_at_which_each_step_ends(
    labs: Path, masters: dict[str, Master], capsys: pytest.CaptureFixture
):
    assert main(["list", "--track"]) == 0
    assert capsys.readouterr().out.split("\n")[1].split() == ["short", "0.25", "1", "somebody"]
    assert main(["list", "--track", "short"]) == 0
    said = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert said == [
        "Short: 0.25 hours (15 minutes), for somebody.",
        "",
        "step minutes until done question or sections",
        "90 An example 7.5 0:08 0/2 What does a master look like?",
        "90 An example 3.5 0:11 Exercise 2: a size",
        "labs/tracks.toml 4 0:15",
    ]
    assert main(["list", "--track", "shrot"]) == 2
    assert "unknown track 'shrot': did you mean 'short'?" in capsys.readouterr().err
    assert main(["list", "90", "--track", "short"]) == 2


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('["90",', '["91",', "each lab must exist: got '91'; there are 90."),
        ("Exercise 2: a size", "A letter", "each section must exist: lab 90 has no 'A letter'"),
        ("labs/tracks.toml", "nowhere.md", "each page must exist: got nowhere.md"),
        ("hours = 0.25", "hours = 0.2", "minutes must add up to the hours: got 15 for 0.2 hours; remove a step."),
        ("hours = 0.25", "hours = 1", "minutes must add up to the hours: got 15 for 1 hours; add a step."),
        ("hours = 0.25\n", "", "track 'short' must have audience, hours, steps, title: got title, audience, steps"),
        ("minutes = 4", "time = 4", "a track has title, audience, hours and steps"),
        ('title = "Short"', "title = ", "cannot read"),
        ("[short]", "short = 3", "a track has title, audience, hours and steps"),
    ],
)
def test_a_broken_rule_is_named(labs: Path, masters: dict[str, Master], old: str, new: str, message: str):
    assert old in EXAMPLE
    text = EXAMPLE.replace(old, new) if new != "short = 3" else "short = 3"
    (labs / "tracks.toml").write_text(text)
    with pytest.raises(CourseFailure) as raised:
        read_tracks(labs, masters)
    assert message in str(raised.value) and str(labs / "tracks.toml") in str(raised.value)


def test_a_lab_comes_after_those_that_it_needs(course: dict[str, Master], tmp_path: Path):
    text = 'title = "T"\naudience = "a"\nhours = 2\nsteps = ["09", "08"]\n'
    (tmp_path / "tracks.toml").write_text(f"[t]\n{text}")
    with pytest.raises(CourseFailure, match=r"09 needs 08; add them before it"):
        read_tracks(tmp_path, course)


def test_a_folder_without_tracks_and_an_unknown_track_are_one_sentence(labs: Path, masters: dict[str, Master]):
    with pytest.raises(CourseError, match="unknown track 'x'"):
        find_track(read_tracks(labs, masters), "x")
    (labs / "tracks.toml").unlink()
    with pytest.raises(CourseFailure, match="there are no tracks here: expected"):
        read_tracks(labs, masters)


def test_a_track_is_the_same_where_only_notebooks_are(labs: Path, masters: dict[str, Master]):
    from lablib.course.building.master import of_notebook
    from lablib.course.building.notebook import Version, make_notebook

    master = masters["90"]
    handed_out = of_notebook(master.lab, make_notebook(master, Version.LEARNER))
    assert read_tracks(labs, {"90": handed_out}) == read_tracks(labs, masters)
    assert handed_out.prerequisites == master.prerequisites
