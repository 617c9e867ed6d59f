"""The first code cell of a lab: one import and a static picture of its question; then the parameters."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

from lablib.course.building.master import read_master
from lablib.course.places import find_labs

ROOT = Path(__file__).parents[2]
NUMBERS = [lab.number for lab in find_labs(ROOT / "labs")]


@pytest.mark.parametrize("number", NUMBERS)
def test_a_lab_begins_with_one_import_and_a_picture_of_its_question(number: str):
    master = next(read_master(lab) for lab in find_labs(ROOT / "labs") if lab.number == number)
    first, second, *_ = [cell for cell in master.cells if cell.kind == "code"]
    statements = ast.parse(first.source).body
    assert [ast.unparse(each) for each in statements if isinstance(each, ast.Import | ast.ImportFrom)] == [
        f"from lablib.labs import lab{number}"
    ]
    assert ast.unparse(statements[-1]) == f"lab{number}.show(lab{number}.figure_question())"
    assert len(first.source.splitlines()) <= 4 and second.tagged("parameters")
    figure = import_module(f"lablib.labs.lab{number}").figure_question()
    assert figure.data and not any(trace.name is None for trace in figure.data)
