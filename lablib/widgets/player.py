"""A slider over moments, with buttons to play it: the widget of `Steps`."""

from __future__ import annotations

from typing import Any

import ipywidgets
import traitlets

MS_PER_STEP = 250


class Player(ipywidgets.HBox):
    """Play, pause and stop next to a slider; both show one `value`.

    The slider takes the arrow keys: one press, one moment. During play, the browser asks for the next moment after
    `MS_PER_STEP`.

    Attributes:
        value: the moment, 0 to `maximum`.
    """

    value = traitlets.Int(0)

    def __init__(self, label: str) -> None:
        # Two labels, read aloud: the visible one belongs to the slider.
        self.slider = ipywidgets.IntSlider(0, 0, 0, description=label, layout={"width": "auto", "flex": "1 1 auto"})
        self.play = ipywidgets.Play(0, min=0, max=0, interval=MS_PER_STEP, show_repeat=False)
        # As wide as its two buttons: the slider needs the room.
        self.play.layout.flex, self.play.layout.width, self.play.layout.height = "0 0 auto", "6.5em", "2em"
        super().__init__([self.slider, self.play])
        traitlets.link((self.slider, "value"), (self, "value"))
        ipywidgets.jslink((self.play, "value"), (self.slider, "value"))

    @property
    def style(self) -> Any:
        """Of the label."""
        return self.slider.style

    @property
    def description(self) -> str:
        """The label."""
        return self.slider.description

    def set_maximum(self, maximum: int) -> None:
        """Set the number of moments after the first."""
        self.slider.max = self.play.max = maximum
