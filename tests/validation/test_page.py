"""The page and the README's section say what the report says, byte for byte the same each time."""

import re

import pytest

from lablib.validation.cross_validate import HeldOut
from lablib.validation.page import Results, markdown, sentence, short_sentences, with_section
from lablib.validation.score import ScoreReport
from lablib.validation.tables import TARGETS, time_lines


def test_the_page_has_a_line_for_every_group_and_names_the_worst_row(made_up):
    page = markdown(Results(made_up), "validation.svg")
    for name, figures in made_up.groups().items():
        assert re.search(rf"^\| {name} \| {figures['rows']} \| {figures['mape']:.1f}% \|", page, re.MULTILINE), name
    worst = made_up.worst(1)[0]
    assert f"| {worst.row.id} | " in page and f"{worst.error:+.1f}%" in page
    assert "![Predicted against published step time, one point per row.](validation.svg)" in page


def test_the_same_report_gives_the_same_page(made_up):
    assert markdown(Results(made_up), "a.svg") == markdown(Results(made_up), "a.svg")


def test_every_source_is_cited_with_its_address(made_up):
    page = markdown(Results(made_up), "a.svg")
    for one in made_up.scored:
        assert one.row.source["url"].split("#")[0] in page, one.row.id


def test_a_target_that_is_missed_is_said_with_by_how_much(made_up):
    page, groups = markdown(Results(made_up), "a.svg"), made_up.groups()
    missed = {name for name in TARGETS if groups[name]["mape"] > TARGETS[name]}
    times, memory = page.split("## Memory")
    assert set(re.findall(r"^- `([\w-]+)` by \d", times, re.MULTILINE)) == missed and missed
    families = made_up.memory()["families"]
    assert families["bloom"]["mape"] > 5 and f"- `bloom` by {families['bloom']['mape'] - 5:.1f} points" in memory
    name = sorted(missed)[0]
    assert f"- `{name}` by {groups[name]['mape'] - TARGETS[name]:.1f} points" in page


def test_every_target_is_of_a_group_that_there_is(made_up):
    assert set(TARGETS) <= set(made_up.groups())
    assert {line[0]: line[-1] for line in time_lines(made_up)}["bloom"] == "9.0%"


def test_rows_that_were_left_out_are_on_the_page(line, fixed):
    from lablib.validation.rows import parse_rows
    from lablib.validation.score import score

    report = score(parse_rows([line(), line({"id": "mine-b", "parallel.dp": 4})]), lambda **_: fixed())
    assert "| mine-b | 2 | dp x tp x pp x cp must be the number of GPUs: got 16 and 8 |" in markdown(
        Results(report), "a.svg"
    )


def test_errors_held_out_stand_beside_those_that_were_fitted(made_up):
    page = markdown(Results(made_up, [HeldOut("bloom", 38, 9.5, 8.25, 9.75, {})]), "a.svg")
    assert "| bloom | 38 | 9.5% | 8.2% | 9.8% |" in page
    assert "Leave one source out" not in markdown(Results(made_up), "a.svg")


def test_the_sentence_has_the_error_and_the_naive_one(made_up):
    figures = made_up.all()
    assert f"off by {figures['mape']:.1f}% in the mean" in sentence(made_up)
    assert f"off by {figures['naive_mape']:.1f}%." in sentence(made_up)
    short = short_sentences(Results(made_up))
    assert f"off by {figures['mape']:.1f}% in the mean (naive, FLOPs at half of the peak: " in short
    assert f" {figures['naive_mape']:.1f}%)." in short
    assert sentence(ScoreReport(())) == "No row was scored." == short_sentences(Results(ScoreReport(())))


def test_the_readme_changes_between_its_marks_only(made_up):
    readme = "# A\n\n<!-- validation -->\nold\n<!-- /validation -->\n\nlast\n"
    new = with_section(readme, Results(made_up), "docs/validation.svg", "docs/validation.md")
    assert new.startswith("# A\n\n<!-- validation -->\n![Predicted") and new.endswith("<!-- /validation -->\n\nlast\n")
    assert "old" not in new and short_sentences(Results(made_up)) in new and "(docs/validation.svg)" in new
    assert with_section(new, Results(made_up), "docs/validation.svg", "docs/validation.md") == new


def test_a_readme_without_marks_is_not_touched(made_up):
    with pytest.raises(ValueError, match="it has no marks <!-- validation -->"):
        with_section("# A\n", Results(made_up), "a.svg", "a.md")
