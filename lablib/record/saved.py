"""Conversion of records to and from plain values for JSON, for `Run.save` and `Run.load`.

Spans and transfers are tables, a list of values for each, under the names of their fields; allocations are columns, as
in memory. Simplified: routes of transfers are not kept (they are functions), so `Traffic.matrix` of a loaded run sends
each rank's bytes to the next of its group, as for a run on real processes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from lablib.record.allocations import Allocations
from lablib.record.memory import Memory
from lablib.record.timeline import Span, Timeline
from lablib.record.traffic import Traffic, Transfer

Plain = dict[str, Any]


def plain_records(timeline: Timeline, traffic: Traffic, memory: Memory) -> Plain:
    """The records of a run as dictionaries, lists, numbers and texts."""
    return {
        "timeline": {**_others(timeline, "spans"), "spans": _table(timeline.spans, Span)},
        "traffic": {
            **_others(traffic, "transfers"),
            "transfers": _table(traffic.transfers, Transfer, without=("route",)),
        },
        "memory": {**_others(memory, "allocations"), "allocations": _columns(Allocations.of(memory.allocations))},
    }


def records_of(plain: Mapping[str, Any]) -> tuple[Timeline, Traffic, Memory]:
    """Inverse of `plain_records`. KeyError, TypeError, ValueError, AttributeError: other contents."""
    timeline, traffic, memory = (dict(plain[name]) for name in ("timeline", "traffic", "memory"))
    spans = tuple(Span(**row) for row in _rows(timeline.pop("spans")))
    transfers = tuple(Transfer(**row) for row in _rows(traffic.pop("transfers")))
    given = memory.pop("allocations")
    allocations = Allocations(given["columns"], [(name, phase, source) for name, phase, source in given["labels"]])
    return (
        Timeline(spans, **_with_tuples(timeline)),
        Traffic(transfers, **_with_tuples(traffic)),
        Memory(allocations, **_with_tuples(memory)),
    )


def _others(record: Any, left_out: str) -> Plain:
    return {field.name: getattr(record, field.name) for field in fields(record) if field.name != left_out}


def _table(records: Sequence[Any], kind: type, without: Sequence[str] = ()) -> Plain:
    names = [field.name for field in fields(kind) if field.name not in without]
    return {"fields": names, "rows": [[getattr(record, name) for name in names] for record in records]}


def _rows(table: Mapping[str, Any]) -> list[Plain]:
    return [_with_tuples(dict(zip(table["fields"], row, strict=True))) for row in table["rows"]]


def _columns(allocations: Allocations) -> Plain:
    columns = {name: column.tolist() for name, column in allocations.columns.items()}
    return {"columns": columns, "labels": [list(label) for label in allocations.labels]}


def _with_tuples(row: Mapping[str, Any]) -> Plain:
    """Convert the lists of JSON to the tuples of records."""
    return {name: _frozen(value) for name, value in row.items()}


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
