"""Docstrings as Markdown: paragraphs, labelled parts, lists of arguments, and aligned text unchanged.

indented lines, or columns made with spaces    a literal block
"Cost: ...", "Source: ..." at a line's start   a paragraph with its label in bold
"Args:" above indented lines                   a list with one entry per argument
"- ..."                                        a list
other lines                                    a paragraph
"""

import re
import textwrap
from collections.abc import Iterator
from itertools import groupby

_LABEL = re.compile(r"[A-Z][a-z]+(?: [a-z]+)?:(?= )")
_SECTION = re.compile(r"(Args|Arguments|Returns|Raises|Attributes|Yields):$")
_COLUMNS = re.compile(r"\S {3,}\S")
_CODE = re.compile(r"(`[^`]+`)")
_MARKS = re.compile(r"([\\*_<\[\]{}~|$])|^(?=[-+#>=])")


def to_markdown(text: str) -> str:
    """A docstring, cleaned as by `inspect.cleandoc`, as Markdown."""
    return "\n\n".join(part for block in re.split(r"\n\s*\n", text.strip("\n")) for part in _parts(block)) + "\n"


def inline(text: str) -> str:
    """One paragraph on one line: marks of Markdown are escaped, except in `code`."""
    pieces = _CODE.split(" ".join(text.split()))
    escaped = "".join(piece if at % 2 else _MARKS.sub(r"\\\1", piece) for at, piece in enumerate(pieces))
    return re.sub(r"^(\d+)(?=[.)])", r"\1\\", escaped)  # no number of a list


def literal(text: str, language: str = "text") -> str:
    """Text as it stands."""
    return f"```{language}\n{textwrap.dedent(text).strip(chr(10))}\n```"


def _parts(block: str) -> Iterator[str]:
    """The parts of one block: lines between two empty ones."""
    lines = block.split("\n")
    if _SECTION.match(lines[0]) and len(lines) > 1:
        entries = re.split(r"\n(?=\S)", textwrap.dedent("\n".join(lines[1:])))
        yield f"**{lines[0]}**"
        yield "\n".join("- " + re.sub(r"^([^:`]+): ", r"**\1**: ", inline(entry)) for entry in entries)
    elif lines[0].lstrip().startswith(">>>"):
        yield literal(block, "pycon")
    elif all(line.startswith("  ") for line in lines) or any(map(_COLUMNS.search, lines)):
        yield literal(block)
    elif lines[0].startswith("- "):
        yield "\n".join(f"- {inline(item)}" for item in re.split(r"(?:^|\n)- ", block)[1:])
    else:
        for is_indented, some in groupby(lines, lambda line: line.startswith("    ")):
            text = "\n".join(some)
            yield from [literal(text)] if is_indented else _paragraphs(text)


def _paragraphs(text: str) -> Iterator[str]:
    """Lines of text: a label at the start of a line begins a paragraph."""
    for paragraph in re.split(rf"\n(?={_LABEL.pattern})", text):
        label = _LABEL.match(paragraph)
        yield f"**{label[0]}** {inline(paragraph[label.end() :])}" if label else inline(paragraph)
