"""Notebooks made from a master, for learners and for instructors (for nbgrader: assignment.py).

    learner      stubs instead of solutions; cells tagged `instructor` left out
    instructor   everything

A notebook is a function of its master: no times, no random ids, no outputs. So the same master gives the same bytes,
and a changed digest shows that a notebook was edited. A cell's id is a fingerprint of the text that was handed out,
which shows the same for each cell.
"""

import hashlib
import json
from collections import Counter
from enum import Enum
from pathlib import Path
from typing import Any

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_raw_cell

from lablib.course.building import addresses
from lablib.course.building.master import Cell, Master
from lablib.course.building.solution import to_stub
from lablib.course.translation import texts_of, translated
from lablib.text.files import parse_json, read_text

_NEW_CELL = {"code": new_code_cell, "markdown": new_markdown_cell, "raw": new_raw_cell}
_MAX_BYTES = 2**30  # with outputs
_MINUTES = {"": " ({:g} min)", "zh": "（{:g} 分钟）"}  # after a heading, by language
_KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


class Version(Enum):
    LEARNER = "learner"
    INSTRUCTOR = "instructor"


def make_notebook(master: Master, version: Version) -> nbformat.NotebookNode:
    code = master.lab.language
    by_key = texts_of(master.lab.translation) if code else {}
    cells = [
        _cell(cell, version, by_key, _MINUTES.get(code, _MINUTES[""]))
        for cell in master.cells
        if version is not Version.LEARNER or not cell.tagged("instructor")
    ]
    if version is Version.LEARNER and not code and (link := addresses.colab_link(master.lab.name)):
        cells[0].source += f"\n\n{link}"
    # A notebook without a kernelspec makes JupyterLab ask the reader for a kernel.
    notebook = new_notebook(cells=cells, metadata={"kernelspec": dict(_KERNEL), "language_info": {"name": "python"}})
    about = {"lab": master.lab.name, "version": version.value} | ({"language": code} if code else {})
    notebook.metadata["lablib"] = about
    stamp(notebook)
    nbformat.validate(notebook)
    return notebook


def stamp(notebook: nbformat.NotebookNode) -> None:
    """Write the digest and the cell fingerprints into a notebook, by which later edits are found."""
    seen: Counter[str] = Counter()
    for cell in notebook.cells:
        # From the cell's own content: a cell added above does not renumber those below.
        name = fingerprint(cell)
        seen[name] += 1
        cell["id"] = name if seen[name] == 1 else f"{name}-{seen[name]}"
    about = {"digest": digest(notebook), "cells": " ".join(cell.id for cell in notebook.cells)}
    notebook.metadata["lablib"] = notebook.metadata.get("lablib", {}) | about


def read_notebook(path: Path) -> nbformat.NotebookNode:
    """Read a notebook. Raises OSError and ValueError as `read_text`, and ValueError for a file that is no notebook."""
    return notebook_of(read_text(path, _MAX_BYTES))


def notebook_of(text: str) -> nbformat.NotebookNode:
    """Parse a notebook. Raises ValueError for a text that is no notebook."""
    parse_json(text)  # its errors are sentences
    try:
        return nbformat.reads(text, as_version=4)
    except Exception as error:  # from nbformat, and from its upgrades of old versions
        raise ValueError(f"it is no notebook: {type(error).__name__}: {error}") from None


def to_text(notebook: nbformat.NotebookNode) -> str:
    return nbformat.writes(notebook) + "\n"


def digest(notebook: nbformat.NotebookNode) -> str:
    """Digest of the author's part of a notebook: kinds, sources and tags of its cells.

    Opening or running a notebook changes ids, outputs, counters and other metadata, so they do not count.
    """
    written = [[cell.cell_type, cell.source, sorted(cell.metadata.get("tags", []))] for cell in notebook.cells]
    return hashlib.sha256(json.dumps(written).encode()).hexdigest()[:16]


def fingerprint(cell: nbformat.NotebookNode) -> str:
    """Hash of a cell's kind and text, 8 characters; the id of an unedited cell begins with it."""
    return hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:8]


def has_outputs(notebook: nbformat.NotebookNode) -> bool:
    return any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells)


def _cell(cell: Cell, version: Version, by_key: dict[str, str], minutes: str) -> nbformat.NotebookNode:
    source = translated(cell.source, by_key) if cell.kind == "markdown" and by_key else cell.source
    metadata: dict[str, Any] = {"tags": list(cell.tags)} if cell.tags else {}
    if cell.heading and cell.minutes:
        heading, *below = source.split("\n")
        source = "\n".join([f"{heading}{minutes.format(cell.minutes)}", *below])
        metadata["minutes"] = cell.minutes
    if cell.heading and cell.tagged("further"):
        metadata["jp-MarkdownHeadingCollapsed"] = True  # JupyterLab folds the section
    if version is Version.LEARNER and cell.tagged("exercise"):
        source = to_stub(source)
    return _NEW_CELL[cell.kind](source, metadata=metadata)
