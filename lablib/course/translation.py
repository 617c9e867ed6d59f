"""Translations of labs and of the messages of checks, keyed by their English text: gettext's .po files.

    labs/masters/00_first_steps/lab.zh.po      paragraphs of the lab's text
    labs/masters/00_first_steps/checks.zh.po   titles, hints and rules of its checks
    lablib/course/messages/checks.zh.po        messages that all checks share
    lablib/course/messages/errors.zh.po        errors of a launch
    lablib/course/messages/output.zh.po        sentences about a run, and questions, that labs print
    lablib/course/messages/figures.zh.po       words of figures, of tables and of controls

A paragraph is the text between blank lines, or a fence of code; wrapped lines count as one. Text without a translation,
or with one marked `fuzzy`, stays English. In a message `{}` stands for any text, which is translated too if it is a
message; "3 ranks" is a number with the message "ranks". Babel, which jupyterlab-server brings, reads and writes the
files: an update keeps translations, moves them to similar text as `fuzzy`, and comments out obsolete ones.
"""

import ast
import io
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from lablib.course.errors import CourseError, CourseFailure
from lablib.course.places import Lab, find_lab, find_labs_folder
from lablib.text.files import read_text
from lablib.text.language import language
from lablib.text.units import plural

if TYPE_CHECKING:
    from babel.messages.catalog import Catalog

_SHARED = Path(__file__).parent / "messages"
_OWN_LINE = re.compile(r"\s*([-*+>#]\s|\d+\.\s|[|<])")  # begins a line that is not joined to the one above
_COUNTED = re.compile(r"([\d,]+) ([a-z]+)")
_HEADER = 'msgid ""\nmsgstr ""\n"Language: {}\\n"\n"Content-Type: text/plain; charset=UTF-8\\n"\n\n'


def paragraphs(text: str) -> list[str]:
    """The paragraphs of a text in Markdown, each with its lines; a fence of code is one, blank lines included."""
    found: list[list[str]] = [[]]
    in_code = False
    for line in text.split("\n"):
        if not line.strip() and not in_code:
            found.append([])
            continue
        found[-1].append(line)
        in_code ^= line.lstrip().startswith("```")
    return ["\n".join(lines) for lines in found if lines]


def key_of(paragraph: str) -> str:
    """A paragraph with its wrapped lines joined: a translation does not depend on where the master breaks lines."""
    lines = paragraph.split("\n")
    if lines[0].lstrip().startswith("```"):
        return paragraph
    joined = [lines[0]]
    for line in lines[1:]:
        if _OWN_LINE.match(line):
            joined.append(line)
        else:
            joined[-1] += " " + line.strip()
    return "\n".join(joined)


def read_catalogue(path: Path) -> "Catalog":
    """Read a .po file. Raises CourseFailure: it is missing, or is no such file."""
    from babel.messages.pofile import PoFileError, read_po

    try:
        return read_po(io.BytesIO(read_text(path).encode()), abort_invalid=True)
    except (OSError, ValueError, PoFileError) as error:
        raise CourseFailure(f"cannot read the translation {path}: {error}; correct it or restore it.") from None


def texts_of(path: Path) -> dict[str, str]:
    """The translated texts of a .po file by their English text."""
    return {key: text for key, text, is_fuzzy in _entries(read_catalogue(path)) if text and not is_fuzzy}


def _entries(catalogue: "Catalog") -> Iterator[tuple[str, str, bool]]:
    """English text, translation and `fuzzy` of each entry."""
    for message in catalogue:
        if message.id and isinstance(message.id, str) and isinstance(message.string, str):
            yield message.id, message.string, message.fuzzy


def translated(text: str, by_key: dict[str, str]) -> str:
    """A text in Markdown with the paragraphs that have a translation in it."""
    return "\n\n".join(by_key.get(key_of(paragraph), paragraph) for paragraph in paragraphs(text))


@dataclass(frozen=True)
class Source:
    """A translation's file, and the English texts that it translates; `optional` ones may be in it too."""

    path: Path
    texts: tuple[str, ...]
    optional: frozenset[str] = frozenset()

    def stale(self) -> str:
        """Entries whose English text no longer exists, in words; "" if there are none."""
        known = self.optional.union(self.texts)
        entries = _entries(read_catalogue(self.path)) if self.path.exists() else ()
        stale = [text for text, _, _ in entries if text not in known]
        return f"has {plural(len(stale), 'stale translations')}, the first of {stale[0][:60]!r}" if stale else ""

    def share(self) -> float:
        """The translated share of the texts."""
        by_text = texts_of(self.path)
        return sum(text in by_text for text in self.texts) / max(1, len(self.texts))

    def updated(self, code: str) -> str:
        """The file's text with an entry for each text: translations are kept, stale ones are commented out."""
        from babel.messages.catalog import Catalog
        from babel.messages.pofile import write_po

        catalogue = read_catalogue(self.path) if self.path.exists() else Catalog()
        template, written = Catalog(), io.BytesIO()
        present = [text for text, _, _ in _entries(catalogue) if text in self.optional]
        for text in (*self.texts, *present):
            template.add(text)
        catalogue.update(template)
        write_po(written, catalogue, width=0, omit_header=True)
        return _HEADER.format(code) + written.getvalue().decode()


def sources_of(lab: Lab, cells: Iterable[str]) -> list[Source]:
    """The files of a translated lab: of the text in the cells of its master, and of its checks."""
    keys = [key_of(paragraph) for text in cells for paragraph in paragraphs(text)]
    found = [Source(lab.translation, tuple(dict.fromkeys(keys)))]
    if lab.checks.is_file():
        tree = ast.parse(read_text(lab.checks))
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        declared = [node for node in calls if isinstance(node.func, ast.Name) and node.func.id == "exercise"]
        titles_and_hints = tuple(text for node in declared for text in texts_in(node))
        path = lab.translation.with_name(f"checks.{lab.language}.po")
        found.append(Source(path, titles_and_hints, frozenset(texts_in(tree))))
    return found


def texts_in(tree: ast.AST) -> list[str]:
    """The texts in a program, in order; a value in a formatted text is `{}`."""
    if isinstance(tree, ast.Constant):
        return [tree.value] if isinstance(tree.value, str) else []
    inside = [text for child in ast.iter_child_nodes(tree) for text in texts_in(child)]
    if isinstance(tree, ast.JoinedStr):
        return ["".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in tree.values), *inside]
    return inside


Say = Callable[[str], str]


def say_for(lab: str = "", *more: str) -> Say:
    """A function that translates messages: of all checks, the checks of this lab, and of `more` files."""
    code = language()
    if not code:
        return str
    paths = [_SHARED / f"{name}.{code}.po" for name in ("checks", "errors", "output", *more)]
    try:
        paths += [find_lab(lab, find_labs_folder()).folder / f"checks.{code}.po"] if lab else []
    except CourseError:
        pass  # a result of a lab that is not here
    return _sayer(tuple(path for path in paths if path.is_file()))


@lru_cache(maxsize=32)
def _sayer(paths: tuple[Path, ...]) -> Say:
    by_text = {text: translation for path in paths for text, translation in texts_of(path).items()}
    # The most exact pattern first: it begins with a word, and is long.
    ordered = sorted(by_text.items(), key=lambda item: (item[0].startswith("{}"), -len(item[0])))
    patterns = [
        (re.compile("(.*?)".join(map(re.escape, text.split("{}")))), translation)
        for text, translation in ordered
        if "{}" in text
    ]

    def say(text: str) -> str:
        if text in by_text:
            return by_text[text]
        counted = _COUNTED.fullmatch(text)
        noun = f"{counted[2].removesuffix('s')}s" if counted else ""
        if counted and noun in by_text:
            return f"{counted[1]} {by_text[noun]}"
        for pattern, translation in patterns:
            match = pattern.fullmatch(text)
            if match:
                return translation.format(*map(say, match.groups()))
        if "\n" in text:
            return "\n".join(line[: len(line) - len(line.lstrip())] + say(line.lstrip()) for line in text.split("\n"))
        return text

    return say
