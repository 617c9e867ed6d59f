"""Redraw a figure on the screen: send only the differences, in one message."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from lablib.figures.show import layout_without_subtitle

Props = dict[str, Any]
EMPTY: Props = {"data": [], "layout": {}}


def redraw(widget: go.FigureWidget, before: Props, after: Props) -> None:
    """Change `widget`, which shows `before`, to show `after`; both from `props_of`.

    Traces are changed in place where both figures have the same ones (number, type, axes); otherwise all are replaced.
    """
    is_same_shape = [_shape(t) for t in before["data"]] == [_shape(t) for t in after["data"]]
    if not is_same_shape:
        widget.data = []
    with widget.batch_update():
        _assign(widget.layout, before["layout"], after["layout"])
        if is_same_shape:
            for trace, was, becomes in zip(widget.data, before["data"], after["data"], strict=True):
                _assign(trace, was, becomes)
    if not is_same_shape:
        widget.add_traces(after["data"])


def props_of(figure: go.Figure) -> Props:
    """The displayed part of a figure, as plain dictionaries and arrays; its subtitle is in the caption instead."""
    traces = [trace.to_plotly_json() for trace in figure.data]  # pyright: ignore[reportAttributeAccessIssue]
    return {"data": traces, "layout": layout_without_subtitle(figure) | {"autosize": True}}


def _shape(trace: dict[str, Any]) -> tuple[Any, ...]:
    """Properties that must be equal to turn one trace into another."""
    return trace["type"], trace.get("xaxis"), trace.get("yaxis"), trace.get("name"), trace.get("mode")


def _assign(target: Any, was: dict[str, Any], becomes: dict[str, Any]) -> None:
    """Set every property that differs; unset removed ones."""
    for key in was.keys() | becomes.keys():
        if key not in ("type", "uid") and not _equal(was.get(key), becomes.get(key)):
            target[key] = becomes.get(key)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return type(a) is type(b) and np.array_equal(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_equal, a, b))
    return type(a) is type(b) and a == b
