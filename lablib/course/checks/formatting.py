"""Format a value on one line: tensors and arrays by shape, type and a few elements.

>>> short_repr(1 / 3), short_repr("a " * 100)[-6:]
('0.333333', ' a ...')
"""

from types import FunctionType
from typing import Any

_LONGEST = 160


def short_repr(value: Any, digits: int = 6) -> str:
    """A value on one line, shortened; tensors and arrays with shape and type, numbers to `digits`."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        shape = "x".join(map(str, value.shape)) or "scalar"
        kind = str(value.dtype).removeprefix("torch.")
        if getattr(value, "is_meta", False):
            return f"{kind} tensor [{shape}] without values"
        numbers = value.reshape(-1)[:6].tolist()
        more = ", ..." if value.reshape(-1).shape[0] > 6 else ""
        return f"{kind} [{shape}]: {', '.join(f'{number:.{digits}g}' for number in numbers)}{more}"
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    if isinstance(value, list | tuple) and any(hasattr(item, "shape") for item in value):
        return _cut("; ".join(short_repr(item) for item in value))
    if isinstance(value, FunctionType):  # its repr is only an address
        return f"the function {value.__name__}"
    if hasattr(value, "param_groups"):  # an optimizer: its settings are many lines
        return type(value).__name__
    return _cut(" ".join(repr(value).split()))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 4] + " ..."
