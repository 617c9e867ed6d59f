"""Rules of all masters: a picture in the first cell, checks that load, limits of code to read and of cells in a row."""

import ast
import inspect
import re
import runpy
from importlib import import_module
from itertools import groupby

import pytest
import torch.nn.functional as F

from lablib.course.building.master import Cell, Master, read_master
from lablib.course.places import Lab

MOST_LINES, MOST_CELLS = 120, 8


def test_a_lab_begins_with_one_import_and_a_picture_of_its_question(lab: Lab):
    first, second, *_ = [cell for cell in read_master(lab).cells if cell.kind == "code"]
    statements, name = ast.parse(first.source).body, f"lab{lab.number}"
    assert [ast.unparse(each) for each in statements if isinstance(each, ast.Import | ast.ImportFrom)] == [
        f"from lablib.labs import {name}"
    ]
    assert ast.unparse(statements[-1]) == f"{name}.show({name}.figure_question())"
    assert len(first.source.splitlines()) <= 4 and second.tagged("parameters")
    figure = import_module(f"lablib.labs.{name}").figure_question()
    assert figure.data and not any(trace.name is None for trace in figure.data)


def test_a_lab_module_imports_only_what_it_or_its_notebook_uses(lab: Lab):
    name = f"lab{lab.number}"
    nodes = list(ast.walk(ast.parse(inspect.getsource(import_module(f"lablib.labs.{name}")))))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module != "__future__"]
    imported = {alias.asname or alias.name for node in imports for alias in node.names}
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    notebook = lab.master.read_text()
    imported_there = ", ".join(re.findall(rf"^from lablib\.labs\.{name} import (.+)", notebook, re.MULTILINE))
    assert imported - used <= {*re.findall(rf"\b{name}\.(\w+)", notebook), *imported_there.split(", ")}


def test_the_checks_load_with_torch_2_11_and_2_12(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(F, "linear_cross_entropy", raising=False)
    assert runpy.run_path(str(lab.folder / "checks.py"))


def main_path(master: Master) -> list[Cell]:
    """A learner's cells, without folded sections."""
    folded = {cell for section in master.sections if section.is_further for cell in section.cells}
    return [cell for cell in master.cells if cell not in folded and not cell.tagged("instructor")]


def is_typed_in(cell: Cell) -> bool:
    """An exercise, or a field of a guess."""
    nodes = ast.walk(ast.parse(cell.source)) if cell.kind == "code" else ()
    calls = [ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)]
    return cell.tagged("exercise") or any(call.split(".")[-1] == "guess" for call in calls)


def test_a_lab_has_120_lines_of_code_to_read_at_most(lab: Lab):
    """Without blank lines, exercises, their checks and the parameters."""
    cells = [cell for cell in main_path(read_master(lab)) if cell.kind == "code"]
    read = [cell for cell in cells if not any(map(cell.tagged, ("exercise", "check", "parameters")))]
    count = sum(bool(line.strip()) for cell in read for line in cell.source.splitlines())
    assert count <= MOST_LINES


def test_a_learner_types_in_one_of_nine_cells(lab: Lab):
    runs = [len(list(cells)) for typed, cells in groupby(main_path(read_master(lab)), key=is_typed_in) if not typed]
    assert max(runs) <= MOST_CELLS
