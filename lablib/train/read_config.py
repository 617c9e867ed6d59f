"""Read a training configuration from TOML or YAML, with overrides "section.field=value" of the command line.

    config = read_config("train.toml", ["optimizer.lr=1e-3", "parallel.tensor=2"])

Later sources replace earlier ones: defaults of the fields, the file, overrides. Every value is checked against the
annotation of its field (lablib/train/config.py). An unknown field is an error with the nearest names.

Libraries: tomllib reads TOML, PyYAML's safe loader reads YAML (JupyterLab installs it), and `lablib.signature` checks.
OmegaConf and msgspec were considered. OmegaConf adds interpolation, which these files do not need; its error for a
wrong type has neither range nor remedy. msgspec reads TOML and YAML by the same two libraries; its speed is no gain for
a file of fifty lines, and its bounds would be a second notation next to `Count`.

Two texts are read as in TOML although YAML 1.1 reads them differently: 1e-3 and inf are numbers. The text "none" means
no value in a field that allows it, since TOML has no null.
Source: TOML 1.0; YAML 1.1 as read by PyYAML 6.
Simplified: no includes and no interpolation.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from lablib.configs.reading import read_toml, text_of
from lablib.errors import unknown_name
from lablib.signature import check_type, checked, fits, hints_of, shown
from lablib.signature.fits import without_bounds
from lablib.text.files import parse_toml
from lablib.train.config import TrainConfig

_PYTHON = {"True": "true", "False": "false", "None": '"none"'}  # as Python writes them


@checked
def read_config(path: str | Path, overrides: Sequence[str] = ()) -> TrainConfig:
    """The configuration in a file (.toml, .yaml, .yml), with overrides such as "optimizer.lr=1e-3".

    ValueError: no such file, an unknown field, or a value that its field or another field does not allow.
    """
    return parse_config(with_overrides(read_tables(path), overrides), str(path))


@checked
def read_tables(path: str | Path) -> dict[str, Any]:
    """The tables of a TOML or YAML file, unchecked. ValueError: another kind of file, or a damaged one."""
    suffix = Path(path).suffix
    if suffix == ".toml":
        return read_toml(path)
    if suffix not in (".yaml", ".yml"):
        raise ValueError(f"a configuration must be a .toml, .yaml or .yml file: got {path}; rename it")
    try:
        values = yaml.load(text_of(path), _Yaml)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ValueError(f"{path} must be YAML: {' '.join(str(error).split())}; correct it") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} must have named fields: got {shown(values)}; try num_steps: 100")
    return values


@checked
def with_overrides(values: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Tables with the values of overrides put in; a value is written as in TOML, and any other text is a text.

    ValueError: not name=value, or an unknown field.
    """
    found = {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}
    for text in overrides:
        name, equals, written = (part.strip() for part in text.partition("="))
        if not equals:
            raise ValueError(f"an override must be name=value: got {text!r}; try optimizer.lr=1e-3")
        if name not in (names := field_names()):
            raise _unknown(name, names)
        try:
            value = parse_toml(f"value = {_PYTHON.get(written, written)}")["value"]
        except ValueError:
            value = written
        section, _, key = name.rpartition(".")
        table = found.setdefault(section, {}) if section else found
        if isinstance(table, dict):  # if not, `parse_config` refuses the section
            table[key] = value
    return found


@checked
def parse_config(values: Mapping[str, Any], where: str = "the configuration") -> TrainConfig:
    """A configuration from tables. `where` begins each message. ValueError as `read_config`."""
    try:
        return _record(TrainConfig, values, "")
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def field_names() -> list[str]:
    """All fields, as "section.field"."""
    found = list[str]()
    for name, kind in hints_of(TrainConfig).items():
        found += [f"{name}.{one.name}" for one in fields(kind)] if is_dataclass(kind) else [name]
    return found


def _record(kind: type[Any], values: Any, section: str) -> Any:
    if not isinstance(values, Mapping):
        raise ValueError(f"{section} must be a table of fields: got {shown(values)}; write [{section}]")
    hints, defaults = hints_of(kind), {one.name: one.default for one in fields(kind)}
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{section}.{key}" if section else str(key)
        if key not in defaults:
            raise _unknown(name, field_names() if section else [*field_names(), *defaults])
        hint: Any = hints[key]
        if is_dataclass(hint):
            found[key] = _record(hint, value, name)  # pyright: ignore[reportArgumentType]
        else:
            found[key] = _field(name, value, hint, defaults[key])
    return kind(**found)


def _field(name: str, value: Any, hint: Any, default: Any) -> Any:
    """The value of a field. Raises ValueError for one that the field does not allow."""
    if value == "none" and fits(None, hint):
        return None
    check_type(name, value, hint, list(default) if isinstance(default, tuple) else default)
    if without_bounds(hint) is float:
        return float(value)
    return tuple(value) if isinstance(value, list) else value


def _unknown(name: str, names: Sequence[str]) -> ValueError:
    """The error for an unknown field, with the nearest ones, also of other sections."""
    last = name.rpartition(".")[2]
    near = [one for one in names if one.rpartition(".")[2] == last] or get_close_matches(name, names, n=3, cutoff=0.5)
    if not near:
        return unknown_name("field", name, names)
    return ValueError(f"unknown field {shown(name)}: did you mean {' or '.join(near)}?")


class _Yaml(yaml.SafeLoader):
    """PyYAML's safe loader, with 1e-3 and inf as numbers."""


_Yaml.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?([0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+|inf)$"),
    list("-+0123456789i"),
)
