"""A figure at the end of a notebook cell: the picture, then its sentence and its table as plain HTML.

The sentence and the table need no JavaScript and are read aloud by a screen reader. The picture is sent twice: as
plotly JSON, which JupyterLab draws without a network, and as HTML, which `nbconvert --to html` keeps. The HTML also has
the figure as plain SVG, which is visible until plotly's script draws, and permanently without a script or a network.
For a screen reader the picture is one image with the sentence as its name.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import plotly.graph_objects as go

from lablib.figures.describe import describe, table
from lablib.figures.svg.picture import figure_svg
from lablib.figures.theme import THEME_CSS
from lablib.signature import checked, shown
from lablib.text.markup import in_html, paragraph
from lablib.text.markup import table_html as plain_table
from lablib.text.units import plural

if TYPE_CHECKING:
    import pandas as pd

PLOTLY_MIME = "application/vnd.plotly.v1+json"
MAX_SVG_BYTES = 300_000  # of a picture in a notebook; a larger one has only its sentence and table

# JupyterLab draws plotly's JSON in the output before the caption: only a script can name that element.
_NAME_THE_PICTURE = """<script>(() => {
  const words = document.currentScript.closest(".jp-OutputArea-child");
  const picture = words?.previousElementSibling?.querySelector(".jp-OutputArea-output");
  if (picture && !picture.querySelector("[role=img]")) {
    picture.setAttribute("role", "img");
    picture.setAttribute("aria-label", words.querySelector(".lablib-caption p").textContent);
  }
})()</script>"""
# Plotly's element has a height before anything is drawn, so it is shown only if plotly is loaded.
_SHOW_THE_LIVE_ONE = """<script>(() => {
  const figure = document.currentScript.parentElement, live = figure.querySelector(".lablib-live");
  if (!window.Plotly) return;
  figure.querySelector(".lablib-static").style.display = "none";
  live.style.display = "block";
  live.querySelectorAll(".js-plotly-plot").forEach(plot => Plotly.Plots.resize(plot));
})()</script>"""
MAX_ROWS = 200
# A table of twelve columns fits a notebook in a window of 1280 pixels.
_NARROW = ".lablib-caption table {font-size: 0.8em} .lablib-caption :is(th, td) {padding: 0.3em}"


@checked
def show(figure: go.Figure) -> None:
    """Display the figure with its caption and its numbers. The figure is not changed."""
    from IPython.display import HTML, display

    # The caption repeats the subtitle.
    bare = without_subtitle(figure)
    display(picture_bundle(bare), raw=True)
    display(HTML(caption_html(figure) + _NAME_THE_PICTURE + f"<style>{THEME_CSS}\n{_NARROW}</style>"))


def without_subtitle(figure: go.Figure) -> go.Figure:
    """A copy of the figure without the sentence under its title and its room."""
    bare: Any = go.Figure(figure)
    layout, less = bare.layout, layout_without_subtitle(figure)
    if layout.title.subtitle.text:  # one by one: plotly validates all properties of an updated layout
        layout.title.subtitle.text, layout.margin.t, layout.height = "", less["margin"]["t"], less["height"]
    return bare


def layout_without_subtitle(figure: go.Figure) -> dict[str, Any]:
    """The layout of the figure as a dictionary, without the subtitle and its room."""
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

    `plotlyjs`: where the HTML finds plotly.js: "cdn", True (4.8 MB, inside it) or False (already on the page).
    """
    script = _cdn_script() if plotlyjs == "cdn" else ""
    return {
        PLOTLY_MIME: json.loads(figure.to_json() or "{}"),
        "text/html": framed(figure, script + _html(figure, plotlyjs is True)),
        "text/plain": describe(figure) or "figure",
    }


def _html(figure: Any, plotlyjs: Literal["cdn"] | bool, **options: Any) -> str:
    import plotly.io as pio

    more: dict[str, Any] = {"include_plotlyjs": plotlyjs, "include_mathjax": False, "full_html": False}
    return pio.to_html(figure, **more, validate=False, **options)


@cache
def _cdn_script() -> str:
    """The elements that load plotly.js from its CDN. Plotly hashes all of plotly.js to make them: 12 ms."""
    before = _html({}, "cdn", div_id="drawn").partition('<div id="drawn"')[0]
    return before[before.index("<script") :]


def framed(figure: go.Figure, live_html: str) -> str:
    """Plotly's HTML of the figure, named for a screen reader, with the static picture until it is drawn."""
    name, static = in_html(describe(figure) or "figure"), f'<div class="lablib-static">{static_svg(figure)}</div>'
    live = f'<div class="lablib-live" style="display:none">{live_html}</div>'
    return f'<div class="lablib-figure" role="img" aria-label="{name}">{static}{live}{_SHOW_THE_LIVE_ONE}</div>'


def static_svg(figure: go.Figure) -> str:
    """The figure as SVG; empty if it is too large."""
    svg = figure_svg(figure)
    return svg if len(svg) <= MAX_SVG_BYTES else ""


def caption_html(figure: go.Figure) -> str:
    """The summary as a sentence and the numbers as a table that opens on demand; no JavaScript."""
    sentence = paragraph(describe(figure), "max-width:62em;margin:.2em 0")
    label = (figure.layout.meta or {}).get("label", "")  # pyright: ignore[reportAttributeAccessIssue]
    return f"<div class='lablib-caption'>{sentence}{table_html(table(figure), label=label)}</div>"


def table_html(numbers: pd.DataFrame, is_folded: bool = True, label: str = "") -> str:
    """The numbers, folded behind a label ("Numbers of this figure") or plain; nothing for an empty table."""
    if numbers.empty:
        return ""
    rows = plain_table(numbers, index=False, max_rows=MAX_ROWS, border=0, float_format=lambda v: f"{v:.6g}")
    label = label or f"Numbers of this figure ({plural(len(numbers), 'rows')})"
    return f"<details><summary style='cursor:pointer'>{label}</summary>{rows}</details>" if is_folded else rows


def with_drawn_figures(notebook: Any) -> Any:
    """A copy of an executed notebook in which every plotly output can be drawn by `nbconvert`'s HTML exporter.

    plotly.js is put inside the first one, so the page also works without a network. `notebook`: a notebook node of
    nbformat 4; left as it was.
    """
    from copy import deepcopy

    from nbformat import NotebookNode

    if not isinstance(notebook, NotebookNode):
        raise TypeError(f"a notebook is what nbformat reads: got {shown(notebook)}; give nbformat.read(path, 4)")
    notebook = deepcopy(notebook)
    plotlyjs: bool = True
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if PLOTLY_MIME in data:
                figure = go.Figure({key: data[PLOTLY_MIME].get(key) for key in ("data", "layout")}, skip_invalid=True)
                data["text/html"] = framed(figure, _html(figure, plotlyjs))
                plotlyjs = False
    return notebook
