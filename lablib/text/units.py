"""Numbers with units: one helper picks the prefix, for axes, hovers, tables and summaries.

Prefixes are decimal (1 kB = 1000 B), as for network and memory bandwidths.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from lablib.signature import check_type

MICRO = "\N{MICRO SIGN}"
_PREFIXES = {-9: "n", -6: MICRO, -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P"}
# No fractions of a byte; no prefixes above seconds.
_RANGE = {
    "s": (-9, 0),
    "B": (0, 15),
    "B/s": (0, 15),
    "FLOP": (0, 15),
    "FLOP/s": (0, 15),
    "FLOP/J": (0, 15),
    "W": (0, 15),
}


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit with its prefix: a number is written as `value / scale`, then `symbol`."""

    symbol: str
    scale: float

    def of(self, value: float) -> float:
        """The number to write for a value given in the base unit."""
        return value / self.scale


def unit_for(values: float | Iterable[float], base: str) -> Unit:
    """The unit in which the largest of `values` is a number from 1 to 999.

    Args:
        values: one number or several, in the base unit.
        base: "s", "B", "B/s", "FLOP", "FLOP/s", "FLOP/J", "W"; any other text is kept without a prefix.

    >>> unit_for([0.0021, 0.0135], "s").symbol, unit_for(26_214_400, "B").symbol, unit_for(3, "steps").symbol
    ('ms', 'MB', 'steps')
    """
    check_type("values", values, float | Iterable[float])
    check_type("base", base, str)
    numbers = list(values) if isinstance(values, Iterable) else [values]
    return _unit_of(max((abs(float(v)) for v in numbers if math.isfinite(v)), default=0.0), base)


def _unit_of(largest: float, base: str) -> Unit:
    if base not in _RANGE or largest == 0.0:
        return Unit(base, 1.0)
    low, high = _RANGE[base]
    # 0.9999999 counts as 1: a time of one millisecond computed in floating point is not "1000 us".
    exponent = min(max(3 * math.floor((math.log10(largest) + 1e-9) / 3), low), high)
    return Unit(_PREFIXES[exponent] + base, 10.0**exponent)


def format_quantity(value: float, base: str = "", digits: int = 3) -> str:
    """One number with a suitable unit, to this many significant digits, or as a whole number if it has more.

    Args:
        value: in the base unit.
        base: as for `unit_for`; "" and "count" are written without a unit, a plural as in `plural`.
        digits: 1 to 17.

    >>> format_quantity(0.01234, "s"), format_quantity(25e6, "B"), format_quantity(0, "B")
    ('12.3 ms', '25 MB', '0 B')
    """
    check_type("value", value, float)
    check_type("base", base, str)
    if not (isinstance(digits, int) and 1 <= digits <= 17):
        raise ValueError(f"digits must be a whole number from 1 to 17: got {digits!r}; try 3")
    if not math.isfinite(value):
        return f"{value} {base}".strip()
    unit = _unit_of(abs(float(value)), base)
    symbol = "" if base in ("count", "1") else unit.symbol
    scaled = unit.of(value)
    # `g` alone turns 1234 into 1.23e+03, so numbers past the digits are written whole.
    number = f"{scaled:,.0f}" if 10**digits <= abs(scaled) < 1e15 else f"{scaled:.{digits}g}"
    return f"{number} {_singular(symbol) if number == '1' and base not in _RANGE else symbol}".strip()


def _singular(words: str) -> str:
    """Singular of a plural; rates, abbreviations and other words unchanged."""
    if words.endswith(("ches", "shes", "sses", "xes")):
        return words.removesuffix("es")
    return words if "/" in words or len(words) < 3 or words.endswith("ss") else words.removesuffix("s")


def plural(number: int, words: str) -> str:
    """A count with its noun, in the singular for one.

    >>> plural(1, "ranks"), plural(1, "switches"), plural(1500, "calls"), plural(0, "nodes")
    ('1 rank', '1 switch', '1,500 calls', '0 nodes')
    """
    return f"{number:,} {_singular(words) if number == 1 else words}"


def axis_title(quantity: str, unit: Unit | str) -> str:
    """The title of an axis: quantity, then unit in brackets; a ratio and a count have none.

    >>> axis_title("time", "ms"), axis_title("time of ring / time of tree", ""), axis_title("step", "count")
    ('time (ms)', 'time of ring / time of tree', 'step')
    """
    symbol = unit.symbol if isinstance(unit, Unit) else unit
    return quantity if symbol in ("", "count") else f"{quantity} ({symbol})"


def largest_divisor(number: int, most: int) -> int:
    """The largest divisor of `number` that is at most `most`, for the remedy of a message; 1 if none is near.

    >>> largest_divisor(12, 5), largest_divisor(12, 100), largest_divisor(13, 12)
    (4, 12, 1)
    """
    start = min(most, number)
    return next((one for one in range(start, max(0, start - 100_000), -1) if number % one == 0), 1)


def log_ticks(values: Iterable[float], base: str, max_ticks: int = 10) -> tuple[list[float], list[str]]:
    """Powers of ten over the values, with labels such as "10 kB", for a logarithmic axis in the base unit.

    >>> log_ticks([900, 2e6], "B")
    ([100.0, 1000.0, 10000.0, 100000.0, 1000000.0, 10000000.0], ['100 B', '1 kB', '10 kB', '100 kB', '1 MB', '10 MB'])
    """
    positive = [float(v) for v in values if v > 0 and math.isfinite(v)] or [1.0]
    first = math.floor(math.log10(min(positive)) + 1e-9)
    last = math.ceil(math.log10(max(positive)) - 1e-9)
    step = max(1, math.ceil((last - first + 1) / max_ticks))
    ticks = [10.0**e for e in range(first, last + 1, step)]
    return ticks, [format_quantity(t, base) for t in ticks]
