"""A figure as plain SVG, without script and without network, for saved notebooks.

Drawn are bars, lines, points with error bars, areas, texts and heat maps on linear, logarithmic and named axes, with
legend, notes and lines. Not drawn: hovers, and arrow heads of notes. Colours are in `style`, in the spelling of
browsers, so that the style sheet of the dark theme (theme.py) applies here too.
"""

from collections.abc import Iterator
from typing import Any

import plotly.graph_objects as go

from lablib.figures.describe import describe
from lablib.figures.style import FAINT_INK, GRID, INK, font_for
from lablib.figures.svg.axes import CHARACTER, plain_text
from lablib.figures.svg.canvas import WIDTH, Canvas
from lablib.figures.svg.parts import DASHES, draw_line, first_of, paint, text_at, title_of
from lablib.figures.svg.traces import markers_svg, trace_svg
from lablib.signature import checked
from lablib.text.markup import in_html


@checked
def figure_svg(figure: go.Figure) -> str:
    """The figure as an SVG document; the same figure gives the same bytes."""
    layout: dict[str, Any] = figure.layout.to_plotly_json()  # pyright: ignore[reportAttributeAccessIssue]
    traces = [trace.to_plotly_json() for trace in figure.data]  # pyright: ignore[reportGeneralTypeIssues]
    canvas, sentence = Canvas(layout, traces), describe(figure)
    title = plain_text(canvas.layout.get("title", {}).get("text") or "")
    drawn = [part for trace in canvas.traces for part in trace_svg(canvas, trace)]
    legend, end = _legend(canvas)
    height = max(canvas.height, end)
    parts = [*_frames(canvas), *drawn, *_lines(canvas), *_notes(canvas), *legend]
    label = in_html(f"{title}. {sentence}" if sentence else title)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" '
    fonts = in_html(font_for(f"{title} {sentence}"))
    head += f'role="img" aria-label="{label}" style="max-width:100%;height:auto;font-family:{fonts}">'
    ground = f'<rect width="{WIDTH}" height="{height:g}" {paint("#FFFFFF")}/>'
    defs = f"<defs>{''.join(canvas.defs.values())}</defs>" if canvas.defs else ""
    heading = text_at(canvas.left, 26, title, size=16, anchor="start")
    return "\n".join([head, defs, ground, heading, *parts, "</svg>"])


def _frames(canvas: Canvas) -> Iterator[str]:
    """Grid, marks and titles of the axes."""
    for name, axis in canvas.axes.items():
        if axis.layout.get("visible") is False:
            continue
        partner = canvas.axes.get(axis.layout.get("anchor") or ("y" if name[0] == "x" else "x"))
        if partner is None:
            continue
        middle, shows_grid = (axis.start + axis.end) / 2, axis.layout.get("showgrid", True)
        for at, text in axis.marks():
            if name[0] == "x":
                yield draw_line(at, partner.start, at, partner.end, GRID) if shows_grid else ""
                yield text_at(at, partner.start + 18, text, anchor="middle")
            else:
                yield draw_line(partner.start, at, partner.end, at, GRID) if shows_grid else ""
                yield text_at(partner.start - 8, at + 4, text, anchor="end")
        if name[0] == "x" and title_of(axis.layout):
            yield draw_line(axis.start, partner.start, axis.end, partner.start, FAINT_INK)
            yield text_at(middle, partner.start + 38, title_of(axis.layout), size=13)
        elif title_of(axis.layout):
            at = partner.start - axis.room() - 18
            turn = f'transform="rotate(-90 {at:.1f} {middle:.1f})"'
            yield text_at(at, middle, title_of(axis.layout), size=13, extra=turn)


def _lines(canvas: Canvas) -> Iterator[str]:
    for shape in canvas.layout.get("shapes") or ():
        ends = [canvas.where(shape[f"{c}{i}"], shape.get(f"{c}ref"), c) for i in "01" for c in "xy"]
        if not canvas.shows(shape):
            continue
        line = shape.get("line", {})
        dash = DASHES.get(line.get("dash") or "", "")
        extra = f' stroke-dasharray="{dash}"' if dash else ""
        stroke = paint("none", line.get("color") or INK, line.get("width", 2))
        if shape.get("type", "line") == "line":
            yield f'<path d="M{ends[0]:.1f},{ends[1]:.1f}L{ends[2]:.1f},{ends[3]:.1f}"{extra} {stroke}/>'


def _notes(canvas: Canvas) -> Iterator[str]:
    for note in canvas.layout.get("annotations") or ():
        letters = {c: canvas.axes.get(str(note.get(f"{c}ref") or c)) for c in "xy"}
        a, b = (
            axis.place(float(note[c]))
            if axis is not None and axis.is_log
            else canvas.where(note[c], note.get(f"{c}ref"), c)
            for c, axis in letters.items()
        )
        anchor = {"left": "start", "right": "end"}.get(note.get("xanchor") or "", "middle")
        down = {"bottom": -5, "top": 14}.get(note.get("yanchor") or "", 4)
        if note.get("showarrow", True):
            tip = (a + (note.get("ax") or 0), b + (note.get("ay") or -20))
            yield draw_line(a, b, *tip, INK)
            a, b, down = tip[0], tip[1], -3
        font = note.get("font", {})
        down -= note.get("yshift") or 0
        size, color = font.get("size") or 12, font.get("color") or INK
        yield text_at(a + (note.get("xshift") or 0), b + down, note.get("text") or "", size, anchor, color)


def _legend(canvas: Canvas) -> tuple[list[str], float]:
    """The rows of the legend, and where the last of them ends."""
    if canvas.layout.get("showlegend") is False:
        return [], 0.0
    shown: dict[str, dict[str, Any]] = {}
    for trace in sorted(canvas.traces, key=lambda t: t.get("legendrank") or 1000):
        if trace.get("name") and trace.get("showlegend") is not False:
            shown.setdefault(trace["name"], trace)
    if len(shown) < 2 and not canvas.layout.get("showlegend"):
        return [], 0.0
    a, b, parts = canvas.left, canvas.height - 30, list[str]()
    for name, trace in shown.items():
        width = 30 + CHARACTER * len(plain_text(name)) + 18
        if a + width > WIDTH:
            a, b = canvas.left, b + 18
        parts += [*_swatch(canvas, trace, a, b), text_at(a + 26, b + 4, name, anchor="start")]
        a += width
    return parts, b + 12


def _swatch(canvas: Canvas, trace: dict[str, Any], a: float, b: float) -> Iterator[str]:
    line = trace.get("line", {})
    if trace["type"] == "bar":
        yield f'<rect x="{a:.1f}" y="{b - 6:.1f}" width="14" height="12" {canvas.fill(trace.get("marker", {}))}/>'
    elif trace.get("fill") or trace.get("stackgroup"):
        look = {"color": first_of(trace.get("fillcolor")) or line.get("color"), "pattern": trace.get("fillpattern", {})}
        yield f'<rect x="{a:.1f}" y="{b - 6:.1f}" width="14" height="12" {canvas.fill(look)}/>'
    else:
        mode = trace.get("mode") or "lines"
        if "lines" in mode:
            dash = DASHES.get(line.get("dash") or "", "")
            extra = f' stroke-dasharray="{dash}"' if dash else ""
            yield f'<path d="M{a:.1f},{b:.1f}h20"{extra} {paint("none", line.get("color") or INK, 2)}/>'
        if "markers" in mode:
            marker = trace.get("marker", {})
            yield from markers_svg({**marker, "size": min(first_of(marker.get("size")) or 8, 12)}, [(a + 10, b)])
