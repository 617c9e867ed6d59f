"""Published measurements as rows of a file, read strictly, with one error for an invalid row.

One JSON object per line:

    id          FAMILY-anything; rows of one family are reported together
    model layers, hidden, heads, kv_heads, ffn, seq, vocab, name, params or params_b; for mixtures of experts experts,
                experts_per_token, expert_ffn, expert_imbalance, shared_experts, dense_layers, mtp_layers
    hardware    gpu, gpus, gpus_per_node, nodes, interconnect, cluster
    parallel    dp, tp, pp, cp, ep, etp, vpp, zero_stage, zero_shard_group (ranks that split ZeRO's states), fsdp,
                sequence_parallel, ep_overlap, model_parallel (tp x pp),
                offload: states kept by the host, "optimizer", "activations" or both
    batch       global (sequences in a step), micro, grad_accum, local (sequences of one replica in a step)
    measured    iteration_s, tokens_per_s, model_tflops_per_gpu, mfu, memory_gib_per_gpu, ... (measured.py)
    precision, recompute, schedule, optimizer, dispatcher, graphs, attention_flops, notes, kind, how_read: text
    software    its name if the source states it, otherwise the rule that chose it, "deduced by C5c", or "unknown"
    stack       the software, a name of lablib/plan/stack.py;  date: of the measurement, its year first (2024-06)
    source      title and url;  scorable: true or false

A field that is missing, of the wrong type, outside every plausible size, or nearly a known name is an error with its
line (fields.py has each field's kind and range, and other names of it). A field of any other name is not used, and
listed in `PublishedRow.unused`; known fields for readers only are LABELS of fields.py. Fields that a source leaves open
(heads, micro-batch, recomputation) may be missing: case.py has the rules. Rows with `"scorable": false` are not read
further.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lablib.text.files import parse_json, read_text
from lablib.validation.fields import FIELDS, SECTIONS, SIZES, by_usual_names, checked, path_of, shown, unknown


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One published measurement. Sections hold only known fields, each checked; numbers keep the file's units."""

    line: int  # its line in the file, from 1
    id: str  # its name; `family` is the part before the first "-", `group` the first two parts
    model: Mapping[str, Any]  # model, hardware, parallel, batch, measured, source: the sections of the file
    hardware: Mapping[str, Any]
    parallel: Mapping[str, Any]
    batch: Mapping[str, Any]
    measured: Mapping[str, float]
    source: Mapping[str, str]
    # precision, recompute, schedule, optimizer, dispatcher, notes and the other fields of text, if stated
    texts: Mapping[str, str] = field(default_factory=dict)
    is_scorable: bool = True  # False if the file says that the row is not a measurement of a step
    unused: tuple[str, ...] = ()  # fields with unknown names

    @property
    def family(self) -> str:
        """The source: the id before its first "-"."""
        return self.id.split("-")[0]

    @property
    def group(self) -> str:
        """A table of the source: the id before its second "-"."""
        return "-".join(self.id.split("-")[:2])

    def text(self, name: str) -> str:
        """A text of the row in lower case; "" if it is not stated."""
        return self.texts.get(name, "").lower()


def published_rows() -> list[PublishedRow]:
    """The 296 rows of this package, each with its source."""
    return read_rows(Path(__file__).with_name("published_runs.jsonl"))


def published_mixtures() -> list[PublishedRow]:
    """Published runs of mixtures of experts in this package. They were not used in any fit."""
    return read_rows(Path(__file__).with_name("published_moe_runs.jsonl"))


def published_others() -> list[PublishedRow]:
    """Published runs of other programs and accelerators in this package. No constant was fitted to all of them."""
    names = ("published_other_runs.jsonl", "published_accelerator_runs.jsonl")
    return [row for name in names for row in read_rows(Path(__file__).with_name(name))]


def read_rows(path: str | Path) -> list[PublishedRow]:
    """The rows of a JSON Lines file, without blank lines. ValueError: no row, or the first error with its place."""
    path = Path(path)
    try:
        lines = read_text(path).split("\n")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
    return parse_rows(lines, path.name)


def parse_rows(lines: Iterable[str], name: str = "rows") -> list[PublishedRow]:
    """`read_rows` of lines already read; `name` is the file's name in errors. Raises ValueError as `read_rows`."""
    rows = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                rows.append(_row(line, number))
            except ValueError as error:
                raise ValueError(f"{name}, line {number}: {error}") from None
    if not rows:
        raise ValueError(f"{name} has no rows: give a file of JSON objects, one per line")
    return rows


def _row(line: str, number: int) -> PublishedRow:
    try:
        record = parse_json(line, object_pairs_hook=_without_repetition)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}; one object per line") from None
    if not isinstance(record, dict):
        raise ValueError(f"a row must be a JSON object, {{...}}: got {type(record).__name__}")
    record = _without_null(record)
    if record.get("scorable") is False:
        return PublishedRow(number, str(record.get("id", f"line {number}")), {}, {}, {}, {}, {}, {}, is_scorable=False)
    unused = unknown("", record, (*FIELDS[""], *SECTIONS))
    sections: dict[str, Any] = {}
    for section in SECTIONS:
        given = record.get(section, {})
        if not isinstance(given, dict):
            raise ValueError(f"field {section}: must be an object, {{...}}: got {shown(given)}")
        given = by_usual_names(section, _without_null(given))
        unused += unknown(section, given, FIELDS[section])
        sections[section] = checked(section, given)
    top = checked("", {key: value for key, value in record.items() if key not in SECTIONS})
    if not top.get("id"):
        raise ValueError('field id: missing; give each row a name, "FAMILY-anything"')
    top.pop("scorable", None)
    row = PublishedRow(number, top.pop("id"), **sections, texts=top, unused=tuple(unused))
    _check_nothing_missing(row)
    return row


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object; raises ValueError for a field stated twice."""
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"field {twice}: stated {names.count(twice)} times; leave one")
    return record


def _without_null(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if value is not None}


def _check_nothing_missing(row: PublishedRow) -> None:
    named_only = "name" in row.model and not any(size in row.model for size in SIZES)
    needed = [("hardware", "gpu"), ("hardware", "gpus"), ("model", "seq")]
    needed += [] if named_only else [("model", size) for size in SIZES]
    for section, key in needed:
        if key not in getattr(row, section):
            raise ValueError(f"field {path_of(section, key)}: missing; {FIELDS[section][key].rule()}")
    if not ({"global", "local"} & set(row.batch) or {"micro", "grad_accum"} <= set(row.batch)):
        raise ValueError("field batch.global: missing; the sequences of one step (or local, or micro and grad_accum)")
    if not row.measured:
        names = ", ".join(FIELDS["measured"])
        raise ValueError(f"field measured: missing; one of {names}")
    _check_axes(row)
    _check_counts(row)


def _check_axes(row: PublishedRow) -> None:
    """An axis may be missing if the others give the number of GPUs."""
    split = row.parallel.get("dp", 0) * row.parallel.get("cp", 1)
    for axis in ("tp", "pp"):
        split *= row.parallel.get(axis, 1)
    missing = [axis for axis in ("tp", "pp") if axis not in row.parallel]
    if missing and split and split != row.hardware["gpus"]:
        raise ValueError(
            f"field {path_of('parallel', missing[0])}: missing; the others give {split} ranks, hardware.gpus is "
            f"{row.hardware['gpus']}"
        )


def _check_counts(row: PublishedRow) -> None:
    """Values stated twice must be equal."""
    axes, hardware = row.parallel, row.hardware
    if "model_parallel" in axes and axes["model_parallel"] != axes.get("tp", 1) * axes.get("pp", 1):
        raise ValueError(
            f"field parallel.model_parallel: must be tp x pp: got {axes['model_parallel']} and {axes.get('tp', 1)} x "
            f"{axes.get('pp', 1)}"
        )
    nodes, gpus = hardware.get("nodes"), hardware["gpus"]
    if nodes and nodes > gpus:
        raise ValueError(f"field hardware.nodes: must be hardware.gpus or fewer: got {nodes} and {gpus}")
    if nodes and "gpus_per_node" in hardware and -(-gpus // hardware["gpus_per_node"]) != nodes:
        raise ValueError(
            f"field hardware.nodes: must be gpus / gpus_per_node: got {nodes} and {gpus} / {hardware['gpus_per_node']}"
        )
