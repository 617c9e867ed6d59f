"""Figures of an exploration at many settings, for a page without Python: LAB_PICTURES=all in the environment.

Two controls move, the controls of the examples first; the others keep their defaults. As the value of a cell it is a
record of this project's own type, which `lab site` turns into controls and a figure.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import plotly.graph_objects as go

from lablib.errors import LaunchError
from lablib.figures.show import caption_html, without_subtitle
from lablib.widgets.controls import Choice, Control, Toggle

PICTURES_MIME = "application/vnd.lablib.pictures+json"
MOST = (10, 6)  # values of the first control, and of the second


class AllPictures:
    """Controls with the texts of their values, and a figure with its caption, or an error, for each combination."""

    def __init__(self, record: dict[str, Any]) -> None:
        self.record = record

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return {PICTURES_MIME: self.record, "text/plain": repr(self)}

    def __repr__(self) -> str:
        return f"{len(self.record['pictures'])} pictures"


def all_pictures(
    compute: Callable[..., Any],
    draw: Callable[[Any], go.Figure],
    controls: Sequence[Control],
    examples: Sequence[Mapping[str, Any]] = (),
) -> AllPictures:
    """The figure at each combination of two controls. Arguments as of `explore`."""
    shown = [name for example in examples for name in example]
    many = [control for control in controls if len(control.values) > 1]
    many.sort(key=lambda control: shown.index(control.name) if control.name in shown else len(shown))
    moving = {control.name: _some(control, most) for control, most in zip(many, MOST, strict=False)}
    defaults = {control.name: control.default for control in controls}
    pictures = []
    for values in product(*moving.values()):
        try:
            figure = draw(compute(**defaults | dict(zip(moving, values, strict=True))))
        except (ValueError, LaunchError) as error:
            pictures.append({"message": str(error)})
        else:
            drawn = json.loads(without_subtitle(figure).to_json() or "{}")
            pictures.append({"figure": drawn, "caption": caption_html(figure)})
    by_name = {control.name: control for control in controls}
    fixed = [f"{c.label}: {c.format_value(c.default)}" for c in many if c.name not in moving]
    listed = [_described(by_name[name], values) for name, values in moving.items()]
    return AllPictures({"controls": listed, "fixed": fixed, "pictures": pictures})


def _described(control: Control, values: Sequence[Any]) -> dict[str, Any]:
    return {
        "label": control.label,
        "values": [control.format_value(value) for value in values],
        "default": list(values).index(control.default),
        "is_list": isinstance(control, Choice | Toggle),
    }


def _some(control: Control, most: int) -> list[Any]:
    """At most so many values, evenly spread: both ends and the default among them."""
    values = list(control.values)
    if len(values) <= most:
        return values
    places = {round(k * (len(values) - 1) / (most - 2)) for k in range(most - 1)} | {values.index(control.default)}
    return [values[place] for place in sorted(places)]
