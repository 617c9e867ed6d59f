"""Speedup of gradient compression against bandwidth, one line per batch size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from lablib.figures.chart import Rule
from lablib.figures.lines import figure_lines
from lablib.signature import checked


@checked
def figure_when_compression_pays(
    bandwidths: Sequence[float],
    speedups: Mapping[str, Sequence[float]],
    bandwidth_bytes_per_s: float | None = None,
    title: str = "",
    summary: str = "",
) -> go.Figure:
    """Lines of `lablib.studies.speedup_curves`: above the line at 1, compression pays.

    Args:
        bandwidths: out of a rank, in bytes a second.
        speedups: name of the line -> step without compression over step with it, at each bandwidth.
        bandwidth_bytes_per_s: one that is spoken of, marked; None for none.
        title: of the figure.
        summary: one sentence; none given: the ends of each line.
    """
    rules = [Rule(y=1.0, text="no gain")]
    if bandwidth_bytes_per_s is not None:
        rules.append(Rule(x=bandwidth_bytes_per_s, line={"dash": "dot"}))
    labels, title = ("bandwidth", "speedup", "B/s", "times"), title or "When compression pays"
    return figure_lines(bandwidths, speedups, *labels, title=title, log_x=True, summary=summary, rules=rules)
