"""Figures, controls and tables of a translated lab in the reader's language, by course/messages/figures.*.po.

A text without a translation stays English; so does every figure before it is shown, which code reads. Figures name
fonts with Chinese characters (figures/style.py), and the browser takes the first that it has, as for the page's text.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from lablib import figures, widgets
from lablib.course.translation import Say, say_for
from lablib.figures import describe, table
from lablib.text.language import language
from lablib.text.units import plural
from lablib.widgets.explore import Exploration

_WITH_WORDS = ("text", "name", "hovertext", "ticktext")  # properties of a figure
_AROUND_WORDS = re.compile(r"(\s*<[^>]*>\s*)")  # tags
_BETWEEN_SENTENCES = re.compile(r"(?<=[.?!]) (?=[A-Z])")


def show(figure: go.Figure) -> None:
    """`figures.show` in the reader's language."""
    figures.show(translated_figure(figure))


def explore(
    compute: Callable[..., Any],
    draw: Callable[[Any], go.Figure],
    controls: Sequence[Any],
    interactive: bool = True,
    examples: Sequence[Mapping[str, Any]] = (),
) -> Exploration:
    """`widgets.explore` in the reader's language."""
    say = say_for("", "figures")
    named = [replace(control, label=say(control.label)) for control in controls]
    return widgets.explore(compute, lambda value: translated_figure(draw(value)), named, interactive, examples)


def translated_figure(figure: go.Figure) -> go.Figure:
    """The figure with its texts, sentence and table in the reader's language; the same figure in English."""
    if not language():
        return figure
    say = say_for("", "figures")
    changed, rows = _words(figure.to_plotly_json(), say), table(figure)
    sentence = " ".join(map(say, _BETWEEN_SENTENCES.split(describe(figure)))).replace("。 ", "。")
    columns = {say(name): [_words(one, say, "text") for one in rows[name]] for name in rows}
    changed["layout"]["title"]["subtitle"] = figure.layout.title.subtitle  # `show` leaves it out  # pyright: ignore
    label = say(f"Numbers of this figure ({plural(len(rows), 'rows')})")
    changed["layout"]["meta"] = {"summary": sentence, "table": columns, "label": label}
    return go.Figure(changed)


def translated_columns(rows: pd.DataFrame) -> pd.DataFrame:
    """A table with the names of its columns in the reader's language."""
    return rows.rename(columns=say_for("", "figures"))


def _words(value: Any, say: Say, key: str = "") -> Any:
    """A part of a figure with the words of its texts translated; tags are kept."""
    if isinstance(value, str):
        return "".join(map(say, _AROUND_WORDS.split(value))) if key else value
    if isinstance(value, dict):
        return {name: _words(one, say, name if name in _WITH_WORDS else "") for name, one in value.items()}
    is_list = isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.dtype.kind in "OU")
    return [_words(one, say, key) for one in value] if is_list else value
