"""Plain text in columns, for a terminal, a pipe or a log alike; on a narrow terminal, a block of lines for each row.

A line that the terminal folds can no longer be read as a row. So the last column is wrapped where it has room for
words, and where the others alone are too wide, each row stands by itself:

    lab       08_collectives
    exercise  ring_all_reduce
"""

import shutil
import sys
import textwrap
from collections.abc import Sequence

_MIN_COLUMNS = 20  # letters in which the last column can be wrapped and still be read


def table(heading: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """Rows under a heading, columns as wide as their widest cell.

    Arguments:
        width: letters of a line; None: those of the terminal, where standard output is one, else without a limit.

    >>> print(table(["lab", "title"], [["08", "Collectives"]]))
    lab  title
    08   Collectives
    """
    lines = [list(map(str, row)) for row in [heading, *rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heading))]
    room = (_terminal() if width is None else width) or sys.maxsize
    before_last = sum(widths[:-1]) + 2 * (len(widths) - 1)
    if before_last + widths[-1] > room and room - before_last >= min(_MIN_COLUMNS, widths[-1]):
        lines = [part for line in lines for part in _wrapped(line, room - before_last)]
    elif before_last + widths[-1] > room:
        return "\n\n".join(_block(heading, row, room) for row in lines[1:])
    padded = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join(padded)


def _terminal() -> int:
    """Letters of a line; 0 where standard output is no terminal, and a line may be of any length."""
    return shutil.get_terminal_size((0, 0)).columns if sys.stdout.isatty() else 0


def _wrapped(line: list[str], room: int) -> list[list[str]]:
    """A line whose last cell is at most so wide, and what is left of the cell below it."""
    parts = textwrap.wrap(line[-1], room) or [""]
    return [[*(line[:-1] if number == 0 else [""] * (len(line) - 1)), part] for number, part in enumerate(parts)]


def _block(heading: Sequence[str], row: Sequence[str], room: int) -> str:
    """A row by itself, a line a cell: what the cell is, and the cell."""
    named = max(len(name) for name in heading)
    filled = [(name, cell) for name, cell in zip(heading, row, strict=True) if cell]
    indent = " " * (named + 2)
    return "\n".join(
        textwrap.fill(f"{name:<{named}}  {cell}", max(room, named + 12), subsequent_indent=indent)
        for name, cell in filled
    )
