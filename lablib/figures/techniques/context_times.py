"""Efficiency of context-parallel attention against sequence length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from lablib.figures.lines import figure_lines
from lablib.figures.style import FAINT_INK
from lablib.signature import checked


@checked
def figure_context_times(
    seq_lens: Sequence[int],
    efficiencies: Mapping[str, Sequence[float]],
    marked: int | None = None,
    title: str = "",
    summary: str = "",
) -> go.Figure:
    """Lines of `lablib.studies.context_efficiencies`: at 1, n ranks take 1/n of one device's time.

    Args:
        seq_lens: tokens of the whole sequence.
        efficiencies: way -> 1/n of one device's attention over the time it takes, at each length.
        marked: a length that is spoken of; None for none.
        title: of the figure.
        summary: one sentence; none given: the way that is nearest to 1 at each length.

    Raises:
        ValueError: a line that has not one value for each length, no line, or no length.
    """
    if not seq_lens or not efficiencies:
        raise ValueError(f"there must be a way and a length: got {len(efficiencies)} and {len(seq_lens)}.")
    figure = figure_lines(
        seq_lens,
        efficiencies,
        "sequence length",
        "efficiency",
        "tokens",
        "of a fair share",
        title=title or "Attention that ranks share",
        log_x=True,
        summary=summary or _summary(seq_lens, efficiencies),
    )
    line = {"color": FAINT_INK, "dash": "dash", "width": 1.5}
    figure.add_hline(y=1.0, line=line, annotation_text="fair share", annotation_position="bottom right")  # pyright: ignore
    if marked is not None:
        figure.add_vline(x=marked, line=line | {"dash": "dot"})  # pyright: ignore
    figure.update_yaxes(rangemode="tozero")
    return figure


def _summary(seq_lens: Sequence[int], efficiencies: Mapping[str, Sequence[float]]) -> str:
    parts = []
    for i, length in enumerate(seq_lens):
        best = max(efficiencies, key=lambda way: efficiencies[way][i] if i < len(efficiencies[way]) else 0.0)
        if i < len(efficiencies[best]):
            parts.append(f"{length:,} tokens {best}, {efficiencies[best][i]:.0%}")
    return f"Nearest to a fair share: {'; '.join(parts)}."
