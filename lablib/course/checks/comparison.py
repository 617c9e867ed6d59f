"""The first difference of two values: numbers, texts, tensors, arrays, and containers of these.

>>> difference([1.0, 2.5], [1.0, 2.0], rtol=1e-9, atol=0.0)
('2.5 at [1]', '2')
"""

from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from math import inf
from numbers import Real
from typing import Any

from lablib.course.checks.formatting import short_repr
from lablib.text.units import plural


def difference(saw: Any, expected: Any, rtol: float | None, atol: float, at: str = "") -> tuple[str, str] | None:
    """The first place where the two differ, as (saw, expected), or None. `rtol=None` asks for equality."""
    where = f" at {at}" if at else ""
    if is_array(expected):
        return _array_difference(saw, expected, rtol, atol, where)
    if isinstance(expected, list | tuple):
        if not isinstance(saw, list | tuple):
            return short_repr(saw) + where, f"a {type(expected).__name__} of {len(expected)}"
        if len(saw) != len(expected):
            got, want = (plural(len(value), "items") for value in (saw, expected))
            return f"{got}{where}: {short_repr(saw)}", f"{want}: {short_repr(expected)}"
        pairs = [(f"{at}[{i}]", s, e) for i, (s, e) in enumerate(zip(saw, expected, strict=True))]
    elif isinstance(expected, Mapping):
        if not isinstance(saw, Mapping) or set(saw) != set(expected):
            return (f"keys {sorted(map(str, saw))}" if isinstance(saw, Mapping) else short_repr(saw)) + where, (
                f"keys {sorted(map(str, expected))}"
            )
        pairs = [(f"{at}[{key!r}]", saw[key], expected[key]) for key in expected]
    else:
        if _same(saw, expected, rtol, atol):
            return None
        got, want = distinguishable(short_repr, plain_number(saw), expected)
        return got + where, want
    return next((found for place, s, e in pairs if (found := difference(s, e, rtol, atol, place))), None)


def distinguishable(tell: Callable[..., str], *values: Any) -> list[str]:
    """Each value as text, `tell(value)`; numbers with equal text get more digits, `tell(value, digits=n)`."""
    texts = [tell(value) for value in values]
    if len(set(texts)) < len(values) and all(isinstance(value, Real) for value in values):
        with_digits = ([tell(value, digits=digits) for value in values] for digits in range(5, 18))
        texts = next((more for more in with_digits if len(set(more)) == len(values)), texts)
    return texts


def plain_number(value: Any) -> Any:
    """The number of a one-element tensor or array, a fraction or decimal as a float; other values unchanged."""
    if is_array(value):
        flat = value.reshape(-1)
        return flat.tolist()[0] if flat.shape[0] == 1 else value
    return float(value) if isinstance(value, Fraction | Decimal) else value


def _same(saw: Any, expected: Any, rtol: float | None, atol: float) -> bool:
    """Are two plain values equal, within the tolerance if there is one?"""
    if expected is None or isinstance(expected, str):  # a type may define itself equal to everything
        return saw is expected if expected is None else isinstance(saw, str) and str.__eq__(expected, saw) is True
    saw = plain_number(saw)
    if is_array(saw):
        return False
    if not isinstance(expected, int | float):
        equals: Any = type(expected).__eq__  # not `==`, which also calls the method of `saw`
        return equals(expected, saw) is True
    if not isinstance(saw, int | float):
        return False
    saw = float(saw) if isinstance(saw, float) else int(saw)  # a subclass may define every difference as 0
    if saw == expected or rtol is None or isinstance(expected, bool):
        return bool(saw == expected)
    return abs(saw - expected) <= atol + rtol * abs(expected) < inf


def _array_difference(saw: Any, expected: Any, rtol: float | None, atol: float, where: str) -> tuple[str, str] | None:
    """`difference` for tensors and arrays: shape, then type where equality is asked, then the worst element."""
    import numpy as np

    if not is_array(saw) or tuple(saw.shape) != tuple(expected.shape):
        return short_repr(saw) + where, short_repr(expected)
    if rtol is None and str(saw.dtype) != str(expected.dtype):
        return f"{short_repr(saw)}{where}", f"type {str(expected.dtype).removeprefix('torch.')}: {short_repr(expected)}"
    got, want = _numbers(saw), _numbers(expected)
    with np.errstate(invalid="ignore"):
        off = np.where(got == want, 0.0, np.abs(got - want))  # inf == inf; inf - inf is not a number
    allowed = 0.0 if rtol is None else atol + rtol * np.abs(want)
    bad = ~((off <= allowed) & (off < inf))  # a share of an infinite number allows any other
    if not bad.any():
        return None
    worst = np.unravel_index(int(np.argmax(np.where(bad, np.nan_to_num(off, nan=np.inf), -1.0))), off.shape)
    element = f"[{', '.join(map(str, worst))}]" if worst else ""
    place = where + element if where else element and f" at {element}"
    count = f", {int(bad.sum())} of {bad.size} elements differ" if bad.size > 1 else ""
    told, wanted = distinguishable(lambda number, digits=12: f"{number:.{digits}g}", got[worst], want[worst])
    return f"{told}{place}{count}", wanted


def _numbers(array: Any) -> Any:
    """The values as a numpy array, wide enough to hold them exactly."""
    import numpy as np

    if hasattr(array, "detach"):
        array = array.detach().cpu()
        exact = array.is_complex() or not (array.is_floating_point())
        array = array.numpy() if exact else array.double().numpy()
    array = np.asarray(array)
    return array.astype(np.float64) if array.dtype == bool else array


def is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype") and hasattr(value, "reshape")
