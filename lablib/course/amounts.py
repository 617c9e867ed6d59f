"""How a check writes down what it saw: quantities with their unit, tensors by a few elements.

>>> amount(6291456, "B"), amount(0.00012, "s")
('6.291 MB', '120 us')
"""

from typing import Any

_SCALES: dict[str, list[tuple[float, str]]] = {
    "s": [(1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")],
    "B": [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")],
}
_OF_NOTHING = {"s": (1.0, "s")}  # zero is "0 s" and "0 B"
_LONGEST = 160


def amount(value: float, unit: str = "") -> str:
    """A quantity in the largest unit that leaves at least one before the point. `unit`: "s", "B", any other, or ""."""
    scales = _SCALES.get(unit, [(1.0, unit)])
    factor, name = next(
        (scale for scale in scales if abs(value) >= scale[0]),
        _OF_NOTHING.get(unit, scales[-1]) if not value else scales[-1],
    )
    return f"{value / factor:.4g} {name}".rstrip()


def brief(value: Any) -> str:
    """A value on one line, cut where it gets long; tensors and arrays with shape and type."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        shape = "x".join(map(str, value.shape)) or "scalar"
        kind = str(value.dtype).removeprefix("torch.")
        if getattr(value, "is_meta", False):
            return f"{kind} tensor [{shape}] without values"
        numbers = value.reshape(-1)[:6].tolist()
        more = ", ..." if value.reshape(-1).shape[0] > 6 else ""
        return f"{kind} [{shape}]: {', '.join(f'{number:.6g}' for number in numbers)}{more}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple) and any(hasattr(item, "shape") for item in value):
        return _cut("; ".join(brief(item) for item in value))
    return _cut(" ".join(repr(value).split()))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 4] + " ..."
