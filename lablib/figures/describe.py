"""Words and numbers of a figure: a one-sentence summary and a table, for those who cannot see or run the picture.

Both travel inside the figure (`fig.layout.meta`), so a plain plotly figure carries them into a saved notebook.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

if TYPE_CHECKING:
    import pandas as pd

SUBTITLE_COLUMNS = 105  # fits a notebook cell beside an open file browser


def attach(figure: go.Figure, summary: str, columns: Mapping[str, Sequence[Any]]) -> go.Figure:
    """Put the summary and the table into the figure, print the summary under its title, and return the figure.

    Args:
        figure: changed in place (a figure function does this last, before it returns).
        summary: one sentence with the numbers that matter.
        columns: the table, column name (with its unit) to values; all of one length.
    """
    columns = {name: [_plain(v) for v in values] for name, values in columns.items()}
    lengths = {len(values) for values in columns.values()}
    assert len(lengths) <= 1, f"columns of different lengths: {lengths}"
    lines = textwrap.wrap(summary, SUBTITLE_COLUMNS)
    figure.update_layout(
        meta={"summary": summary, "table": columns},
        title_subtitle={"text": "<br>".join(lines), "font": {"size": 12, "color": "#5A5A5A"}},
    )
    # Each further line of the summary needs its own room between title and plot.
    extra = 16 * (len(lines) - 1)
    figure.update_layout(margin_t=figure.layout.margin.t + extra, height=figure.layout.height + extra)  # pyright: ignore
    return figure


def describe(figure: go.Figure) -> str:
    """The figure in one sentence. Empty for a figure that is not one of this package's."""
    return _meta(figure).get("summary", "")


def table(figure: go.Figure) -> pd.DataFrame:
    """The numbers of the figure. Empty for a figure that is not one of this package's."""
    import pandas as pd

    return pd.DataFrame(_meta(figure).get("table", {}))


def _meta(figure: go.Figure) -> dict[str, Any]:
    meta = figure.layout.meta  # pyright: ignore[reportAttributeAccessIssue]
    return meta if isinstance(meta, dict) else {}


def _plain(value: Any) -> Any:
    """A number or text that JSON knows; numpy's numbers become Python's."""
    return value.item() if hasattr(value, "item") else value
