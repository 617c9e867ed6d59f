"""Prerequisites and minutes that a lab states, held against its text."""

import re
from functools import cache
from pathlib import Path

import pytest

from lablib.course.building.master import Cell, Master, read_master
from lablib.course.places import find_labs

ROOT = Path(__file__).parents[2]
NUMBERS = [lab.number for lab in find_labs(ROOT / "labs")]
# A term, and the lab that introduces it.
TERMS = {
    r"MFU|FLOPs?": "01",
    "loss scale|BF16": "02",
    "[Rr]ecomput": "03",
    "[Mm]icro-batch": "04",
    "FlashAttention": "06",
    "[Aa]ll-reduce": "08",
    "[Rr]educe-scatter|[Aa]ll-gather": "08",
    "[Bb]uckets?": "09",
    "ZeRO|[Rr]eplica": "10",
    "[Tt]ensor (parallel|rank)": "12",
    "1F1B|[Bb]ubble": "13",
}
WORDS_PER_MINUTE, LINES_PER_MINUTE, MINUTES_PER_EXERCISE = 200, 10, 3


@cache
def master_of(number: str) -> Master:
    return next(read_master(lab) for lab in find_labs(ROOT / "labs") if lab.number == number)


def before(number: str) -> set[str]:
    """The labs that a learner of this lab has done: those it needs, and those that they need."""
    stated = master_of(number).prerequisites
    assert stated is not None
    return set(stated.needed).union(*(before(needed) for needed in stated.needed))


def named_before(number: str) -> set[str]:
    stated = master_of(number).prerequisites
    return before(number) | set(stated.helpful if stated else ())


def texts(number: str) -> str:
    return "\n\n".join(cell.source for cell in master_of(number).cells if cell.kind == "markdown")


def mentions(cell: Cell) -> set[str]:
    found = re.findall(r"\b[Ll]abs? (\d\d(?:(?:, | and |, and | to )\d\d)*)", cell.source)
    return {number for group in found for number in re.findall(r"\d\d", group)}


@pytest.mark.parametrize("number", NUMBERS)
def test_prerequisites_are_earlier_labs_that_exist(number: str):
    stated = master_of(number).prerequisites
    assert stated is not None
    listed = [*stated.needed, *stated.helpful]
    assert set(listed) <= set(NUMBERS) and len(set(listed)) == len(listed)
    assert all(each < number for each in listed)  # so no lab needs itself, by whatever way
    assert not set(stated.helpful) & before(number)  # a lab that is needed anyway is not "helpful"


@pytest.mark.parametrize("number", NUMBERS)
def test_an_earlier_lab_that_the_text_mentions_is_a_prerequisite_or_helpful(number: str):
    mentioned = set().union(*(mentions(cell) for cell in master_of(number).cells))
    assert {each for each in mentioned if each < number} <= named_before(number)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_term_of_an_earlier_lab_is_defined_again_or_that_lab_is_named(number: str):
    text = texts(number)
    missing = {
        term: lab
        for term, lab in TERMS.items()
        if lab < number and lab not in named_before(number) and re.search(rf"\b({term})", text)
        if not re.search(rf"\*[^*\n]*({term})[^*\n]*\*", text)  # in italics where it is defined
    }
    assert missing == {}


@pytest.mark.parametrize("number", NUMBERS)
def test_a_lab_states_its_minutes_and_they_leave_time_to_read_and_to_solve(number: str):
    master = master_of(number)
    assert float(master.stated_minutes) == master.minutes <= 60
    cells = [cell for section in master.sections if not section.is_further for cell in section.cells]
    cells = [cell for cell in cells if not cell.tagged("instructor")]
    words = sum(len(cell.source.split()) for cell in cells if cell.kind == "markdown")
    lines = sum(len(cell.source.splitlines()) for cell in cells if cell.kind == "code" and not cell.tagged("exercise"))
    exercises = sum(cell.tagged("exercise") for cell in cells)
    reading = words / WORDS_PER_MINUTE + lines / LINES_PER_MINUTE
    assert reading + MINUTES_PER_EXERCISE * exercises <= master.minutes
