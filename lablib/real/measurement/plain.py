"""Conversion of a measurement to and from JSON values, for ranks of several nodes.

A record is rebuilt only from the types of its fields: network input creates no objects of other classes.
"""

from dataclasses import fields, is_dataclass, replace
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from lablib.real.measurement.measure import Measurement


def measurement_of(plain: Any) -> Measurement:
    """A measurement from `asdict` of one, through JSON. Raises TypeError or ValueError for other contents."""
    return _rebuilt(Measurement, plain)


def shifted(measured: Measurement, offset_ns: int) -> Measurement:
    """The measurement on a clock that is `offset_ns` ahead."""
    spans = [replace(s, start_ns=s.start_ns + offset_ns, end_ns=s.end_ns + offset_ns) for s in measured.spans]
    calls = [
        replace(call, start_ns=call.start_ns + offset_ns, end_ns=call.end_ns and call.end_ns + offset_ns)
        for call in measured.calls
    ]
    return replace(measured, start_ns=measured.start_ns + offset_ns, spans=spans, calls=calls)


def _rebuilt(kind: Any, plain: Any) -> Any:
    """A value of this type from its JSON value."""
    arguments = get_args(kind)
    if get_origin(kind) in (Union, UnionType):  # an optional record
        return None if plain is None else _rebuilt(next(one for one in arguments if one is not type(None)), plain)
    if get_origin(kind) in (list, tuple):
        return get_origin(kind)(_rebuilt(arguments[0], value) for value in plain)
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{field.name: _rebuilt(hints[field.name], plain[field.name]) for field in fields(kind)})
    if not isinstance(plain, (str, int, float, bool)):
        raise TypeError(f"a measurement holds numbers and texts: got {type(plain).__name__}")
    return plain
