"""User-defined clusters in TOML files: read, check and write.

A file starts from a cluster of the catalogue and changes some figures, or gives all of them:

    base = "dgx-h100"                      # optional: source of the figures not given below
    devices_per_node = 4
    inter = "roce-400"                     # a link of the catalogue, or a table as below
    collective_overhead_s = 12e-6
    uses_nvls = true                       # all-reduces may be added up in the switch

    [device]                               # or device = "A100-80GB-SXM"
    base = "H100-80GB-SXM"                 # optional; without it, the device of the file's base
    memory_bytes = 96e9
    peak_flops_per_s = { bfloat16 = 800e12 }   # the other dtypes keep their peaks

    [topology]
    kind = "fat tree"                      # or "dragonfly", "torus"
    oversubscription = 2.0

    [profile]                              # free text: when and how the figures were measured
    date = "2026-11-21"

Names and units are the same as in the records (`Cluster`, `Device`, `Link`, the topologies): seconds, bytes, FLOP/s. A
figure far from any machine's, probably in another unit, is refused (plausible.py); `unusual = true` at the top allows a
bandwidth that does not match the device's peak.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_type_hints

from lablib.errors import unknown_name
from lablib.hardware.cluster import Cluster
from lablib.hardware.device import Device
from lablib.hardware.devices import DEVICES
from lablib.hardware.link import Link
from lablib.hardware.links import LINKS
from lablib.hardware.plausible import check_plausible, unlikely_together
from lablib.hardware.topology import Dragonfly, FatTree, Torus
from lablib.signature import checked
from lablib.text.files import parse_toml, read_text, write_text
from lablib.text.toml import toml_rows

_TOPOLOGIES: dict[str, type] = {"fat tree": FatTree, "dragonfly": Dragonfly, "torus": Torus}
_DTYPES = ("float64", "float32", "tfloat32", "float16", "bfloat16", "float8", "float4", "int8")
_SHORT = {"bf16": "bfloat16", "tf32": "tfloat32", "half": "float16"} | {
    f"fp{bits}": f"float{bits}" for bits in (64, 32, 16, 8, 4)
}
_WORDS = {str: "text", bool: "true or false", int: "a whole number"}
_RECORDS: dict[type, Mapping[str, Any]] = {Device: DEVICES, Link: LINKS}


@checked
def load_cluster(path: str | Path) -> Cluster:
    """The cluster that a TOML file describes.

    Raises:
        ValueError: no such file, not TOML, an unknown or missing key, a value of the wrong type, a figure that is
            impossible or probably in another unit. The message names the file and the table.
    """
    file = Path(path)
    try:
        table = parse_toml(read_text(file))
    except OSError as error:
        raise ValueError(f"{file}: cannot be read ({error.strerror}); give the path of a TOML file") from None
    except ValueError as error:
        raise ValueError(f"{file}: not TOML: {error}") from None
    from lablib.hardware.catalogue import CLUSTERS  # which imports this file

    base = _base(table, CLUSTERS, f"{file}", "cluster")
    is_unusual = table.pop("unusual", False)
    if not isinstance(is_unusual, bool):
        raise ValueError(f"{file}: unusual is true or false: got {is_unusual!r}")
    given = {"name": file.stem} | table
    if base is not None and "source" not in table:
        given["source"] = f"{base.source}; changed in {file.name}"
    cluster = _record(Cluster, given, base, str(file), "")
    if not is_unusual and (doubt := unlikely_together(cluster)):
        raise ValueError(f"{file}: {doubt}")
    return cluster


@checked
def save_cluster(cluster: Cluster, path: str | Path) -> None:
    """Write all figures of a cluster to a TOML file: `load_cluster(path)` gives an equal one.

    Raises:
        ValueError: a topology of another kind, or a figure that `load_cluster` would refuse.
        OSError: the file cannot be written.
    """
    file = Path(path)
    text = cluster_text(cluster, str(file))
    for record, where in (
        (cluster, ""),
        (cluster.device, "device"),
        (cluster.intra, "intra"),
        (cluster.inter, "inter"),
    ):
        check_plausible(record, str(file), where)
    write_text(file, text)


def cluster_text(cluster: Cluster, file: str = "a cluster") -> str:
    """The cluster as TOML, which `load_cluster` reads. Raises ValueError, with the file's name, for odd topologies."""
    lines: list[str] = ["unusual = true"] if unlikely_together(cluster) else []
    tables: list[str] = []
    for name, value in _given(cluster).items():
        if isinstance(value, Device | Link):
            tables += ["", f"[{name}]", *toml_rows(_given(value))]
        elif name == "topology":
            tables += ["", "[topology]", *toml_rows({"kind": _kind(value, file)} | _given(value, but=("name",)))]
        elif name == "profile":
            tables += ["", "[profile]", *toml_rows(dict(value))] if value else []
        else:
            lines += toml_rows({name: value})
    return "\n".join([*lines, *tables]) + "\n"


# ---- reading ----


def _base(table: Mapping[str, Any], known: Mapping[str, Any], where: str, kind: str) -> Any:
    if "base" not in table:
        return None
    name = table["base"]
    if not isinstance(name, str) or name not in known:
        raise _at(where, unknown_name(kind, name, list(known)))
    return known[name]


def _at(where: str, error: Exception) -> ValueError:
    return ValueError(f"{where}: {error}")


def _record(kind: type, table: Any, base: Any, file: str, where: str) -> Any:
    """A record from a table: unknown keys refused, values converted, missing fields from the base."""
    place = f"{file}, [{where}]" if where else file
    hints = get_type_hints(kind)
    names = [field.name for field in fields(kind) if not (where == "topology" and field.name == "name")]
    valid = [*names, "kind" if where == "topology" else "base"]
    for key in table:
        if key not in valid:
            raise _at(place, unknown_name("key", key, valid))
    values = {}
    for name in names:
        if name in table:
            inherited = getattr(base, name, None)
            values[name] = _value(hints[name], name, table[name], inherited, file, f"{where}.{name}" if where else name)
    if base is None:
        needed = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
        if missing := [name for name in needed if name not in values]:
            raise ValueError(
                f"{place}: missing {', '.join(missing)}; give {'it' if len(missing) == 1 else 'them'}, "
                'or start from a known one with base = "..."'
            )
    try:
        record = kind(**values) if base is None else replace(base, **values)
    except ValueError as error:
        raise _at(place, error) from None
    check_plausible(record, file, where)
    return record


def _value(hint: Any, name: str, value: Any, inherited: Any, file: str, where: str) -> Any:
    """A TOML value in the record's type. Raises ValueError with the expected type."""
    if hint in _RECORDS:
        if isinstance(value, str):
            return _base({"base": value}, _RECORDS[hint], f"{file}, {where}", hint.__name__.lower())
        if isinstance(value, dict):
            start = _base(value, _RECORDS[hint], f"{file}, [{where}]", hint.__name__.lower())
            return _record(hint, value, start or inherited, file, where)
        raise _wrong(file, where, value, "a name of the catalogue or a table")
    if name == "topology":
        return _topology(value, inherited, file)
    if hint in _WORDS:
        return value if type(value) is hint else _refuse(file, where, value, _WORDS[hint])
    if getattr(hint, "__origin__", None) is tuple:
        is_list = isinstance(value, list) and all(isinstance(v, int) and not isinstance(v, bool) for v in value)
        return tuple(value) if is_list else _refuse(file, where, value, "a list of whole numbers")
    if hint == Mapping[str, str]:
        is_text = isinstance(value, dict) and all(isinstance(v, str) for v in value.values())
        return value if is_text else _refuse(file, where, value, "a table of text")
    if hint == Mapping[str, float]:
        if not isinstance(value, dict):
            raise _wrong(file, where, value, "a table of numbers")
        if name != "element_s":  # its keys are operators
            for key in value:
                _check_dtype(key, f"{file}, {where}")
        return dict(inherited or {}) | {key: _number(v, file, f"{where}.{key}") for key, v in value.items()}
    return _number(value, file, where)


def _check_dtype(name: str, where: str) -> None:
    """Refuse a misspelled or abbreviated dtype: its peak would apply to no product."""
    meant = _SHORT.get(name.lower()) or next(iter(get_close_matches(name.lower(), _DTYPES, 1, 0.8)), name)
    if name not in _DTYPES and meant != name:
        raise _at(where, ValueError(f"unknown dtype {name!r}: did you mean {meant!r}?"))


def _number(value: Any, file: str, where: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_endless = isinstance(value, int) and abs(value) >= 10**308  # no float is as large
    return float(value) if is_number and not is_endless else _refuse(file, where, value, "a number")


def _topology(value: Any, inherited: Any, file: str) -> Any:
    if isinstance(value, str):
        value = {"kind": value}
    if not isinstance(value, dict):
        raise _wrong(file, "topology", value, "a kind or a table")
    kind = value.get("kind", getattr(inherited, "name", "fat tree"))
    if not isinstance(kind, str) or kind not in _TOPOLOGIES:
        raise _at(f"{file}, [topology]", unknown_name("kind", kind, list(_TOPOLOGIES)))
    cls = _TOPOLOGIES[kind]
    return _record(cls, value, inherited if isinstance(inherited, cls) else cls(), file, "topology")


def _wrong(file: str, where: str, value: Any, expected: str) -> ValueError:
    return ValueError(f"{file}: {where} must be {expected}: got {value!r}")


def _refuse(file: str, where: str, value: Any, expected: str) -> Any:
    raise _wrong(file, where, value, expected)


# ---- writing ----


def _given(record: Any, but: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields of a record that can be written: TOML has no None, the default of every such field."""
    values = {field.name: getattr(record, field.name) for field in fields(record) if field.name not in but}
    return {name: value for name, value in values.items() if value is not None}


def _kind(topology: Any, file: str) -> str:
    for kind, cls in _TOPOLOGIES.items():
        if type(topology) is cls and topology.name == kind:
            return kind
    raise ValueError(f"{file}: a topology is one of {', '.join(_TOPOLOGIES)}: {topology!r} cannot be written")
