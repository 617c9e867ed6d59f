"""The leader board, and the worked examples."""

from dataclasses import replace
from pathlib import Path

import pytest

from lablib.capstone import Report, findings, machine_points, read_board, read_report, rubric, write_report
from tests.capstone.finished import BRIEF_TOML

EXAMPLES = Path(__file__).parents[2] / "examples" / "capstone"
GOOD = ("night_on_64_gpus", "thirteen_billion_without_nvlink")


def folder_of(reports: dict[str, Report], folder: Path) -> Path:
    briefs = folder / "briefs"
    briefs.mkdir()
    (briefs / "tiny.toml").write_text(BRIEF_TOML)
    for name, each in reports.items():
        write_report(replace(each, brief_name="briefs/tiny.toml", author=name), folder / f"{name}.toml")
    return folder


def test_reports_are_in_order_of_the_measure_and_others_have_a_reason(report: Report, tmp_path: Path):
    over = replace(report, large=replace(report.large, num_steps=999))
    reports = {"Ada": report, "Bob": over, "Eve": replace(report, lock=None)}
    folder_of(reports, tmp_path)
    (tmp_path / "Dan.toml").write_text("title = 3")
    board = read_board(tmp_path)
    assert [each.author or each.file for each in board.entries] == ["Ada", "Dan.toml", "Eve", "Bob"]
    reasons = {each.file: each.reason for each in board.entries}
    assert reasons["Ada.toml"] == "" and "cannot be read" in reasons["Dan.toml"]
    assert "as they were locked" in reasons["Bob.toml"] and "must be locked" in reasons["Eve.toml"]
    assert [row[0] for row in board.rows()] == ["1", "-", "-", "-"]
    best = board.best_predictor()
    assert best is not None and best.author == "Ada"


def test_a_folder_without_reports_is_an_error(tmp_path: Path):
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(ValueError, match="a leader board needs a folder with reports"):
            read_board(folder)


@pytest.mark.parametrize("name", GOOD)
def test_a_good_example_has_no_findings(name: str):
    report = read_report(EXAMPLES / f"{name}.toml")
    found = findings(report)
    assert [str(each) for each in found] == []
    points, most = machine_points(rubric(report, found))
    assert points >= 0.85 * most


def test_the_weak_example_is_found_out():
    report = read_report(EXAMPLES / "a_first_try.toml")
    found = findings(report)
    texts = " ".join(map(str, found))
    assert "run it again" not in texts  # its mistakes are the author's
    assert "GPU hours: got 2," in texts and "must end in 0.5 days" in texts and "scaling law must be at most" in texts
    points, most = machine_points(rubric(report, found))
    assert points < most / 3


def test_the_board_of_the_examples_has_the_weak_one_last():
    board = read_board(EXAMPLES, simulate=False)
    assert [each.counts for each in board.entries] == [True, True, False]
    assert board.entries[-1].file == "a_first_try.toml"


def test_examples_choose_differently_and_one_runs_its_authors_code():
    reports = [read_report(path) for path in sorted(EXAMPLES.glob("*.toml"))]
    assert len(reports) == 3
    assert len({(each.brief.name, each.large.parallel) for each in reports}) == 3
    assert any(each.small_run and each.small_run.own_code for each in reports)
