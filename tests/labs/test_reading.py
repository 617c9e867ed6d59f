"""Bounds on the reading in a lab: lines of code on the main path, and cells in a row without typing."""

import ast
from itertools import groupby
from pathlib import Path

import pytest

from lablib.course.building.master import Cell, Master, read_master
from lablib.course.places import find_labs

LABS = {lab.number: lab for lab in find_labs(Path(__file__).parents[2] / "labs")}
MOST_LINES, MOST_CELLS = 120, 8
# Labs above a mark, with their counts on the day of this test: lower them with the lab, and never raise them.
LINES = {"00": 194, "03": 201, "09": 121, "15": 183}
CELLS = {"13": 9, "18": 9}


def main_path(master: Master) -> list[Cell]:
    """A learner's cells, without folded sections."""
    folded = {cell for section in master.sections if section.is_further for cell in section.cells}
    return [cell for cell in master.cells if cell not in folded and not cell.tagged("instructor")]


def lines_to_read(master: Master) -> int:
    """Lines of code, without blank ones, exercises, their checks and the parameters."""
    cells = [cell for cell in main_path(master) if cell.kind == "code"]
    read = [cell for cell in cells if not any(map(cell.tagged, ("exercise", "check", "parameters")))]
    return sum(bool(line.strip()) for cell in read for line in cell.source.splitlines())


def is_typed_in(cell: Cell) -> bool:
    """An exercise, or a field of a guess."""
    nodes = ast.walk(ast.parse(cell.source)) if cell.kind == "code" else ()
    calls = [ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)]
    return cell.tagged("exercise") or any(call.split(".")[-1] == "guess" for call in calls)


def longest_run(master: Master) -> int:
    """The most cells in a row in which nothing is typed."""
    runs = groupby(main_path(master), key=is_typed_in)
    return max(len(list(cells)) for is_typed, cells in runs if not is_typed)


@pytest.mark.parametrize("number", LABS)
def test_a_lab_has_120_lines_of_code_to_read_at_most(number: str):
    assert lines_to_read(read_master(LABS[number])) <= LINES.get(number, MOST_LINES)


@pytest.mark.parametrize("number", LABS)
def test_a_learner_types_in_one_of_nine_cells(number: str):
    assert longest_run(read_master(LABS[number])) <= CELLS.get(number, MOST_CELLS)
