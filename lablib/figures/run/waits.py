"""A deadlock as a picture: one row for each wait, and an arrow from the waiting rank to the one it waits for."""

import re
from collections.abc import Sequence

import plotly.graph_objects as go

from lablib.errors import DeadlockError, Wait
from lablib.figures.describe import attach
from lablib.figures.style import FAINT_INK, FONT, INK, base_layout, heading
from lablib.signature import checked

ROW_PIXELS, MAX_ROWS = 58, 24
WAITING, TEXT_COLUMNS = "#D55E00", 78


@checked
def figure_waits(error: DeadlockError, title: str = "Who waits for whom") -> go.Figure:
    """Ranks as nodes, the wait of each as text, arrows to the awaited ranks. Table: one row per rank.

    Ranks that wait at the same place for the same event share a row.
    """
    by_text: dict[tuple[str, str], list[Wait]] = {}
    for wait in error.waits:
        by_text.setdefault((wait.text, wait.source), []).append(wait)
    rows = list(by_text.values())
    shown = rows[:MAX_ROWS]
    figure = go.Figure(layout=base_layout(title, 66 + 24 + ROW_PIXELS * max(len(shown), 1), showlegend=False))
    figure.add_traces([_arrow(*arrow) for arrow in _arrows(shown)])
    figure.add_scatter(
        x=[0.0] * len(shown),
        y=list(range(len(shown))),
        mode="markers",
        marker={"size": 20, "symbol": "circle", "color": WAITING, "line": {"color": INK, "width": 1}},
        hovertext=[_label(row) for row in shown],
        hoverinfo="text",
    )
    figure.add_trace(_texts(shown))
    hidden = {"visible": False, "fixedrange": True}
    if _arrows(shown):
        font = {"size": 11, "color": FAINT_INK}
        heading(figure, "An arrow leads to the rank that is waited for.", y=0, yanchor="top", yshift=4, font=font)
    figure.update_layout(
        xaxis=hidden | {"range": [-1.9, 10]},
        yaxis=hidden | {"range": [max(len(shown), 1) - 0.4, -0.6]},
        margin={"l": 10, "r": 10, "t": 66, "b": 24},
    )
    columns = {
        "rank": [w.rank for w in error.waits],
        "waits": [w.text for w in error.waits],
        "source": [w.source for w in error.waits],
        "for ranks": [", ".join(map(str, w.for_ranks)) for w in error.waits],
    }
    return attach(figure, _summary(error, rows), columns)


def _label(row: Sequence[Wait]) -> str:
    """ "rank 2", or "ranks 0-3, 7"."""
    ranks = [wait.rank for wait in row]
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][-1] + 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    named = [str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts]
    return "ranks " + ", ".join(named[:4] + (["..."] if len(named) > 4 else []))


def _texts(rows: Sequence[Sequence[Wait]]) -> go.Scatter:
    """Ranks, wait, and line of the program, next to each node."""
    texts = []
    for row in rows:
        what = _does(row) if len(_does(row)) <= TEXT_COLUMNS else _does(row)[: TEXT_COLUMNS - 3] + "..."
        where = f"<br><span style='font-size:11px;color:{FAINT_INK}'>{row[0].source}</span>" if row[0].source else ""
        texts.append(f"<b>{_label(row)}</b>  {what}{where}")
    font = {"size": 13, "color": INK, "family": FONT}
    place = {"x": [0.3] * len(rows), "y": list(range(len(rows))), "textposition": "middle right"}
    return go.Scatter(mode="text", text=texts, textfont=font, hoverinfo="skip", cliponaxis=False, **place)


def _arrows(rows: Sequence[Sequence[Wait]]) -> list[tuple[int, int]]:
    """Pairs of row numbers: the one that waits, the one that holds a rank it waits for."""
    row_of = {wait.rank: number for number, row in enumerate(rows) for wait in row}
    pairs = {(row_of[w.rank], row_of[other]) for row in rows for w in row for other in w.for_ranks if other in row_of}
    return sorted(pair for pair in pairs if pair[0] != pair[1])


def _arrow(start: int, end: int) -> go.Scatter:
    """An arc from one row to another, ending in an arrow head: arcs that go down are the outer ones.

    The bulge grows with the distance, so nested arcs do not cover each other.
    """
    bulge = min(0.35 + 0.4 * abs(end - start), 1.4) + (0.3 if end > start else 0.0)
    steps = [i / 24 for i in range(25)]
    first, last = (start - 0.04, end + 0.04) if end > start else (start - 0.14, end + 0.14)
    return go.Scatter(
        x=[-0.15 - bulge * 4 * t * (1 - t) for t in steps],
        y=[first + (last - first) * t for t in steps],
        mode="lines+markers",
        line={"color": INK, "width": 1.6, "shape": "spline"},
        marker={"symbol": "arrow", "angleref": "previous", "size": [0] * 24 + [13], "color": INK, "opacity": 1},
        hoverinfo="skip",
    )


def _does(row: Sequence[Wait]) -> str:
    """The text of a row, in the plural where several ranks share it."""
    text = row[0].text
    return re.sub("^waits ", "wait ", re.sub("^has ", "have ", text)) if len(row) > 1 else text


def _summary(error: DeadlockError, rows: Sequence[Sequence[Wait]]) -> str:
    headline = str(error).split("\n", 1)[0]
    parts = [f"{_label(row)} {_does(row)}" for row in rows[:4]]
    more = f"; and {len(rows) - 4} more" if len(rows) > 4 else ""
    drawn = f" The first {MAX_ROWS} of {len(rows)} kinds of wait are drawn." if len(rows) > MAX_ROWS else ""
    return f"{headline[:1].upper()}{headline[1:].rstrip('.:')}: {'; '.join(parts)}{more}.{drawn}"
