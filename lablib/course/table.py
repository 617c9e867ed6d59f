"""Plain text in columns, for a terminal, a pipe or a log alike."""

from collections.abc import Sequence


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows under a heading, columns as wide as their widest cell; the last column is as wide as it likes.

    >>> print(table(["lab", "title"], [["08", "Collectives"]]))
    lab  title
    08   Collectives
    """
    lines = [list(map(str, row)) for row in [heading, *rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heading))]
    padded = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join(padded)
