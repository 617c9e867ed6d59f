"""Summary and table of a figure, for readers who cannot see or run the picture.

Both are stored in the figure (`fig.layout.meta`), so a plain plotly figure carries them into a saved notebook.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from lablib.figures.style import merged
from lablib.signature import checked
from lablib.text.markup import in_picture, plain

if TYPE_CHECKING:
    import pandas as pd

SUBTITLE_COLUMNS = 105  # fits a notebook cell next to an open file browser


def attach(
    figure: go.Figure, summary: str, columns: Mapping[str, Sequence[Any]], notes: Sequence[str] = ()
) -> go.Figure:
    """Put the summary and the table into the figure, print the summary under its title, and return the figure.

    Tags in names are shown, not interpreted.

    Args:
        figure: changed in place.
        summary: one sentence with the numbers that matter.
        columns: the table, column name (with its unit) to values; all of one length.
        notes: of the run, each a sentence after the summary.
    """
    summary = " ".join([summary, *(f"{note[:1].upper()}{note[1:]}." for note in dict.fromkeys(notes))])
    # A number or text that JSON knows; numpy's numbers become Python's.
    columns = {name: [(v.item() if hasattr(v, "item") else v) for v in values] for name, values in columns.items()}
    lengths = {len(values) for values in columns.values()}
    assert len(lengths) <= 1, f"columns of different lengths: {lengths}"
    lines = textwrap.wrap(summary, SUBTITLE_COLUMNS)
    subtitle = {"text": "<br>".join(map(plain, lines)), "font": {"size": 12, "color": "#5A5A5A"}}
    more_pixels, now = 16 * (len(lines) - 1), figure.layout.to_plotly_json()
    changes = {"margin": {"t": now["margin"]["t"] + more_pixels}, "height": now["height"] + more_pixels}
    changes |= {"meta": {"summary": summary, "table": columns}, "title": {"subtitle": subtitle}}
    laid_out = merged(now, changes)
    figure.layout = laid_out | {name: _without_tags(value) for name, value in laid_out.items() if name != "meta"}
    parts: list[Any] = list(figure.data)  # pyright: ignore[reportGeneralTypeIssues]
    for part in parts:
        for name, value in part.to_plotly_json().items():
            if name != "meta" and (shown := _without_tags(value)) is not value:
                part[name] = shown
    return figure


def _without_tags(value: Any) -> Any:
    """`value` with `in_picture` of every text; the same object if nothing changes."""
    if isinstance(value, str):
        return in_picture(value) if "<" in value else value
    if isinstance(value, Mapping):
        shown = {name: _without_tags(one) for name, one in value.items()}
        return shown if any(shown[name] is not one for name, one in value.items()) else value
    if isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.dtype.kind in "OU"):
        shown = [_without_tags(one) for one in value]
        return shown if any(a is not b for a, b in zip(shown, value, strict=True)) else value
    return value


@checked
def describe(figure: go.Figure) -> str:
    """The figure in one sentence. Empty for a figure that is not one of this package's."""
    return _meta(figure).get("summary", "")


@checked
def table(figure: go.Figure) -> pd.DataFrame:
    """The numbers of the figure. Empty for a figure that is not one of this package's."""
    import pandas as pd

    return pd.DataFrame(_meta(figure).get("table", {}))


def _meta(figure: go.Figure) -> dict[str, Any]:
    meta = figure.layout.meta  # pyright: ignore[reportAttributeAccessIssue]
    return meta if isinstance(meta, dict) else {}
