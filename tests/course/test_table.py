"""Tables of the command line: on a terminal that is too narrow for them, no line is folded and nothing is lost."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib.cli import main
from lablib.course.table import table

words = st.text("abc ", max_size=12)


@settings(max_examples=60)
@given(st.lists(st.lists(words, min_size=3, max_size=3), min_size=1, max_size=4), st.integers(24, 90))
def test_no_line_is_longer_than_the_terminal_and_no_word_is_lost(rows, width):
    text = table(["lab", "exercise", "state"], rows, width)
    assert max(map(len, text.splitlines()), default=0) <= width
    assert sorted(set(" ".join(map(" ".join, rows)).split())) == sorted(
        set(text.split()) - {"lab", "exercise", "state"}
    )


def test_without_a_terminal_a_row_is_a_line():
    rows = [["x" * 100, "y" * 100], ["", "z"]]
    assert len(table(["a", "b"], rows).splitlines()) == 3


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
@pytest.mark.parametrize("command", ["progress", "list"])
def test_a_narrow_terminal_folds_no_line(command: str, columns: int, labs: Path, capsys, monkeypatch):
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *_: os.terminal_size((columns, 24)))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main([command]) == 0
    lines = capsys.readouterr().out.splitlines()
    tabled = [line for line in lines if "passed; kept in" not in line]  # which ends in a path of any length
    assert max(map(len, tabled)) <= columns
    assert any("mean" in line for line in lines) if command == "progress" else any("90" in line for line in lines)
