"""Print long text and errors in a notebook: cells by name, no frames of libraries, whole words.

JupyterLab breaks a long line of text anywhere, also inside a word, and names a cell by a temporary file.
"""

import re
import textwrap

from lablib.course.translation import say_for
from lablib.process.whose_code import is_of_package
from lablib.signature import checked

_CHINESE = re.compile("[\u4e00-\u9fff]")
COLUMNS = 92  # fits next to JupyterLab's file browser
_FRAME = re.compile(r'(?P<indent>\s*)File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)')


@checked
def print_error(error: BaseException) -> None:
    """Print an error's message, wrapped between words. Frames of installed packages are left out."""
    _print_wrapped(say_for()("\n".join(_lines_of_program(str(error)))))


@checked
def print_text(text: str) -> None:
    """Print other text, wrapped between words, in the reader's language if it has a translation."""
    _print_wrapped(say_for()(text))


def _print_wrapped(text: str) -> None:
    for line in text.splitlines() or [""]:
        if _CHINESE.search(line):  # which may be broken anywhere, as JupyterLab does
            print(line)
            continue
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        print(textwrap.fill(line, COLUMNS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False))


def _lines_of_program(text: str) -> list[str]:
    """The lines, without frames of installed packages and with names for cells."""
    kept: list[str] = []
    skipped_indent: int | None = None  # inside a frame that is left out, lines with a larger indent belong to it
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if skipped_indent is not None and indent > skipped_indent:
            continue
        skipped_indent = None
        frame = _FRAME.fullmatch(line)
        if frame and is_of_package(frame["file"]):
            skipped_indent = indent
        elif frame and ("ipykernel_" in frame["file"] or frame["file"].startswith("<ipython")):
            kept.append(f"{frame['indent']}cell line {frame['line']}, in {frame['name']}")
        else:
            kept.append(line)
    return kept
