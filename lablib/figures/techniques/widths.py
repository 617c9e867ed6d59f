"""muP and the standard parametrization: coordinate check, and the best learning rate by width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from lablib.figures.techniques.spread import check_lines, figure_spread, mean, possible_minima, power_of_two
from lablib.signature import checked
from lablib.text.units import format_quantity


@checked
def figure_coordinates(
    changes: Mapping[str, Mapping[int, Sequence[Mapping[str, float]]]], title: str = "Coordinate check"
) -> go.Figure:
    """A panel a parametrization, a line an activation: flat is right.

    Args:
        changes: parametrization -> width -> one `coordinate_check` for each seed.

    Raises:
        ValueError: nothing to draw, or widths without the same activations.
    """
    names = next((list(one) for widths in changes.values() for runs in widths.values() for one in runs), [])
    for parametrization, widths in changes.items():
        for width, runs in widths.items():
            if not runs or any(list(one) != names for one in runs):
                raise ValueError(f"every width must have the activations {names}: see {parametrization}, {width}.")
    panels = {
        parametrization: {name: {float(w): [one[name] for one in runs] for w, runs in widths.items()} for name in names}
        for parametrization, widths in changes.items()
    }
    check_lines(panels, log_x=True, log_y=True)
    parts = []
    for parametrization, lines in panels.items():
        growths = [mean(points[max(points)]) / mean(points[min(points)]) for points in lines.values()]
        growth = ", ".join(f"{name} {format_quantity(g, '', 2)}" for name, g in zip(lines, growths, strict=True))
        parts.append(f"{parametrization}: {growth}")
    ends = [width for widths in changes.values() for width in widths]
    summary = f"Change at width {max(ends, default=0):,} over that at {min(ends, default=0):,}: {'; '.join(parts)}."
    labels = ("width D", "root mean square of the change", "units", "activation")
    return figure_spread(panels, *labels, title=title, log_y=True, summary=summary)


@checked
def figure_rates(
    losses: Mapping[str, Mapping[int, Mapping[float, Sequence[float]]]],
    line: str = "width",
    y_label: str = "loss",
    title: str = "",
) -> go.Figure:
    """Loss against learning rate: a panel a parametrization (or optimizer), a line a width (or batch size).

    Args:
        losses: panel -> number of the line -> rate -> loss in nats of each seed.
        line: what the number is.

    Returns:
        A figure in which each rate that may be the best of its line has a ring: see `possible_minima`.
    """
    panels = {
        panel: {f"{line} {number:,}": rates for number, rates in lines.items()} for panel, lines in losses.items()
    }
    check_lines(panels, log_x=True, log_y=False)
    numbers = sorted({number for lines in losses.values() for number in lines})
    parts = [f"{panel} {', '.join(map(_rates, lines.values()))}" for panel, lines in panels.items()]
    summary = f"Best rate at {line} {', '.join(f'{n:,}' for n in numbers)}: {'; '.join(parts)}."
    labels = ("peak learning rate", y_label, "a step", "nats a byte")
    title = title or f"The best rate by {line}"
    return figure_spread(panels, *labels, title=title, mark_minima=True, summary=summary)


def _rates(points: Mapping[float, Sequence[float]]) -> str:
    """Those that may be best."""
    return " or ".join(map(_rate, possible_minima(points))) or "none"


def _rate(rate: float) -> str:
    """A power of two as such."""
    power = power_of_two(rate)
    return format_quantity(rate, "", 2) if power is None else f"2^{power}"
