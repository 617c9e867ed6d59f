"""Pages and workflows: each command of `lab` parses, each target of make exists; commands that only read are run."""

import re
import shlex
from pathlib import Path

import pytest

from lablib.cli.main import COMMANDS, main
from lablib.course.building.master import read_master
from lablib.course.overview import exercises_of_labs
from lablib.course.places import find_labs
from lablib.course.report import as_json
from lablib.course.tracks import read_tracks
from tests.course.made_up_class import made_up_class

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / "team_leads.md", ROOT / "docs" / "teaching.md"]
PATTERNS = ("README*.md", "CONTRIBUTING.md", "docs/*.md", "*/README.md", "*/*/README.md", ".github/workflows/*.yml")
TEXTS = [path for pattern in PATTERNS for path in sorted(ROOT.glob(pattern))]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
LABS = find_labs(ROOT / "labs")
READS = re.compile(r"lab (list|progress --merge)\b")


def commands(page: Path, program: str = "lab") -> list[str]:
    """Commands of a program: in blocks (up to the comment), code in a line, indented lines and steps of a workflow."""
    text = page.read_text("utf-8").replace("\\\n", "")
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    lines += re.findall(r"^ +(?:- )?(?:run: )?(?:for .*; do )?(.*?)(?: \|\| .*)?$", text, re.MULTILINE)
    inline = re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    found = [re.sub(r"\s+", " ", one.split("#")[0]).strip() for one in [*lines, *inline]]
    found = [re.sub(r"^([A-Z_]+=\S+ )*(\S+/bin/)?", "", one) for one in found]
    return list(dict.fromkeys(one for one in found if re.match(rf"{program} [a-z]", one)))


def words_of(command: str) -> tuple[list[str], str]:
    """The words after `lab`, and the file after `>`; or ""."""
    words, _, target = command.partition(" > ")
    return shlex.split(words)[1:], target


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_command_of_a_page_parses(page: Path, monkeypatch: pytest.MonkeyPatch):
    for name in COMMANDS:
        monkeypatch.setitem(COMMANDS, name, lambda options: 0)  # read the arguments, and do nothing
    for command in commands(page):
        words = words_of(command)[0]
        if len(words) == 1 or re.search(r"\.\.\.| N\b|--page$", command):  # a name, or a form of the command
            assert words[0] in COMMANDS
        else:
            assert main(words) == 0, command
    assert {one.split()[1] for one in commands(page, "make")} <= TARGETS


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_a_readme_counts_the_exercises(name: str):
    assert f" {len(exercises_of_labs(LABS))} " in (ROOT / name).read_text("utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_that_read_run_as_they_stand_on_the_page(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    learners = made_up_class(exercises := exercises_of_labs(LABS))
    for name, labs in learners.items():
        for path in (tmp_path / "handed-in" / f"{name}.json", tmp_path / "onboarding" / name / "progress.json"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(as_json(exercises, labs))
    monkeypatch.setenv("LAB_LABS", str(ROOT / "labs"))
    monkeypatch.setenv("LAB_PROGRESS", "off")
    reading = [one for one in commands(page) if READS.match(one)]
    assert len(reading) >= 5
    for one in reading:
        words, target = words_of(one.replace("/srv/", ""))
        files = [[str(path) for path in tmp_path.glob(word)] if "*" in word else [word] for word in words]
        assert main([word for expanded in files for word in expanded]) == 0
        said = capsys.readouterr()
        assert said.out and not said.err
        (tmp_path / (target or "terminal")).write_text(said.out)
    assert "zoe" in (tmp_path / "class.html").read_text() and "30 learners" in (tmp_path / "class.html").read_text()


def test_the_days_of_a_first_week_are_the_labs_of_the_track_in_its_order():
    text = PAGES[0].read_text("utf-8")
    days = re.findall(r"^\| (\d) \| ((?:\d\d(?:, )?)+) \|", text, re.MULTILINE)
    assert [day for day, _ in days] == ["1", "2", "3", "4"]
    masters = {lab.number: read_master(lab) for lab in LABS}
    track = read_tracks(ROOT / "labs", masters)["performance"]
    assert [number for _, labs in days for number in labs.split(", ")] == [step.lab for step in track.steps]
    assert max(sum(masters[number].minutes for number in labs.split(", ")) for _, labs in days) <= 120


def test_the_rules_of_the_page_are_those_of_the_class_page():
    from lablib.course.class_page import QUIET, STUCK_ATTEMPTS

    text = PAGES[0].read_text("utf-8")
    assert f"| stuck | {STUCK_ATTEMPTS} or more attempts" in text
    assert f"| quiet | no attempt and no hint for {QUIET.days} days" in text
