"""Masters: the source of a lab, `lab.py` in its folder, in jupytext's py:percent format.

    # %% [markdown]              text
    # %%                         code
    # %% tags=["exercise"]       code with a solution between markers
    # %% tags=["check"] points=2 the check of the exercise above it: check.name(answer)
    # %% [markdown] minutes=8    a heading `## ...`, with the minutes of its section

Each cell keeps its line in the file, so that a finding can name file and line. How to write a master:
`labs/masters/README.md`.
"""

import ast
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from lablib.course.building.parameters import Parameter, read_parameters
from lablib.course.errors import CourseError, CourseFailure
from lablib.course.places import Lab
from lablib.text.files import read_text

_CELL = re.compile(r"^# %%(\s|$)")
_TITLE = re.compile(r"^# (?:Lab )?(?P<number>\d\d)\W+(?P<title>\w.*)$")
_QUESTION = re.compile(r"\*\*Question\.?\*\*\.?\s*(?P<question>.+?)(?:\n\s*\n|$)", re.DOTALL)
_MINUTES = re.compile(r" \([\d.]+ min\)$")
_PREREQUISITES = re.compile(r"\*\*Prerequisites\.\*\*\s*(?P<labs>[^.]+)\.")
_TIME = re.compile(r"\*\*Time\.\*\*\s*(?P<minutes>\d+) minutes")


@dataclass(frozen=True)
class Cell:
    """One cell of a master."""

    kind: str  # "code", "markdown" or "raw"
    source: str  # its text, with the solution
    tags: tuple[str, ...]
    points: float  # points of a check (nbgrader)
    line: int  # line of its `# %%` in the master
    minutes: float = 0.0  # minutes of the section that begins here; 0 if none does

    @property
    def heading(self) -> str:
        """Title of the section that a text cell begins (`## title`, in notebooks `## title (8 min)`); ""."""
        first = self.source.split("\n", 1)[0]
        return _MINUTES.sub("", first[3:].strip()) if self.kind == "markdown" and first.startswith("## ") else ""

    def tagged(self, tag: str) -> bool:
        return tag in self.tags

    @property
    def check_call(self) -> ast.Call | None:
        """The call `check.name(...)` that ends this cell, or None."""
        statements = ast.parse(self.source).body
        last = statements[-1] if statements else None
        call = last.value if isinstance(last, ast.Expr) else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            if isinstance(call.func.value, ast.Name) and call.func.value.id == "check":
                return call
        return None

    @property
    def check_name(self) -> str | None:
        """`name` of the `check.name(...)` that ends this cell."""
        call = self.check_call
        return call.func.attr if call and isinstance(call.func, ast.Attribute) else None


@dataclass(frozen=True)
class Section:
    """A part of a lab, from one heading to the next. `is_further`: optional, folded until opened."""

    title: str
    minutes: float
    is_further: bool
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Prerequisites:
    """Numbers of the labs that come before a lab; `helpful` ones may be skipped."""

    needed: tuple[str, ...] = ()
    helpful: tuple[str, ...] = ()


@dataclass(frozen=True)
class Master:
    """A lab's source: its cells in order."""

    lab: Lab
    cells: tuple[Cell, ...]

    @cached_property
    def title(self) -> str:
        """ "Collectives", from the heading `# Lab 08: Collectives` of the first text cell; "" if there is none."""
        return _find(_TITLE, self._first_text.split("\n", 1)[0], "title")

    @cached_property
    def question(self) -> str:
        """The lab's question, from the paragraph that begins `**Question.**` in the first text cell; or ""."""
        return " ".join(_find(_QUESTION, self._first_text, "question").split())

    @cached_property
    def prerequisites(self) -> Prerequisites | None:
        """From `**Prerequisites.** Lab 08; helpful: labs 02 and 03.` in the first text cell; None if it states none."""
        text = _find(_PREREQUISITES, self._first_text, "labs")
        needed, helpful = (tuple(re.findall(r"\b\d\d\b", part)) for part in (text + ";").split(";")[:2])
        return Prerequisites(needed, helpful) if text else None

    @property
    def stated_minutes(self) -> str:
        """From `**Time.** 60 minutes` in the first text cell; or ""."""
        return _find(_TIME, self._first_text, "minutes")

    @cached_property
    def parameters(self) -> list[Parameter]:
        """The parameters from the cell tagged `parameters`; empty if there is none.

        Raises CourseError: the cell holds other code.
        """
        return next((read_parameters(cell.source) for cell in self.cells if cell.tagged("parameters")), [])

    @cached_property
    def exercises(self) -> list[tuple[Cell, Cell]]:
        """Each exercise with its check: the next cell tagged `check`."""
        pairs: list[tuple[Cell, Cell]] = []
        waiting: Cell | None = None
        for cell in self.cells:
            if cell.tagged("exercise"):
                waiting = cell
            elif cell.tagged("check") and waiting is not None:
                pairs.append((waiting, cell))
                waiting = None
        return pairs

    @cached_property
    def sections(self) -> list[Section]:
        """The sections, each with its minutes; text above the first heading is not a section."""
        starts = [index for index, cell in enumerate(self.cells) if cell.heading]
        return [
            Section(
                self.cells[start].heading,
                self.cells[start].minutes,
                self.cells[start].tagged("further"),
                self.cells[start:end],
            )
            for start, end in zip(starts, [*starts[1:], len(self.cells)], strict=True)
        ]

    @property
    def minutes(self) -> float:
        """Minutes of the lab, without sections tagged `further`."""
        return sum(section.minutes for section in self.sections if not section.is_further)

    @property
    def _first_text(self) -> str:
        return next((cell.source for cell in self.cells if cell.kind == "markdown"), "")


def read_master(lab: Lab) -> Master:
    """Read a lab's master. Raises CourseFailure: it is missing, is not UTF-8, or is not Python (with file and line)."""
    path = lab.master
    try:
        text = read_text(path)
    except FileNotFoundError:
        raise CourseFailure(f"lab {lab.number} has no master: expected {path}; restore it from git.") from None
    except (OSError, ValueError) as error:
        raise CourseFailure(f"cannot read the master {path}: {error}; it must be a UTF-8 text file.") from None
    try:
        ast.parse(text, filename=str(path))
    except SyntaxError as error:
        message = f"a master must be valid Python: {path}:{error.lineno or 1}: {error.msg}; correct it and build again."
        raise CourseFailure(message) from None
    cells = _read_cells(text)
    lines = [number for number, line in enumerate(text.splitlines(), 1) if _CELL.match(line)]
    if len(lines) != len(cells):
        raise CourseFailure(
            f"{path}:1: every cell of a master must start with `# %%`: found {len(lines)} such lines for "
            f"{len(cells)} cells; move the text above the first one into a cell."
        )
    return Master(lab, tuple(_cell(cell, line) for cell, line in zip(cells, lines, strict=True)))


@lru_cache(maxsize=64)
def _read_cells(text: str) -> tuple[Any, ...]:
    """The cells as jupytext reads them: 40 ms for a lab, and a report or a proof reads each lab several times."""
    import jupytext  # takes a third of a second, and most commands do not need it

    return tuple(jupytext.reads(text, fmt="py:percent").cells)


def of_notebook(lab: Lab, notebook: Any) -> Master:
    """A notebook's cells as a master, with the cell number as line: for a lab without a master."""
    return Master(lab, tuple(_cell(cell, number) for number, cell in enumerate(notebook.cells, 1)))


def at(master: Master, cell: Cell | None, message: str) -> CourseError:
    """A finding about a master, with file and line."""
    return CourseFailure(f"{master.lab.master}:{cell.line if cell else 1}: {message}")


def _cell(cell: Any, line: int) -> Cell:
    metadata = cell.metadata
    numbers = [float(metadata.get(name, default)) for name, default in (("points", 1), ("minutes", 0))]
    return Cell(cell.cell_type, cell.source, tuple(metadata.get("tags", ())), numbers[0], line, numbers[1])


def _find(pattern: re.Pattern[str], text: str, group: str) -> str:
    match = pattern.search(text)
    return match[group].strip() if match else ""
