"""Tables are replaced in TOML of any spelling; all other characters, comments and values stay."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.text.files import parse_toml
from lablib.text.toml import toml_table, toml_value, with_tables

LOCK = {"lock": {"at": "12:00", "sha256": "ab"}}
TRAPS = [
    "[lock]",
    "[[lock]]",
    "[runs.a]",
    "# no comment",
    "at = 1",
    "'",
    '"',
    "\\",
    "\n",
    "\t",
    "\u2028",
    "\x85",
    "]",
    "{",
]
lines = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=6) | st.sampled_from(TRAPS)
texts = st.lists(lines, max_size=6).map("\n".join)
comments = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8).map("# {}\n".format) | st.just("")


def spellings(text: str) -> list[str]:
    """The text in every form of TOML that can hold it."""
    found = [toml_value(text)]
    if any(each < " " and each not in "\n\t" or each == "\x7f" for each in text):
        return found
    basic = text.replace("\\", "\\\\").replace('"', '\\"')
    found.append(f'"""\n{basic}"""')
    if "'" not in text:
        found += [f"'{text}'"] * ("\n" not in text) + [f"'''\n{text}'''"]
    if '"""' not in text and "\\" not in text:  # quotes may stand in front of the last three
        found += [f'"""\n{text}"""'] if not text.endswith('"""') else []
    assert all(parse_toml(f"x = {each}")["x"] == text for each in found)
    return found


@st.composite
def files(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A file with tables [lock], [runs.a] and others in any order; and its comments."""
    notes = list[str]()

    def note() -> str:
        notes.append(draw(comments))
        return notes[-1]

    def value(text: str) -> str:
        return draw(st.sampled_from(spellings(text)))

    def tail() -> str:
        return note() or "\n"

    parts = [f"title = {value(draw(texts))} {tail()}", f"list = [{tail()}{value(draw(texts))}, {tail()}] {tail()}"]
    tables = [
        f"[lock] {tail()}{note()}at = {value(draw(texts))} {tail()}{note()}",
        f'[ "runs" . a] {tail()}note = {value(draw(texts))} {tail()}old = [1, {tail()} 2] {tail()}{note()}',
        f"[other] {tail()}note = {value(draw(texts))} {tail()}",
        f"[[lists]] {tail()}note = {value(draw(texts))} {tail()}",
    ]
    parts += draw(st.permutations(tables))[: draw(st.integers(0, 4))]
    return "".join(parts)[: None if draw(st.booleans()) else -1] + draw(st.sampled_from(["", "\n\n"])), notes


@given(files(), texts, st.booleans())
def test_tables_are_replaced_and_the_rest_stays(file: tuple[str, list[str]], text: str, is_removed: bool):
    before, notes = file
    values = parse_toml(before)
    wanted: dict[str, Any] = {} if is_removed else {"at": text, "count": 3}
    runs = {"a": values.get("runs", {}).get("a", {}).get("note"), "b": text}
    found = with_tables(before, {"lock": wanted, "runs": {name: {"note": each} for name, each in runs.items()}})
    after = parse_toml(found)
    assert after.pop("lock", {}) == wanted
    assert {name: each["note"] for name, each in after.pop("runs").items()} == {
        k: v for k, v in runs.items() if v is not None
    }
    assert after == {name: each for name, each in values.items() if name not in ("lock", "runs")}
    for each in filter(None, notes):
        assert found.count(each.strip("\n")) >= before.count(each.strip("\n"))
    assert with_tables(found, {"lock": wanted}) == found  # a second time changes nothing


def test_a_value_that_is_equal_keeps_its_spelling():
    text = 'a = 1\n\n[lock]\nat = """\n12:\\\n  00"""  # noon\nsha256 = "old" # of it\n[b]\n'
    assert with_tables(text, LOCK) == text.replace('"old"', '"ab"')


def test_a_new_table_comes_after_the_one_before_it():
    text = "[lock]\nat = 1\n# mine\n\n[b]\n"
    found = with_tables(text, {"lock": {"at": 1}, "runs": {"n": 2}})
    assert found == "[lock]\nat = 1\n\n[runs]\nn = 2\n# mine\n\n[b]\n"


@pytest.mark.parametrize(
    "text",
    [
        'lock = { at = "11:00" }  # inline\n',
        'lock.at = "11:00"  # dotted\n[lock.deep]\nx = 1\n',
        '[lock]\nat.deep = 1 # deeper\n"sha256" = "old"\n',
        '"lock" = { }\r\n# CRLF\r\n',
        "[[lock]]\nat = 1\n[[lock]]\nat = 2\n",
        "",
        "# alone",
    ],
)
def test_a_table_in_another_form_is_replaced(text: str):
    found = with_tables(text, LOCK)
    assert parse_toml(found) == LOCK
    assert found.count("#") == text.count("#") and with_tables(found, {"lock": {}}).count("#") == text.count("#")


def test_values_and_tables_are_toml():
    value = ['a"\\\x7f\n', True, 2, 1e300, float("inf"), [0.5]]
    assert parse_toml("\n".join(toml_table("t", {"x": value, "none": None})))["t"] == {"x": value}


def test_no_toml_is_an_error():
    with pytest.raises(ValueError):
        with_tables("[lock", LOCK)
