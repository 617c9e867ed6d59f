"""Guesses that lock when the answer shows, and their score.

    size = guess("size of the gradient", None, interactive, "MB")   shows a text field
    size.reveal(12.9)                                               a later cell: locks it, compares, prints the score

`Guess` never hides an answer: an empty field is locked too, so a lab runs from top to bottom. Without widgets the guess
replaces None. The score counts the guesses among the notebook's variables: a new kernel begins at 0, and a question
that is asked again after its answer keeps its guess. A number is right within 20% of the answer; with `within=0.02`
also within 0.02 units of it, for an answer that is near zero or noisy.

    days = guess(["days on 1,024 A100"], None, interactive)     a field for each question, and a button that locks
    days                                                        the last line of that cell
    days.reveal(answer)                                         a later cell: the answer, once all are locked

`Guesses` are numbers, and hide the answer until they are locked. Numbers given instead of None count as locked. Each
counts in the score after `days.compare(30)`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence, Set
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, SupportsFloat, overload

from lablib.course.checks.printing import print_text
from lablib.course.translation import say_for
from lablib.signature import NonEmpty, Range, checked
from lablib.text.typed import read_names, read_numbers
from lablib.text.units import format_quantity, plural

if TYPE_CHECKING:
    import ipywidgets

LOCKED = "The answer shows after your guess"


def how_far(number: float, answer: float, unit: str) -> str:
    """The difference in words: percent of the answer, a factor from 2 on, or an amount unless both are above 0."""
    if format_quantity(number, unit) == format_quantity(answer, unit):
        return "exact"
    is_high = number > answer
    if number > 0 and answer > 0 and (factor := max(number / answer, answer / number)) >= 2:
        return f"{factor:.3g} times too high" if is_high else f"{factor:.3g} times too low"
    share = f"{abs(number / answer - 1):.1%}".replace(".0%", "%") if number > 0 and answer > 0 else ""
    amount = share or _quantity(abs(number - answer), unit)
    return f"{amount} too high" if is_high else f"{amount} too low"


def _quantity(number: float, unit: str) -> str:
    return format_quantity(number, unit).replace(" %", "%")


def _is_right(number: float, answer: float, within: float = 0.0) -> bool:
    return abs(number - answer) <= max(0.2 * abs(answer), within)


class Guess:
    """One question and the text of its guess, which is open until `reveal`."""

    def __init__(self, question: str, given: Any, unit: str, within: float = 0.0):
        several = isinstance(given, list | tuple | Set)
        self.question, self.unit, self.within, self.is_shown = question, unit, within, False
        self.text = "" if given is None else ", ".join(map(str, given)) if several else str(given)
        self.is_right: bool | None = None  # None: not compared with a number or a name
        self._lines: tuple[ipywidgets.Text, ipywidgets.Label] | None = None  # the field and its note

    def __repr__(self) -> str:
        return f"{self.question}: {self.text or '?'}"

    def show(self, interactive: bool) -> None:
        """Show the field, or without widgets the given guess."""
        from IPython.core.getipython import get_ipython
        from IPython.display import display

        if interactive and not self.text and hasattr(get_ipython(), "kernel"):
            display(self.panel())
        else:
            say = say_for()
            more = "" if self.text else f"{say('; ')}{say('write your guess here instead of None')}"
            print_text(f"{say(self.question)}{say(': ')}{self.text or '?'}{more}")

    def panel(self) -> ipywidgets.VBox:
        """The question above a text field, its unit, and a note: how numbers are read."""
        import ipywidgets

        say, unit = say_for(), "" if self.unit == "count" else self.unit
        field = ipywidgets.Text(placeholder="?", layout={"width": "16em"})
        also = f"{say(self._also_right)}{say('; ')}" if self.within else ""
        note = ipywidgets.Label(f"{unit} ({also}{say('locks when the answer shows')})".strip())
        self._lines = field, note

        def typed(_: Any) -> None:
            numbers = read_numbers(field.value, self.unit)
            note.value = self._read(numbers) if numbers else say(self._unread(field.value))

        if self.unit:
            field.observe(typed, "value")
        return ipywidgets.VBox([ipywidgets.Label(say(self.question)), ipywidgets.HBox([field, note])])

    def reveal(self, answer: float | str | Iterable[float] | Iterable[str] | None = None) -> None:
        """Lock the guess; print it, the answer, how far off it is, and the score.

        answer: a number in the question's unit, a name, or several, in any order for a set. None: the cell shows the
            answer by other means, and the guess does not count.
        """
        if not self.is_shown and self._lines is not None:
            field, note = self._lines
            self.text, field.disabled, note.value = field.value.strip(), True, say_for()("locked")
        said, is_right = self._compared(answer)
        self.is_right, self.is_shown = self.is_right if self.is_shown else is_right, True
        say = say_for()
        print_text(f"{say(self.question.partition(' (')[0])}{say(': ')}{say('; ').join(map(say, said))}")
        if self.is_right is not None:
            print_score(self)

    @property
    def _also_right(self) -> str:
        return f"right within {_quantity(self.within, self.unit)}"

    def _read(self, numbers: Iterable[float]) -> str:
        return ", ".join(_quantity(each, self.unit) for each in numbers)

    def _unread(self, text: str, count: int | None = None) -> str:
        wanted = "a number" if count == 1 else "numbers" if count is None else plural(count, "numbers")
        unit = "" if self.unit == "count" else self.unit
        return f'"{text}" is not read as {wanted} in {unit}' if unit else f'"{text}" is not read as {wanted}'

    def _compared(self, answer: float | str | Iterable[float] | Iterable[str] | None) -> tuple[list[str], bool | None]:
        """Parts of a sentence on guess and answer; whether the guess is right, None if nothing can be compared."""
        plain: Any = sorted(answer) if isinstance(answer, Set) else getattr(answer, "tolist", lambda: answer)()
        answers = list(plain) if isinstance(plain, Iterable) and not isinstance(plain, str) else [plain]
        numbers = [float(each) for each in answers if isinstance(each, SupportsFloat)]
        shown = self._read(numbers) or ", ".join(map(str, answers))
        mine = f"you guessed {self.text}" if self.text else "no guess was given"
        if not self.text or answer is None:
            return [mine] if answer is None else [mine, f"the answer is {shown}"], None
        if not numbers:
            guessed, names = read_names(self.text), read_names(shown)
            is_right = sorted(guessed) == sorted(names) if isinstance(answer, Set) else guessed == names
            return [mine, f"the answer is {shown}: {say_for()('right' if is_right else 'different')}"], is_right
        guesses = read_numbers(self.text, self.unit, len(numbers))
        if guesses is None:
            return [self._unread(self.text, len(numbers)), f"the answer is {shown}"], None
        pairs = list(zip(guesses, numbers, strict=True))
        far = ", ".join(say_for()(how_far(*pair, self.unit)) for pair in pairs)
        is_right = all(_is_right(*pair, self.within) for pair in pairs)
        said = [f"you guessed {self._read(guesses)}", f"the answer is {shown}: {far}"]
        return [*said, self._also_right] if self.within else said, is_right


def print_score(new: Guess | Guesses) -> None:
    """How many guesses among the notebook's variables, and this one, are right, of those compared with an answer."""
    held = {id(each): each for each in (*vars(sys.modules["__main__"]).values(), new)}
    single = [each for each in held.values() if isinstance(each, Guess) and each.is_right is not None]
    counted = [each.is_right is True for each in single]
    counted += [is_right for each in held.values() if isinstance(each, Guesses) for is_right in each.are_right]
    rule = "within 20% or the stated amount" if any(each.within for each in single) else "within 20%"
    print(say_for()(f"guesses: {sum(counted)} of {len(counted)} {rule}"))


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
        self.are_right: list[bool] = []  # after `compare`
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

    def compare(self, *answers: float) -> None:
        """Print each guess next to its answer, in the unit after the question's comma, and the score with all of them.

        Raises ValueError as `values`.
        """
        pairs = list(zip(self.values, answers, strict=True))
        for question, (mine, answer) in zip(self._questions, pairs, strict=True):
            name, _, unit = question.rpartition(", ")
            far = how_far(mine, answer, unit)
            print_text(f"{name}: you guessed {_quantity(mine, unit)}; the answer is {_quantity(answer, unit)}: {far}")
        self.are_right = [_is_right(*pair) for pair in pairs]
        print_score(self)

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


@overload
def guess(question: str, given: Any = None, interactive: bool = True, unit: str = "", within: float = 0.0) -> Guess: ...
@overload
def guess(question: Sequence[str], given: Sequence[float] | None = None, interactive: bool = True) -> Guesses: ...
@checked
def guess(
    question: Annotated[str | Sequence[str], NonEmpty()],
    given: Any = None,
    interactive: bool = True,
    unit: str = "",
    within: Annotated[float, Range(ge=0)] = 0.0,
) -> Guess | Guesses:
    """Ask a question: show a field for its guess. Several questions: for numbers above 0, to end a cell with.

    question: a noun phrase; words in brackets are left out next to the answer.
    given: the guess instead of a field: a number, a name, or several.
    unit: of numbers; "count" for none; "" for names.
    within: in this unit: a number that is no further off is right, also if that is more than 20% of the answer.
    """
    if not isinstance(question, str):
        return Guesses(question, given, interactive)
    for old in list(vars(sys.modules["__main__"]).values()):
        if isinstance(old, Guess) and old.question == question and old.is_shown:
            print_text(f"{old} ({say_for()('locked: the answer was shown; restart the kernel to begin again')})")
            return old
    asked = Guess(question, given, unit, within)
    asked.show(interactive)
    return asked
