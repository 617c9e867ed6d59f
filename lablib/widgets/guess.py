"""Guesses that are locked before an answer shows.

    days = guess(["days on 1,024 A100"], None, interactive)     a field for each question, and a button that locks
    days                                                        the last line of that cell
    days.reveal(answer)                                         a later cell: the answer, once all are locked

Numbers given instead of None count as locked; so without widgets a learner sets a variable. A locked guess stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Annotated, Any

from lablib.signature import NonEmpty, checked
from lablib.text.units import format_quantity, plural

if TYPE_CHECKING:
    import ipywidgets

LOCKED = "The answer shows after your guess"


class Notice:
    """A sentence as the value of a cell, in place of an answer."""

    def __init__(self, text: str):
        self.text = text

    def __repr__(self) -> str:
        return self.text


class Guesses:
    """Questions with their guesses, numbers above 0; None before they are locked."""

    @checked
    def __init__(self, questions: Sequence[str], given: Sequence[float] | None, interactive: bool):
        self._questions, self._interactive = tuple(questions), interactive
        self._given: list[float] | None = None
        if given is not None:
            self.lock(*given)

    @property
    def is_locked(self) -> bool:
        """Whether every question has a guess."""
        return self._given is not None

    @property
    def values(self) -> list[float]:
        """The guesses in the order of the questions. Raises ValueError unless they are locked."""
        if self._given is None:
            raise ValueError(f"the guesses of {', '.join(self._questions)} are not locked: {self._remedy}")
        return list(self._given)

    def lock(self, *guesses: float) -> None:
        """Lock one number for each question. Raises ValueError for another count, no positive number, a second call."""
        if self._given is not None:
            raise ValueError("guesses are locked once: run the cell of the questions again to begin again")
        is_right = [isinstance(each, int | float) and not isinstance(each, bool) and 0 < each < inf for each in guesses]
        if len(guesses) != len(self._questions) or not all(is_right):
            rule = f"{plural(len(self._questions), 'numbers')} above 0, one for each question"
            raise ValueError(f"guesses are {rule}: got {list(guesses)}")
        self._given = [float(each) for each in guesses]

    def reveal(self, answer: Any) -> Any:
        """The answer, or `answer(*guesses)` of a function, if the guesses are locked; otherwise a notice."""
        if self._given is None:
            return Notice(f"{LOCKED}: {self._remedy}")
        return answer(*self._given) if callable(answer) else answer

    @property
    def _remedy(self) -> str:
        how = "type numbers and press Lock" if self._interactive else "set the variable to numbers"
        return f"in the cell of the questions {how}, then run this cell again."

    def __repr__(self) -> str:
        given = ["?"] * len(self._questions) if self._given is None else map(format_quantity, self._given)
        return "guesses: " + "; ".join(f"{name}: {each}" for name, each in zip(self._questions, given, strict=True))

    def _ipython_display_(self) -> None:
        from IPython.display import display

        if self._interactive and not self.is_locked:
            display(self._panel())
        else:
            print(self)

    def _panel(self) -> ipywidgets.VBox:
        import ipywidgets

        style, layout = {"description_width": "13em"}, {"width": "min(26em, 100%)"}
        fields = [
            ipywidgets.FloatText(0.0, description=question, style=style, layout=layout) for question in self._questions
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


@checked
def guess(
    questions: Annotated[Sequence[str], NonEmpty()], given: Sequence[float] | None = None, interactive: bool = True
) -> Guesses:
    """Ask for one number above 0 for each question; to end a cell with. `given`: the numbers, or None. ValueError."""
    return Guesses(questions, given, interactive)
