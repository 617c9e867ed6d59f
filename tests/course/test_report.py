"""Progress as JSON and as a page, and a class of learners in one table."""

import csv
import io
import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.cli.main import main
from lablib.course import checks_for
from lablib.course.class_page import class_html
from lablib.course.progress import Entry, Labs
from lablib.course.report import as_html, as_json, class_csv, class_json, class_text, read_learners

EXERCISES = [("08", "ring"), ("08", "tree"), ("09", "buckets")]
STATES = ["passed", "failed", "not attempted", "=1+1", "<i>passed"]
ENTRIES = st.builds(
    Entry,
    attempts=st.integers(0, 99),
    hints=st.integers(0, 3),
    status=st.sampled_from(STATES),
    passed_at=st.sampled_from(["", "", "2025-03-01T10:15:00+01:00"]),
)
LABS = st.dictionaries(
    st.sampled_from(["08", "09", "17"]), st.dictionaries(st.sampled_from(["ring", "tree", "buckets", "gone"]), ENTRIES)
)
NAMES = st.one_of(
    st.sampled_from(["ada", "=1+1", "<b>bob", "Ül ü", 'quo"te', "com,ma", "a&b"]),
    st.text(
        st.characters(codec="utf-8", exclude_characters="/\\:\0", exclude_categories=["Cc", "Cs"]),
        min_size=1,
        max_size=9,
    ),
).filter(lambda name: name.strip(". ") == name and name != "progress")
NO_PROGRESS = ["", "{", "[]", "null", "3", '{"version": 2}', '{"version": 1}', '{"version": 1, "labs": [1]}']
NO_PROGRESS += [
    '{"version": 1, "labs": {"08": {"ring": 3}}}',
    '{"version": 1, "labs": {"08": {"ring": {"hints": "a"}}}}',
]


class Cells(HTMLParser):
    """The rows of a page's table, the tags it uses, and what it would load."""

    def __init__(self, page: str):
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self.loads: list[str] = []
        self._inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag == "tr":
            self.rows.append([])
        self._inside = tag in ("td", "th")
        if self._inside:
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.rows[-1][-1] += data


def is_passed(labs: Labs, number: str, name: str) -> bool:
    entry = labs.get(number, {}).get(name, Entry())
    return bool(entry.passed_at) or entry.status == "passed"


@given(LABS)
def test_what_a_learner_hands_in_says_what_the_progress_file_says(tmp_path_factory: pytest.TempPathFactory, labs: Labs):
    path = tmp_path_factory.mktemp("in") / "ada.json"
    path.write_text(as_json(EXERCISES, labs))
    learners, left_out = read_learners([path])
    assert left_out == []
    for one in EXERCISES:
        assert is_passed(learners["ada"], *one) == is_passed(labs, *one)
    assert json.loads(path.read_text())["passed"] == sum(is_passed(labs, *one) for one in EXERCISES)


@given(st.dictionaries(NAMES, st.one_of(LABS, st.sampled_from(NO_PROGRESS)), max_size=6))
def test_each_learner_is_in_the_table_once_and_what_is_no_progress_is_named(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, Labs | str]
):
    folder = tmp_path_factory.mktemp("class")
    paths = []
    for name, labs in files.items():
        paths.append(folder / f"{name}.json")
        paths[-1].write_text(labs if isinstance(labs, str) else as_json([*EXERCISES, ("17", "gone")], labs), "utf-8")
    learners, left_out = read_learners(paths)
    good = {name: labs for name, labs in files.items() if not isinstance(labs, str)}
    assert list(learners) == sorted(good) and read_learners(paths[::-1]) == (learners, left_out[::-1])
    assert all(any(str(path) in line for line in left_out) for path in paths if path.stem not in good)
    assert len(left_out) == len(files) - len(good) and all(path.exists() for path in paths)  # nothing is put aside

    heading, *rows = csv.reader(io.StringIO(class_csv(EXERCISES, learners)))
    assert heading == ["learner", "passed", "08 ring", "08 tree", "09 buckets"]
    assert [row[0].removeprefix("'") for row in rows] == [name.removeprefix("'") for name in sorted(good)]
    for row, name in zip(rows, sorted(good), strict=True):
        assert row[0][:1] not in tuple("=+-@")
        assert [cell == "passed" for cell in row[2:]] == [is_passed(good[name], *one) for one in EXERCISES]
        assert int(row[1]) == row[2:].count("passed")
        assert set(row[2:]) <= {"passed", "failed", "not attempted"}
    page = Cells(class_html(EXERCISES, learners))
    assert sorted(cells[0] for cells in page.rows[1:]) == sorted(good) and page.rows[0][-2:] == ["08", "09"]
    by_lab = {
        name: (row[2:4].count("passed"), row[4:].count("passed")) for name, row in zip(sorted(good), rows, strict=True)
    }
    for name, *_, passed, in_08, in_09 in page.rows[1:]:
        assert (in_08.replace("-", "0"), in_09.replace("-", "0")) == tuple(map(str, by_lab[name]))
        assert int(passed) == sum(by_lab[name])
    merged = json.loads(class_json(EXERCISES, learners))["learners"]
    assert {name: one["passed"] for name, one in merged.items()} == {
        row_name: int(row[1]) for row_name, row in zip(sorted(good), rows, strict=True)
    }
    assert len(class_text(EXERCISES, learners).splitlines()) == 1 + len(good)


def test_a_page_needs_no_other_file_and_can_be_read_without_sight():
    labs = {"08": {"ring": Entry(3, 1, "passed", "2025-03-01T10:15:00+01:00"), "tree": Entry(1, 0, "failed")}}
    text = as_html(EXERCISES, labs)
    page = Cells(text)
    assert page.rows[1:] == [
        ["08 ring", "passed", "2025-03-01", "3", "1"],
        ["08 tree", "failed", "", "1", "0"],
        ["09 buckets", "not attempted", "", "0", "0"],
    ]
    assert page.loads == [] and {"caption", "title", "h1", "main"} <= page.tags and "script" not in page.tags
    assert '<html lang="en">' in text and text.count('scope="row"') == 3 and text.count('scope="col"') == 5
    assert "1 of 3 exercises are passed" in text


def test_files_of_one_name_are_called_as_their_folders(tmp_path: Path):
    for learner in ("ada", "bob"):
        (tmp_path / learner).mkdir()
        (tmp_path / learner / "progress.json").write_text(as_json(EXERCISES, {}))
    (tmp_path / "ada.json").write_text(as_json(EXERCISES, {}))
    paths = [tmp_path / "ada" / "progress.json", tmp_path / "bob" / "progress.json", tmp_path / "ada.json"]
    learners, left_out = read_learners(paths)
    assert list(learners) == ["ada", "bob"] and "another file of ada" in left_out[0] and len(left_out) == 1


def test_the_commands(labs: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    checks_for("90").size(40)
    assert main(["progress", "--json"]) == 0
    handed_in = tmp_path / "ada.json"
    handed_in.write_text(capsys.readouterr().out)
    assert main(["progress", "--html"]) == 0
    assert Cells(capsys.readouterr().out).rows[2][:2] == ["90 size", "passed"]
    assert main(["progress", "--merge", str(handed_in)]) == 0
    assert capsys.readouterr().out.split() == ["learner", "90", "passed", "ada", "1/2", "1/2"]
    (tmp_path / "bob.json").write_text("oops")
    for form in ("--csv", "--html", "--json"):
        assert main(["progress", form, "--merge", str(handed_in), str(tmp_path / "bob.json"), "nowhere.json"]) == 1
        said = capsys.readouterr()
        assert "ada" in said.out and "bob" not in said.out
        lines = said.err.splitlines()
        assert len(lines) == 2 and "bob.json is left out: " in lines[0] and "No such file" in lines[1]
    assert main(["progress", "--csv"]) == 2
