"""A commit that passes passes again: properties are tried on examples that depend on nothing but the property."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


def drawn() -> list[int]:
    """What one property is tried on."""
    seen: list[int] = []

    @settings(max_examples=300, database=None)
    @given(st.integers(0, 10**9))
    def collect(number: int) -> None:
        seen.append(number)

    collect()
    return seen


def test_examples_do_not_depend_on_what_other_tests_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
):
    if request.config.getoption("--all"):
        pytest.skip("--all tries new examples every time")
    before = drawn()
    file = tmp_path / "numbers.py"
    file.write_text(f"NUMBERS = {list(range(7001, 7101))}\n")
    spec = importlib.util.spec_from_file_location("numbers_of_a_module", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "numbers_of_a_module", module)
    spec.loader.exec_module(module)
    assert drawn() == before and len(set(before)) > 100
