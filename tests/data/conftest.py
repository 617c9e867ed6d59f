"""Corpora built in a temporary folder: no test reads or writes the machine's own cache."""

from pathlib import Path

import pytest


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, named by LAB_DATA."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("LAB_DATA", str(folder))
    return folder


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A folder laid out like a standard library, with everything in it that is to be left out."""
    folder = tmp_path / "python3.x"
    for name in ("b.py", "a.py", "json/decoder.py", "a/z.py"):
        _write(folder / name, f"# {name}\n")
    for name in ("test/t.py", "json/tests/t.py", "site-packages/s.py", "config-3/c.py", "_sysconfigdata_x.py", "n.txt"):
        _write(folder / name, "left out")
    (folder / "sitecustomize.py").symlink_to(folder / "b.py")
    return folder


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
