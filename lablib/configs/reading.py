"""Result of reading a configuration file: the record, the parts that it leaves out, and the fields that are unknown."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Generic, TypeVar

from lablib.errors import unknown_name
from lablib.signature import checked
from lablib.text.files import parse_json, parse_toml, read_text

Record = TypeVar("Record")


@dataclass(frozen=True, slots=True)
class Omission:
    """A part of the configuration that the record cannot hold."""

    text: str  # the part, as a sentence without its full stop
    parameters: int = 0  # parameters of the model that are therefore not counted

    def __str__(self) -> str:
        return f"{self.text} ({self.parameters:,} parameters)" if self.parameters else self.text


@dataclass(frozen=True, slots=True)
class Reading(Generic[Record]):
    """A record and the rest of its file."""

    record: Record  # input of the planner
    omissions: tuple[Omission, ...] = ()  # parts that were understood, but are not priced
    unknown: tuple[str, ...] = ()  # names of fields that this reader does not know

    def sentences(self, label: str = "Not priced") -> list[str]:
        """One line for each part that is left out, after `label`, and one for the unknown fields."""
        lines = [f"{label}: {omission}." for omission in self.omissions]
        return lines + ([f"Fields not understood: {', '.join(self.unknown)}."] if self.unknown else [])


class Fields:
    """The fields of a mapping, each read once; it knows which were not read.

    Args:
        values: the mapping, as a JSON or TOML file gives it.
        where: its place, for messages ("config.json", "zero_optimization of ds_config.json").
    """

    def __init__(self, values: Mapping[str, Any], where: str):
        if not isinstance(values, Mapping):
            raise ValueError(f"{where} must be an object with named fields: got {type(values).__name__}")
        self._values, self._where, self._read = values, where, set[str]()

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def get(self, name: str, default: Any = None) -> Any:
        """The value; the default if the field is missing or null."""
        self._read.add(name)
        value = self._values.get(name)
        return default if value is None else value

    def count(self, name: str, default: int | None = None, minimum: int = 1) -> int:
        """A whole number of at least `minimum`.

        ValueError: another value, or a missing field without default.
        """
        value = self.get(name, default)
        if value is None:
            near = get_close_matches(name, self._values, n=3)
            hint = f"; it has {', '.join(near)}" if near else ""
            raise ValueError(f"{self._where} must have the field {name}: it is missing{hint}")
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise ValueError(f"{name} of {self._where} must be a whole number of at least {minimum}: got {value!r}")
        return value

    def _of_kind(self, name: str, default: Any, is_right: Callable[[Any], bool], words: str) -> Any:
        if not is_right(value := self.get(name, default)):
            raise ValueError(f"{name} of {self._where} must be {words}: got {value!r}")
        return value

    def number(self, name: str, default: float) -> float:
        """A positive number. Raises ValueError: another value."""
        value = self._of_kind(name, default, lambda x: type(x) in (int, float) and 0 < x < inf, "a positive number")
        return float(value)

    def optional_count(self, name: str) -> int | None:
        """As `count`; None for a field that is missing or null."""
        return None if self.get(name) is None else self.count(name)

    def flag(self, name: str, default: bool) -> bool:
        """A boolean. Raises ValueError: another value."""
        return self._of_kind(name, default, lambda value: isinstance(value, bool), "true or false")

    def text(self, name: str, default: str = "") -> str:
        """A text. Raises ValueError: another value."""
        return self._of_kind(name, default, lambda value: isinstance(value, str), "a text")

    def one_of(self, name: str, known: Sequence[str], label: str = "") -> str:
        """One of these words; the first by default. `label`: the field's name in the error.

        ValueError: another value, with the nearest words.
        """
        value = self.get(name, known[0])
        if value not in known:
            raise unknown_name(label or f"{name} of {self._where}", value, known)
        return value

    def items(self, name: str, kind: type) -> list[Any]:
        """A list of texts or whole numbers; empty if it is missing. Raises ValueError: another value."""
        values = self.get(name, [])
        if not isinstance(values, (list, tuple)) or not all(type(value) is kind for value in values):
            raise ValueError(f"{name} of {self._where} must be a list of {kind.__name__}: got {values!r}")
        return list(values)

    def inner(self, name: str) -> "Fields":
        """The fields of a field; none if it is missing."""
        return Fields(self.get(name, {}), f"{name} of {self._where}")

    def skip(self, names: Iterable[str]) -> None:
        """Count these as read: they change no time and no memory."""
        self._read.update(names)

    def unread(self) -> tuple[str, ...]:
        return tuple(sorted(self._values.keys() - self._read))


@checked
def read_json(path: str | Path) -> dict[str, Any]:
    """The object in a JSON file.

    ValueError: no such file (the nearest names in its folder are given), no JSON object, or a name twice in one, which
    DeepSpeed refuses, too.
    """
    values = _parsed(path, partial(parse_json, object_pairs_hook=_object), "JSON")
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold a JSON object: got {type(values).__name__}")
    return values


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict[str, Any]()
    for name, value in pairs:
        if name in values:
            raise ValueError(f"a name must stand once in an object: got {name!r} twice; remove one")
        values[name] = value
    return values


@checked
def read_toml(path: str | Path) -> dict[str, Any]:
    """The tables in a TOML file. Raises ValueError as `read_json`."""
    return _parsed(path, parse_toml, "TOML")


def text_of(path: str | Path) -> str:
    """The text of a configuration file. Raises ValueError: no such file, with the nearest names in its folder."""
    path = Path(path)
    try:
        return read_text(path)
    except OSError as error:
        near = get_close_matches(path.name, os.listdir(path.parent), n=3) if path.parent.is_dir() else []
        hint = f"; did you mean {' or '.join(near)}?" if near and not path.exists() else ""
        raise ValueError(f"{path} cannot be read: {error.strerror}{hint}") from None


def _parsed(path: str | Path, parse: Callable[[str], Any], kind: str) -> Any:
    text = text_of(path)
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{path} must be {kind}: {error}") from None
