"""Idle share of a device that a loader feeds, against a setting of the loader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from lablib.figures.lines import figure_lines
from lablib.signature import checked


@checked
def figure_idle_shares(
    counts: Sequence[int],
    shares: Mapping[str, Sequence[float]],
    control: str = "prefetch",
    title: str = "",
    summary: str = "",
) -> go.Figure:
    """The device's idle share against a setting of the loader: a line a way to find it out.

    Args:
        counts: of the setting, such as 1, 2, 4, 8 orders for each worker.
        shares: name of the line -> idle share of the device in [0, 1] at each count.
        control: what is counted.
        summary: one sentence; none given: the ends of each line.
    """
    percent = {name: [100 * share for share in line] for name, line in shares.items()}
    title = title or f"How long the device waits, by {control}"
    return figure_lines(
        counts, percent, control, "idle share of the device", y_unit="%", title=title, log_x=True, summary=summary
    )
