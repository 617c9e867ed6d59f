"""Published measurements as rows of a file: read strictly, with one clear error for what cannot be meant.

One JSON object a line:

    id          FAMILY-anything; rows of one family are reported together
    model       layers, hidden, heads, kv_heads, ffn, seq, vocab, name, params or params_b; where it has them experts,
                experts_per_token, expert_ffn, shared_experts, dense_layers, mtp_layers
    hardware    gpu, gpus, gpus_per_node, nodes, interconnect, cluster
    parallel    dp, tp, pp, cp, ep, etp, vpp, zero_stage, fsdp, sequence_parallel, ep_overlap
    batch       global (sequences in a step), micro, grad_accum, local (sequences of one replica in a step)
    measured    iteration_s, tokens_per_s, model_tflops_per_gpu, mfu, memory_gib_per_gpu, ... (measured.py)
    precision, recompute, schedule, optimizer, dispatcher, graphs, attention_flops, notes, kind: text
    source      title and url;  scorable: true or false

A field that is missing, of the wrong type, outside every plausible size, or nearly a known name is an error with its
line. A field of another name is kept out of the model and listed in `Row.unused`. What a source leaves open (heads,
micro-batch, recomputation) may be missing: case.py has the rules. Rows that say `"scorable": false` are not read on.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

COUNT, NUMBER, TEXT, FLAG, ANY = "a whole number", "a number", "text", "true or false", "anything"


@dataclass(frozen=True, slots=True)
class Field:
    """What one field may hold: its kind, the plausible range of a number, and its unit."""

    kind: str
    least: float = 1
    most: float = 1e9
    unit: str = ""

    def rule(self) -> str:
        """The field in words: "a whole number from 1 to 10,000"."""
        if self.kind not in (COUNT, NUMBER):
            return self.kind
        return f"{self.kind} from {self.least:,g} to {self.most:,g}{self.unit and ' ' + self.unit}"


def _counts(names: str, most: float) -> dict[str, Field]:
    return {name: Field(COUNT, 1, most) for name in names.split()}


def _texts(names: str) -> dict[str, Field]:
    return {name: Field(TEXT) for name in names.split()}


_SHARE = Field(NUMBER, 1e-4, 1, "(a share of the peak: 0.43, not 43)")
_TFLOPS = Field(NUMBER, 0.01, 2e4, "TFLOP/s")
_RATE = Field(NUMBER, 1e-3, 1e10, "tokens a second")
_MEMORY = Field(NUMBER, 0.05, 1000, "of that unit for one GPU")

FIELDS: Mapping[str, Mapping[str, Field]] = {
    "": _texts("id attention_flops dispatcher graphs how_read kind notes optimizer precision recompute schedule")
    | {"scorable": Field(FLAG)},
    "model": _counts("layers experts experts_per_token shared_experts dense_layers mtp_layers", 10_000)
    | _counts("hidden heads kv_heads head_dim ffn expert_ffn vocab", 10_000_000)
    | _counts("seq", 100_000_000)
    | {"name": Field(TEXT), "params": Field(COUNT, 1000, 1e15), "params_b": Field(ANY)},
    "hardware": _texts("gpu interconnect cluster")
    | _counts("gpus nodes", 10_000_000)
    | _counts("gpus_per_node", 100_000),
    "parallel": _counts("dp tp pp cp ep etp model_parallel", 10_000_000)
    | _counts("vpp", 10_000)
    | {
        "sequence_parallel": Field(FLAG),
        "ep_overlap": Field(FLAG),
        "zero_stage": Field(COUNT, 0, 3),
        "fsdp": Field(ANY),
    },
    "batch": _counts("global micro local grad_accum", 100_000_000),
    "measured": {
        "iteration_s": Field(NUMBER, 1e-5, 1e5, "s"),
        "tokens_per_s": _RATE,
        "tokens_per_s_per_gpu": _RATE,
        "model_tflops_per_gpu": _TFLOPS,
        "hw_tflops_per_gpu": _TFLOPS,
        "mfu": _SHARE,
        "hfu": _SHARE,
        "pct_peak": _SHARE,
        "memory_gib_per_gpu": _MEMORY,
        "memory_gb_per_gpu": _MEMORY,
    },
    "source": _texts("title url"),
}
# Other names of the same fields: of experts above all, whose names no two tables share.
ALIASES: Mapping[str, Mapping[str, str]] = {
    "model": {
        **dict.fromkeys(("num_experts", "n_experts", "moe_experts"), "experts"),
        **dict.fromkeys(("top_k", "topk", "moe_top_k", "active_experts", "experts_active"), "experts_per_token"),
        **dict.fromkeys(("moe_ffn", "expert_hidden", "moe_hidden", "ffn_expert", "ffn_moe"), "expert_ffn"),
        **dict.fromkeys(("shared_expert", "n_shared_experts", "num_shared_experts"), "shared_experts"),
        **dict.fromkeys(("d_head", "head_size", "kv_channels"), "head_dim"),
    },
    "parallel": {"vp": "vpp"},
    "batch": {"gbs": "global", "mbs": "micro", "ga": "grad_accum"},
}
SECTIONS = tuple(name for name in FIELDS if name)
# The sizes of a model: all are needed, or none and a name (architecture.py knows some).
SIZES = ("layers", "hidden", "vocab")


@dataclass(frozen=True, slots=True)
class Row:
    """One published measurement. Sections hold only known fields, each checked; numbers keep the file's units.

    Attributes:
        line: where it stands in the file, from 1.
        id: its name; `family` is the part before the first "-", `group` the first two parts.
        model, hardware, parallel, batch, measured, source: the sections of the file.
        texts: precision, recompute, schedule, optimizer, notes, kind and how_read, where stated.
        is_scorable: False where the file says that the row is no measurement of a step.
        unused: fields of names nobody knows.
    """

    line: int
    id: str
    model: Mapping[str, Any]
    hardware: Mapping[str, Any]
    parallel: Mapping[str, Any]
    batch: Mapping[str, Any]
    measured: Mapping[str, float]
    source: Mapping[str, str]
    texts: Mapping[str, str] = field(default_factory=dict)
    is_scorable: bool = True
    unused: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        return self.id.split("-")[0]

    @property
    def group(self) -> str:
        return "-".join(self.id.split("-")[:2])

    def text(self, name: str) -> str:
        """A text of the row in lower case; "" where it is not stated."""
        return self.texts.get(name, "").lower()


def published_rows() -> list[Row]:
    """The 296 rows that come with this package, each with its source."""
    return read_rows(Path(__file__).with_name("published_runs.jsonl"))


def published_mixtures() -> list[Row]:
    """Published runs of mixtures of experts, which come with this package too. Nothing was fitted to them."""
    return read_rows(Path(__file__).with_name("published_moe_runs.jsonl"))


def read_rows(path: str | Path) -> list[Row]:
    """The rows of a JSON Lines file; blank lines are passed over.

    Raises:
        ValueError: the file cannot be read or has no row; or the first thing wrong in it, with file, line and field.
    """
    path = Path(path)
    try:
        lines = path.read_text("utf-8-sig").split("\n")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text in UTF-8: give a file of JSON objects, one a line") from None
    return parse_rows(lines, path.name)


def parse_rows(lines: Iterable[str], name: str = "rows") -> list[Row]:
    """`read_rows` of lines already read; `name` stands for the file in errors."""
    rows = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                rows.append(_row(line, number))
            except ValueError as error:
                raise ValueError(f"{name}, line {number}: {error}") from None
    if not rows:
        raise ValueError(f"{name} has no rows: give a file of JSON objects, one a line")
    return rows


def _row(line: str, number: int) -> Row:
    try:
        record = json.loads(line, object_pairs_hook=_without_repetition)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}; one object a line") from None
    if not isinstance(record, dict):
        raise ValueError(f"a row must be a JSON object, {{...}}: got {type(record).__name__}")
    record = _without_null(record)
    if record.get("scorable") is False:
        return Row(number, str(record.get("id", f"line {number}")), {}, {}, {}, {}, {}, {}, is_scorable=False)
    unused = _unknown("", record, (*FIELDS[""], *SECTIONS))
    sections: dict[str, Any] = {}
    for section in SECTIONS:
        given = record.get(section, {})
        if not isinstance(given, dict):
            raise ValueError(f"field {section}: must be an object, {{...}}: got {_shown(given)}")
        given = _by_usual_names(section, _without_null(given))
        unused += _unknown(section, given, FIELDS[section])
        sections[section] = _checked(section, given)
    top = _checked("", {key: value for key, value in record.items() if key not in SECTIONS})
    if not top.get("id"):
        raise ValueError('field id: missing; give each row a name, "FAMILY-anything"')
    top.pop("scorable", None)
    row = Row(number, top.pop("id"), **sections, texts=top, unused=tuple(unused))
    _check_nothing_missing(row)
    return row


def _by_usual_names(section: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a section under the names of FIELDS."""
    usual: dict[str, Any] = {}
    for key, value in given.items():
        name = ALIASES.get(section, {}).get(key, key)
        if name in usual and usual[name] != value:
            raise ValueError(f"field {_path(section, name)}: stated under two names, one is {key}; leave one")
        usual[name] = value
    return usual


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose fields are each stated once: of two values nobody knows which is meant."""
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"field {twice}: stated {names.count(twice)} times; leave one")
    return record


def _without_null(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if value is not None}


def _unknown(section: str, given: Mapping[str, Any], known: Iterable[str]) -> list[str]:
    """Fields nobody knows. One that is nearly the name of a known field which is not there is an error."""
    names = list(known)
    strangers = [key for key in given if key not in names]
    for key in strangers:
        near = _nearest(key, [name for name in names if name not in given])
        if near:
            raise ValueError(f"field {_path(section, key)}: unknown; did you mean {_path(section, near)}?")
    return [_path(section, key) for key in strangers]


def _nearest(key: str, names: Iterable[str]) -> str | None:
    """The name that `key` is most likely a slip of the pen for; None where it looks like another word."""
    scored = [(SequenceMatcher(None, key.lower(), name).ratio(), name) for name in names]
    ratio, name = max(scored, default=(0.0, ""))
    return name if ratio >= 0.8 else None


def _checked(section: str, given: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _value(section, key, value) for key, value in given.items() if key in FIELDS[section]}


def _value(section: str, key: str, value: Any) -> Any:
    rule = FIELDS[section][key]
    if (section, key) == ("model", "params_b"):
        return billions(value)
    kinds = {COUNT: int, NUMBER: (int, float), TEXT: str, FLAG: bool, ANY: object}
    if rule.kind == COUNT and isinstance(value, float) and value.is_integer():
        value = int(value)
    is_right_type = isinstance(value, kinds[rule.kind]) and (rule.kind in (FLAG, ANY) or not isinstance(value, bool))
    if not is_right_type or (rule.kind in (COUNT, NUMBER) and not rule.least <= value <= rule.most):
        raise ValueError(f"field {_path(section, key)}: must be {rule.rule()}: got {_shown(value)}")
    return value


def billions(value: Any) -> float:
    """Billions of parameters, from a number of them or from text.

    >>> billions(7.1), billions("175b"), billions("1t"), billions("181B"), billions("350m")
    (7.1, 175.0, 1000.0, 181.0, 0.35)
    """
    a_billion = {"b": 1, "t": 0.001, "m": 1000}
    try:
        text = str(value).strip().lower()
        number = float(text[:-1]) / a_billion[text[-1]] if text[-1:] in a_billion else float(text)
    except ValueError:
        number = -1.0
    if isinstance(value, bool) or not 1e-6 <= number <= 1e6:
        raise ValueError(f'field model.params_b: must be billions of parameters, 7.1 or "7.1b": got {_shown(value)}')
    return number


def _check_nothing_missing(row: Row) -> None:
    named_only = "name" in row.model and not any(size in row.model for size in SIZES)
    needed = [("hardware", "gpu"), ("hardware", "gpus"), ("model", "seq")]
    needed += [] if named_only else [("model", size) for size in SIZES]
    for section, key in needed:
        if key not in getattr(row, section):
            raise ValueError(f"field {_path(section, key)}: missing; {FIELDS[section][key].rule()}")
    if not ({"global", "local"} & set(row.batch) or {"micro", "grad_accum"} <= set(row.batch)):
        raise ValueError("field batch.global: missing; the sequences of one step (or local, or micro and grad_accum)")
    if not row.measured:
        names = ", ".join(FIELDS["measured"])
        raise ValueError(f"field measured: missing; one of {names}")
    _check_axes(row)


def _check_axes(row: Row) -> None:
    """An axis may be left out where the others give the number of GPUs."""
    split = row.parallel.get("dp", 0) * row.parallel.get("cp", 1)
    for axis in ("tp", "pp"):
        split *= row.parallel.get(axis, 1)
    missing = [axis for axis in ("tp", "pp") if axis not in row.parallel]
    if missing and split and split != row.hardware["gpus"]:
        raise ValueError(
            f"field {_path('parallel', missing[0])}: missing; the others give {split} ranks, hardware.gpus is "
            f"{row.hardware['gpus']}"
        )


def _path(section: str, key: str) -> str:
    return f"{section}.{key}" if section else key


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
