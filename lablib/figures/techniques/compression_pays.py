"""Speedup of gradient compression against bandwidth, one line per batch size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from lablib.figures.lines import figure_lines
from lablib.figures.style import FAINT_INK
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

    Raises:
        ValueError: a line that has not one speedup for each bandwidth.
    """
    title = title or "When compression pays"
    figure = figure_lines(
        bandwidths, speedups, "bandwidth", "speedup", "B/s", "times", title=title, log_x=True, summary=summary
    )
    line = {"color": FAINT_INK, "dash": "dash", "width": 1.5}
    figure.add_hline(y=1.0, line=line, annotation_text="no gain", annotation_position="top right")  # pyright: ignore
    if bandwidth_bytes_per_s is not None:
        figure.add_vline(x=bandwidth_bytes_per_s, line=line | {"dash": "dot"})  # pyright: ignore
    return figure
