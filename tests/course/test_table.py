"""Tables of the command line: on a terminal that is too narrow for them, no line is folded and nothing is lost."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib.cli.main import main
from lablib.course.table import table

words = st.text("abc ", max_size=12)
sentences = st.lists(words, max_size=12).map(" ".join)  # longer than a narrow terminal is wide: they are wrapped


@settings(max_examples=100)
@given(st.lists(st.tuples(words, words, words | sentences), min_size=1, max_size=4), st.integers(24, 90))
def test_no_line_is_longer_than_the_terminal_and_no_word_is_lost(rows, width):
    text = table(["lab", "exercise", "state"], rows, width)
    assert max(map(len, text.splitlines()), default=0) <= width
    assert sorted(set(" ".join(map(" ".join, rows)).split())) == sorted(
        set(text.split()) - {"lab", "exercise", "state"}
    )


@given(st.lists(sentences, min_size=1, max_size=4), st.integers(30, 60))
def test_the_last_column_is_wrapped_beside_the_others_where_it_has_room(cells, width):
    lines = table(["lab", "state"], [("08", cell) for cell in cells], width).splitlines()
    assert sum(line.startswith("08") for line in lines) == len(cells)  # an empty cell is a row, too
    assert all(line.startswith(("08", "lab  state")) or not line[:5].strip() for line in lines)


def test_without_a_terminal_a_row_is_a_line():
    rows = [["x" * 100, "y" * 100], ["", "z"]]
    assert len(table(["a", "b"], rows).splitlines()) == 3


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
@pytest.mark.parametrize("command", ["progress", "list"])
def test_a_narrow_terminal_folds_no_line(command: str, columns: int, labs: Path, capsys, monkeypatch):
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *_, **__: os.terminal_size((columns, 24)))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main([command]) == 0
    lines = capsys.readouterr().out.splitlines()
    tabled = [line for line in lines if "passed; kept in" not in line]  # which ends in a path of any length
    assert max(map(len, tabled)) <= columns
    assert any("mean" in line for line in lines) if command == "progress" else any("90" in line for line in lines)


@pytest.mark.parametrize(("width", "is_whole"), [(8, True), (7, False)])
def test_a_table_as_wide_as_the_terminal_keeps_its_rows(width: int, is_whole: bool):
    text = table(["a", "b"], [["123", "456"]], width)
    assert (text == "a    b\n123  456") is is_whole
