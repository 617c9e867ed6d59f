"""Guesses that are locked before an answer shows.

    days = guess({"days on 1,024 A100": my_guess}, interactive)     a field for each question, and a button that locks
    days                                                            the last line of that cell
    days.reveal(answer)                                             a later cell: the answer, once all are locked

A guess that is already a number counts as locked; so without widgets a learner sets variables. A locked guess stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import TYPE_CHECKING, Annotated, Any

from lablib.signature import NonEmpty, checked
from lablib.text.units import format_quantity

if TYPE_CHECKING:
    import ipywidgets


class Notice:
    """A sentence as the value of a cell, in place of an answer."""

    def __init__(self, text: str):
        self.text = text

    def __repr__(self) -> str:
        return self.text


class Guesses:
    """Questions with their guesses, numbers above 0; None where there is none yet."""

    def __init__(self, guesses: Mapping[str, float | None], interactive: bool):
        self._guesses = {question: None if given is None else _number(given) for question, given in guesses.items()}
        self._interactive = interactive

    @property
    def is_locked(self) -> bool:
        """Whether every question has a guess."""
        return None not in self._guesses.values()

    @property
    def values(self) -> list[float]:
        """The guesses in the order of the questions. Raises ValueError unless all are locked."""
        if not self.is_locked:
            raise ValueError(f"the guesses are not locked: got {self._guesses}; {self._remedy}")
        return [guess for guess in self._guesses.values() if guess is not None]

    def lock(self, *guesses: float) -> None:
        """Lock one number for each question. Raises ValueError for another count, no positive number, a second call."""
        if len(guesses) != len(self._guesses):
            raise ValueError(f"each of {len(self._guesses)} questions needs a number above 0: got {list(guesses)}")
        if self.is_locked:
            raise ValueError("the guesses are locked already; run the cell of the questions again to begin again")
        self._guesses = {question: _number(given) for question, given in zip(self._guesses, guesses, strict=True)}

    def reveal(self, answer: Any) -> Any:
        """The answer, if the guesses are locked; otherwise a notice."""
        return answer if self.is_locked else Notice(f"The answer shows after your guess: {self._remedy}")

    @property
    def _remedy(self) -> str:
        how = "type numbers and press Lock" if self._interactive else "set the variables to numbers"
        return f"in the cell of the questions {how}, then run this cell again."

    def __repr__(self) -> str:
        given = [f"{name}: {'?' if g is None else format_quantity(g)}" for name, g in self._guesses.items()]
        return f"Guesses: {'; '.join(given)}"

    def _ipython_display_(self) -> None:
        from IPython.display import display

        if self._interactive and not self.is_locked:
            display(self._panel())
        else:
            print(self)

    def _panel(self) -> ipywidgets.VBox:
        import ipywidgets

        style, layout = {"description_width": "initial"}, {"width": "min(36em, 100%)"}
        fields = [
            ipywidgets.FloatText(given or 0.0, description=question, style=style, layout=layout)
            for question, given in self._guesses.items()
        ]
        button, said = ipywidgets.Button(description="Lock"), ipywidgets.Label("A guess is a number above 0.")

        def pressed(_: Any) -> None:
            try:
                self.lock(*(field.value for field in fields))
            except ValueError as error:
                said.value = str(error)
                return
            said.value = "Locked."
            for each in (*fields, button):
                each.disabled = True

        button.on_click(pressed)
        return ipywidgets.VBox([*fields, ipywidgets.HBox([button, said])])


def _number(value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
        raise ValueError(f"a guess is a number above 0: got {value!r}")
    return float(value)


@checked
def guess(guesses: Annotated[Mapping[str, float | None], NonEmpty()], interactive: bool = True) -> Guesses:
    """Ask for numbers above 0; to end a cell with. `guesses`: question -> number, or None. Raises ValueError."""
    return Guesses(guesses, interactive)
