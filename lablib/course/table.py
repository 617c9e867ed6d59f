"""Plain-text tables for a terminal, a pipe or a log; on a narrow terminal, a block per row. Tables of a notebook.

A row that the terminal wraps is hard to read. So the last column is wrapped if it has room for words; if the other
columns are already too wide, each row becomes a block:

    lab       08_collectives
    exercise  ring_all_reduce
"""

import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

_MIN_COLUMNS = 20  # least width of a wrapped last column


def table(heading: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """Rows under a heading, columns as wide as their widest cell.

    `width`: characters per line; None: the terminal's, or no limit if standard output is not a terminal.

    >>> print(table(["lab", "title"], [["08", "Collectives"]]))
    lab  title
    08   Collectives
    """
    lines = [list(map(str, row)) for row in [heading, *rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heading))]
    if width is None and sys.stdout.isatty():
        width = shutil.get_terminal_size((0, 0)).columns
    room = width or sys.maxsize
    before_last = sum(widths[:-1]) + 2 * (len(widths) - 1)
    if before_last + widths[-1] > room and room - before_last >= min(_MIN_COLUMNS, widths[-1]):
        wrapped = [(line, textwrap.wrap(line[-1], room - before_last) or [""]) for line in lines]
        empty = [""] * (len(heading) - 1)  # above each further line of a last cell
        lines = [
            [*(empty if number else line[:-1]), part] for line, parts in wrapped for number, part in enumerate(parts)
        ]
    elif before_last + widths[-1] > room:
        return "\n\n".join(_block(heading, row, room) for row in lines[1:])
    padded = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join(padded)


def _block(heading: Sequence[str], row: Sequence[str], room: int) -> str:
    """A row as a block, one line per cell: heading and cell."""
    named = max(len(name) for name in heading)
    filled = [(name, cell) for name, cell in zip(heading, row, strict=True) if cell]
    indent = " " * (named + 2)
    return "\n".join(
        textwrap.fill(f"{name:<{named}}  {cell}", max(room, named + 12), subsequent_indent=indent)
        for name, cell in filled
    )


def in_rows(rows: Mapping[Any, Mapping[str, Any]]) -> "pd.DataFrame":
    """A table for a notebook: name of a row -> its values, by column."""
    import pandas as pd

    return pd.DataFrame(rows).T
