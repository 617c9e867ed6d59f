"""Figures of a page: SVG at first, plotly when a reader points at one or moves a control (sphinx/_static/book.js).

plotly's data are in separate compressed files: they are mostly hover texts, and a page does not wait for them.
"""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from lablib.figures.describe import describe
from lablib.figures.show import static_svg
from lablib.text.markup import in_html, paragraph


def packed(record: Any) -> bytes:
    """JSON, compressed; the same record gives the same bytes."""
    return gzip.compress(json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode(), mtime=0)


def figure_html(drawn: dict[str, Any], source: str) -> str:
    """A figure, given as plotly's JSON. `source`: address of the file that has it."""
    figure = go.Figure({key: drawn.get(key) for key in ("data", "layout")}, skip_invalid=True)
    # A hatching is found by its id: in a figure that is folded away, that of another one would not be drawn.
    svg = re.sub(r'( id="|url\(#)', rf"\g<1>{Path(source).stem}-", static_svg(figure))
    name = in_html(describe(figure) or "figure")
    late = "" if svg else f' data-late style="min-height:{drawn.get("layout", {}).get("height") or 450}px"'
    return (
        f'<div class="lablib-figure" role="img" aria-label="{name}" data-source="{in_html(source)}"{late}>'
        f'<div class="lablib-static">{svg}</div></div>'
    )


def exploration_html(record: dict[str, Any], source: str) -> str:
    """The controls of `all_pictures` with the figure at their defaults. `source`: address of all figures."""
    at = 0
    for control in record["controls"]:
        at = at * len(control["values"]) + control["default"]
    first = next(each for each in (record["pictures"][at], *record["pictures"]) if each.get("figure"))
    fixed = f"Fixed here: {'; '.join(record['fixed'])}. " if record["fixed"] else ""
    return (
        f'<div class="lablib-explorer" data-source="{in_html(source)}">'
        f'<div class="lablib-controls" hidden>{"".join(map(_control, record["controls"]))}</div>'
        f'<p class="lablib-message" role="status"></p>{figure_html(first["figure"], source)}'
        f'<div class="lablib-caption-of">{first["caption"]}</div>'
        f"{paragraph(fixed + 'In JupyterLab all controls move.', 'font-size:.85em')}</div>"
    )


def _control(control: dict[str, Any]) -> str:
    """A list, or a slider over the values; the script reads the values from `data-values`."""
    label, values, default = in_html(control["label"]), control["values"], control["default"]
    if control["is_list"]:
        options = [f"<option{' selected' if k == default else ''}>{in_html(v)}</option>" for k, v in enumerate(values)]
        return f"<label>{label} <select>{''.join(options)}</select></label>"
    return (
        f'<label>{label} <input type="range" min="0" max="{len(values) - 1}" value="{default}" '
        f'aria-valuetext="{in_html(values[default])}" data-values="{in_html(json.dumps(values))}">'
        f"<output>{in_html(values[default])}</output></label>"
    )
