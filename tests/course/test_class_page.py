"""The class page: states by their rules, and those who need help first."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.course.class_page import Standing, class_html, standing_of, standings
from lablib.course.progress import Entry, Labs
from tests.course.made_up_class import NAMES, NOW, made_up_class

EXERCISES = [("08", "ring"), ("08", "tree"), ("09", "buckets")]


def ago(**time: float) -> str:
    return (NOW - timedelta(**time)).isoformat()


def standing(entries: dict[str, Entry]) -> Standing:
    labs: Labs = {}
    for number, name in EXERCISES:
        if name in entries:
            labs.setdefault(number, {})[name] = entries[name]
    return standing_of("ada", EXERCISES, labs, NOW)


PASSED = Entry(1, 0, "passed", ago(days=2), ago(days=2))
TREE = Entry(3, 1, "failed", "", ago(days=1))


@pytest.mark.parametrize(
    ("entries", "state", "exercise"),
    [
        ({}, "quiet", ""),
        ({"ring": PASSED}, "working", "08 ring"),
        ({"ring": PASSED, "tree": TREE}, "stuck", "08 tree"),
        ({"ring": PASSED, "tree": replace(TREE, attempts=2)}, "working", "08 tree"),
        (
            {"tree": replace(TREE, last_at=ago(days=9)), "ring": replace(PASSED, last_at=ago(hours=1))},
            "working",
            "08 ring",
        ),
        ({"tree": replace(TREE, last_at=ago(days=9))}, "stuck", "08 tree"),
        ({"tree": replace(TREE, attempts=1, last_at=ago(days=8))}, "quiet", "08 tree"),
        ({"tree": Entry(0, 2, "not attempted", "", ago(hours=1)), "ring": PASSED}, "working", "08 tree"),
        ({"ring": PASSED, "tree": PASSED, "buckets": PASSED}, "done", "09 buckets"),
        # From an earlier version, without times of attempts: the failed exercise is the last one.
        ({"ring": Entry(1, 0, "passed", ago(hours=1)), "tree": Entry(4, 0, "failed")}, "stuck", "08 tree"),
        ({"ring": PASSED, "tree": Entry(4, 0, "failed")}, "working", "08 ring"),  # from both versions
        # Passed once, failed later: it counts as passed.
        ({"ring": Entry(9, 0, "failed", ago(days=3), ago(hours=1))}, "working", "08 ring"),
    ],
)
def test_a_state_follows_its_rule(entries: dict[str, Entry], state: str, exercise: str):
    found = standing(entries)
    if entries and state == "done":
        assert found.exercise in {f"{number} {name}" for number, name in EXERCISES}  # all at the same time
    else:
        assert found.exercise == exercise
    assert found.state == state


def test_the_stuck_come_first_and_among_them_those_with_most_attempts_and_hints():
    learners: dict[str, Labs] = {
        "works": {"08": {"ring": PASSED, "tree": replace(PASSED, passed_at="", status="failed")}},
        "stuck": {"08": {"tree": TREE}},
        "more": {"08": {"tree": replace(TREE, hints=2)}},
        "new": {},
        "away": {"08": {"ring": replace(PASSED, passed_at=ago(days=30), last_at=ago(days=30))}},
    }
    assert [row.learner for row in standings(EXERCISES, learners, NOW)] == ["more", "stuck", "new", "away", "works"]


TIMES = st.sampled_from(
    ["", ago(days=3), ago(days=400), "2026-03-04", "9999-12-31T23:59:59-12:00", "0001-01-01", "<b>", "x"]
)
ENTRIES = st.builds(
    Entry, st.integers(0, 9), st.integers(0, 3), st.sampled_from(["passed", "failed", "<i>"]), TIMES, TIMES
)


@given(
    st.dictionaries(st.sampled_from(["08", "09", "17"]), st.dictionaries(st.sampled_from(["ring", "tree"]), ENTRIES))
)
def test_any_content_of_a_file_has_a_row(labs: Labs):
    row = standing_of("ada", EXERCISES, labs, NOW)
    assert row.state in ("stuck", "quiet", "working", "done") and 0 <= row.passed <= 3
    page = class_html(EXERCISES, {"<b>ada": labs}, NOW)
    assert "<b>" not in page and "<i>" not in page and "&lt;b&gt;ada" in page
    assert "<script" not in page and "src=" not in page and "href=" not in page


def test_a_made_up_class_has_a_row_for_each_learner_in_order_of_need():
    exercises = [(f"{lab:02}", f"e{number}") for lab in range(17) for number in range(5)]
    learners = made_up_class(exercises)
    rows = standings(exercises, learners, NOW)
    assert len(rows) == 30 and {row.learner for row in rows} == set(NAMES)
    states = [row.state for row in rows]
    assert states == sorted(states, key=["stuck", "quiet", "working", "done"].index) and len(set(states)) == 4
    stuck = [row.attempts + row.hints for row in rows if row.state == "stuck"]
    assert stuck == sorted(stuck, reverse=True) and min(stuck) >= 3
    page = class_html(exercises, learners, NOW)
    assert f"{states.count('stuck')} stuck" in page and page.count('scope="row"') == 30
