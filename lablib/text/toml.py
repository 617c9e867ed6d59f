"""TOML text: values, and tables of a file that are replaced while every other character stays.

    toml_value(['a"b', 1.5])                               '["a\\"b", 1.5]'
    with_tables(text, {"lock": {"at": "12:00"}, "runs": {}})    [lock] as given, no [runs], the rest as it was

Only values of these tables that differ change: an equal value keeps its spelling. Comments stay, also in tables that
are removed. The text is cut into statements by its tokens, so a line within a string that looks like a heading is text.
Where a file has such a table in another form (dotted keys, an inline table), its statements are removed and the table
is written at the end.

Source: TOML 1.0.0, toml.io.
Simplified: comments inside a list that is replaced move above its line.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from lablib.text.files import parse_toml

_TOKEN = re.compile(
    r'''(?P<comment>\#[^\n]*)
    | (?P<string>"""(?:\\[\s\S]|[^\\])*?"""(?!") | \'\'\'[\s\S]*?\'\'\'(?!\') | "(?:\\.|[^"\\\n])*" | '[^'\n]*')
    | (?P<newline>\n) | (?P<open>[\[{]) | (?P<close>[\]}]) | (?P<equals>=)
    | (?P<space>[ \t\r]+) | (?P<mark>[.,]) | (?P<bare>[^\s\#"'\[\]{}=.,]+)''',
    re.VERBOSE,
)
Path = tuple[str, ...]
Tables = dict[Path, Mapping[str, Any]]
_Edit = tuple[int, int, str]  # a part from start to end, and its new text


@dataclass(frozen=True)
class _Statement:
    """One statement: lines with a heading, with a key and its value, or with a comment or nothing."""

    kind: str  # "heading", "pair", "other"
    path: Path  # of the table, or of the key from the root
    start: int
    value_start: int  # of a pair; of a heading its bracket
    code_end: int  # without the comment
    end: int  # with the end of the line
    is_plain: bool = True  # a pair with one key, a heading that is not of a list of tables


def toml_value(value: Any) -> str:
    """A text, number, boolean, list or mapping as TOML."""
    if isinstance(value, str):  # JSON's escapes are valid in TOML, except that TOML also requires DEL to be escaped
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(toml_rows(value)) + " }" if value else "{}"
    return repr(value)  # TOML spells inf and nan as Python does


def toml_rows(values: Mapping[str, Any]) -> list[str]:
    """A line for each value; a name with other signs than a bare key may have is quoted."""
    return [
        f"{name if re.fullmatch(r'[A-Za-z0-9_-]+', name) else toml_value(name)} = {toml_value(value)}"
        for name, value in values.items()
    ]


def toml_table(name: str, values: Mapping[str, Any], form: str = "[{}]") -> list[str]:
    """An empty line, the heading, and a line for each value that is not None."""
    rows = [f"{key} = {toml_value(value)}" for key, value in values.items() if value is not None]
    return ["", form.format(name), *rows]


def with_tables(text: str, wanted: Mapping[str, Any]) -> str:
    """The TOML text with the tables of these names as given, nested ones too; an empty one is removed.

    ValueError: the text is not TOML.
    """
    before = parse_toml(text)
    tables = dict(_tables((), wanted))
    expected = {name: value for name, value in before.items() if name not in wanted}
    for path, values in tables.items():
        table = expected
        for name in path:
            table = table.setdefault(name, {})
        table |= {name: _plain(value) for name, value in values.items()}
    statements = list(_statements(text))
    owned = [each for each in statements if each.path and each.path[0] in wanted]
    for edited in (_in_place(text, statements, owned, tables, before), _rewritten(text, owned, tables)):
        try:
            if parse_toml(edited) == expected:
                return edited
        except ValueError:
            continue
    raise AssertionError("a table at the end of a file without it is valid")


def _tables(path: Path, values: Mapping[str, Any]) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Each table that has values."""
    own = {name: value for name, value in values.items() if not isinstance(value, Mapping) and value is not None}
    if own:
        yield path, own
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _tables((*path, name), value)


def _plain(value: Any) -> Any:
    """A value as a parser gives it."""
    return list(map(_plain, value)) if isinstance(value, list | tuple) else value


# ---- statements ----


def _statements(text: str) -> Iterator[_Statement]:
    table, line = (), list[re.Match[str]]()
    depth, start = 0, 0
    for token in _TOKEN.finditer(text):
        depth += (token.lastgroup == "open") - (token.lastgroup == "close")
        line.append(token)
        if token.lastgroup == "newline" and depth == 0:
            statement = _statement(line, table, start)
            table = statement.path if statement.kind == "heading" else table
            yield statement
            line, start = [], token.end()
    if line:
        yield _statement(line, table, start)


def _statement(line: list[re.Match[str]], table: Path, start: int) -> _Statement:
    end = line[-1].end()
    code = [token for token in line if token.lastgroup not in ("comment", "space", "newline")]
    if not code:
        return _Statement("other", (), start, start, start, end)
    first, last = code[0].start(), code[-1].end()
    if code[0].lastgroup == "open":
        return _Statement("heading", _keys(code), start, first, last, end, code[1].lastgroup != "open")
    equals = next(at for at, token in enumerate(code) if token.lastgroup == "equals")
    keys = _keys(code[:equals])
    return _Statement("pair", (*table, *keys), start, code[equals + 1].start(), last, end, len(keys) == 1)


def _keys(tokens: list[re.Match[str]]) -> Path:
    words = [token[0] for token in tokens if token.lastgroup in ("bare", "string")]
    return tuple(parse_toml(f"x = {word}")["x"] if word[0] in "\"'" else word for word in words)


def _comments(text: str, start: int, end: int) -> str:
    """The comments of a part, a line each."""
    found = (token[0].rstrip("\r") for token in _TOKEN.finditer(text[start:end]) if token.lastgroup == "comment")
    return "".join(f"{each}\n" for each in found)


# ---- edits ----


def _in_place(
    text: str, statements: list[_Statement], owned: list[_Statement], tables: Tables, before: Mapping[str, Any]
) -> str:
    """Change the values that differ, add missing values below their table, and remove the rest."""
    edits, last, seen = list[_Edit](), dict[Path, int](), set[Path]()  # the end of each table, and its keys
    above = {after.start: each for each, after in pairwise(statements)}
    for each in owned:
        parent, name = each.path[:-1], each.path[-1]
        is_wanted = each.path in tables if each.kind == "heading" else name in tables.get(parent, {})
        if not (each.is_plain and is_wanted):
            edits.append((each.start, each.end, _comments(text, each.start, each.end)))
            if each.kind == "heading" and (gap := above.get(each.start)) and not text[gap.start : gap.end].strip():
                edits.append((gap.start, gap.end, ""))
            continue
        last[each.path if each.kind == "heading" else parent] = each.end
        if each.kind == "pair":
            seen.add(each.path)
            wanted = _plain(tables[parent][name])
            if _value(before, each.path) != wanted:
                edits.append((each.start, each.start, _comments(text, each.value_start, each.code_end)))
                edits.append((each.value_start, each.code_end, toml_value(wanted)))
    added, place = list[_Edit](), len(text)
    for path, values in tables.items():
        rest = {name: value for name, value in values.items() if (*path, name) not in seen}
        rows = toml_table(".".join(path), rest)
        place = last.get(path, place)
        is_cut = place > 0 and text[place - 1] != "\n" and all(each[0] != place for each in added)
        if path not in last or rest:
            added.append((place, place, "\n" * is_cut + "\n".join(rows[2:] if path in last else rows) + "\n"))
    return _edited(text, [*added, *edits])


def _rewritten(text: str, owned: list[_Statement], tables: Tables) -> str:
    """Remove all statements of these tables, and write the tables at the end."""
    kept = _edited(text, [(each.start, each.end, _comments(text, each.start, each.end)) for each in owned])
    lines = [line for path, values in tables.items() for line in toml_table(".".join(path), values)]
    return "\n".join([kept.rstrip("\n"), *lines]) + "\n"


def _edited(text: str, edits: list[_Edit]) -> str:
    """Replace parts of the text; of insertions at one place the first comes first."""
    parts, at = list[str](), 0
    for start, end, new in sorted(edits, key=lambda each: each[:2]):
        parts += [text[at:start], new]
        at = end
    return "".join([*parts, text[at:]])


def _value(values: Any, path: Path) -> Any:
    for name in path:
        values = values[name] if isinstance(values, dict) else None
    return values
