"""A figure at the end of a notebook cell: the picture, then its sentence and its table as plain HTML.

The sentence and the table need no JavaScript and are read aloud by a screen reader. The picture is sent twice: as
plotly JSON, which JupyterLab draws without a network, and as HTML, which `nbconvert --to html` keeps.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

import plotly.graph_objects as go

from lablib.figures.describe import describe, table
from lablib.markup import paragraph
from lablib.markup import table_html as plain_table
from lablib.signature import checked

if TYPE_CHECKING:
    import pandas as pd

PLOTLY_MIME = "application/vnd.plotly.v1+json"
MAX_ROWS = 200


@checked
def show(figure: go.Figure) -> None:
    """Display the figure with its caption and its numbers. The figure itself is left as it was."""
    from IPython.display import HTML, display

    # The caption below says what the subtitle says; a reader should not meet it twice.
    bare = without_subtitle(figure)
    display(picture_bundle(bare), raw=True)
    display(HTML(caption_html(figure)))


def without_subtitle(figure: go.Figure) -> go.Figure:
    """A copy of the figure without the sentence under its title, and without the room kept for it."""
    return go.Figure(figure).update_layout(layout_without_subtitle(figure))


def layout_without_subtitle(figure: go.Figure) -> dict[str, Any]:
    """The layout of the figure as a dictionary, without the subtitle and the room kept for it."""
    layout = figure.layout.to_plotly_json()  # pyright: ignore[reportAttributeAccessIssue]
    text = layout.get("title", {}).get("subtitle", {}).get("text")
    if text:
        room = 16 * (text.count("<br>") + 1) + 8
        layout["title"]["subtitle"]["text"] = ""
        layout["margin"]["t"] -= room
        layout["height"] -= room
    return layout


def picture_bundle(figure: go.Figure, plotlyjs: Literal["cdn"] | bool = "cdn") -> dict[str, Any]:
    """The figure in the two formats notebooks and their HTML exports understand.

    Args:
        figure: any plotly figure.
        plotlyjs: where the HTML finds plotly.js: "cdn", True (4.8 MB, inside it) or False (already on the page).
    """
    import plotly.io as pio

    picture = pio.to_html(figure, include_plotlyjs=plotlyjs, include_mathjax=False, full_html=False, validate=False)  # pyright: ignore
    return {
        PLOTLY_MIME: json.loads(figure.to_json() or "{}"),
        "text/html": picture,
        "text/plain": describe(figure) or "figure",
    }


def caption_html(figure: go.Figure) -> str:
    """The summary as a sentence and the numbers as a table that opens on demand; no JavaScript."""
    sentence = paragraph(describe(figure), "max-width:62em;margin:.2em 0")
    return f"<div class='lablib-caption'>{sentence}{table_html(table(figure))}</div>"


def table_html(numbers: pd.DataFrame, is_folded: bool = True) -> str:
    """The numbers, folded behind "Numbers of this figure" or plain; nothing for an empty table."""
    if numbers.empty:
        return ""
    rows = plain_table(numbers, index=False, max_rows=MAX_ROWS, border=0, float_format=lambda v: f"{v:.6g}")
    label = f"Numbers of this figure ({len(numbers)} rows)"
    return f"<details><summary style='cursor:pointer'>{label}</summary>{rows}</details>" if is_folded else rows
