"""The axes of a figure on a static picture: from the numbers of a trace to pixels, and the marks along the edge."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, log10
from typing import Any

CHARACTER = 6.6  # pixels of a letter of a mark


@dataclass(frozen=True)
class SvgAxis:
    """One axis: `low` is at the pixel `start`, `high` at `end`; both are exponents of ten on a logarithmic axis."""

    layout: dict[str, Any]  # plotly's properties
    low: float
    high: float
    start: float
    end: float
    names: tuple[str, ...] = ()  # the categories of an axis with names, in order

    @property
    def is_log(self) -> bool:
        return self.layout.get("type") == "log"

    def number(self, value: Any) -> float:
        """The value as a number along the axis: the place of a category, the exponent on a logarithmic axis."""
        if isinstance(value, str):
            return float(self.names.index(value)) if value in self.names else float("nan")
        if value is None or (self.is_log and not value > 0):
            return float("nan")
        return log10(value) if self.is_log else float(value)

    def place(self, number: float) -> float:
        """The pixel of a number along the axis."""
        return self.start + (number - self.low) / ((self.high - self.low) or 1.0) * (self.end - self.start)

    def pixel(self, value: Any) -> float:
        return self.place(self.number(value))

    def marks(self) -> list[tuple[float, str]]:
        """Pixel and text of each visible mark."""
        if not self.layout.get("showticklabels", True) or self.layout.get("visible") is False:
            return []
        given, texts = self.layout.get("tickvals"), self.layout.get("ticktext")
        if given is None:
            chosen = range(len(self.names)) if self.names else _round_numbers(self.low, self.high)
            if self.is_log and len(decades := [n for n in chosen if float(n).is_integer()]) > 1:
                chosen = decades
            numbers = [float(number) for number in chosen]
            texts = self.names or [f"{10.0**n if self.is_log else n:g}" for n in numbers]
        else:
            numbers, texts = [self.number(value) for value in given], texts or [f"{value:g}" for value in given]
        low, high = sorted((self.low, self.high))
        slack = 1e-9 * (high - low)
        pairs = zip(numbers, texts, strict=False)
        return [(self.place(n), str(text)) for n, text in pairs if low - slack <= n <= high + slack]

    def room(self) -> float:
        """Width of the longest mark in pixels."""
        return max((CHARACTER * len(plain_text(text)) for _, text in self.marks()), default=0.0)


def plain_text(text: str) -> str:
    """The text without plotly's tags; a power with a ^."""
    parts = [part.split(">", 1)[-1] for part in str(text).replace("<br>", " ").replace("<sup>", "^").split("<")]
    return "".join(parts).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def extent(layout: dict[str, Any], values: Iterable[float], is_from_zero: bool) -> tuple[float, float]:
    """The ends of an axis for these numbers: of the layout, or all of them with a margin."""
    if layout.get("range"):
        low, high = layout["range"]
        return float(low), float(high)
    finite = [value for value in values if isfinite(value)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    air = 0.05 * (high - low) or 0.5
    bottom = 0.0 if is_from_zero and low >= 0 and layout.get("type") != "log" else low - air
    ends = (bottom, high + air)
    return (ends[1], ends[0]) if layout.get("autorange") == "reversed" else ends


def _round_numbers(low: float, high: float, max_ticks: int = 8) -> Sequence[float]:
    """Numbers in steps of 1, 2 or 5 between the ends."""
    low, high = sorted((low, high))
    if not high > low:
        return [low]
    power = 10.0 ** floor(log10((high - low) / max_ticks))
    step = next(s * power for s in (1, 2, 5, 10) if (high - low) / (s * power) <= max_ticks)
    return [step * n for n in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]
