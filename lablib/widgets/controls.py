"""Controls as records: a name, a label, the allowed values, a default. Each creates its ipywidget.

    IntChoice   a count: every whole number of a range, or a list such as (1, 2, 4, 8)
    LogSlider   a quantity over several powers of ten, in steps of 1, 2, 5
    Choice      one of several names
    Toggle      yes or no
    Text        text from the learner, one line or several
    Steps       a moment among those computed, with buttons to play and to stop

All are reached with Tab and changed with the arrow keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lablib.signature import check_fields, whole_number
from lablib.text.units import format_quantity

if TYPE_CHECKING:
    import ipywidgets


class Control:
    """A control. `name` is the argument of the function."""

    name: str
    label: str
    default: Any
    values: Sequence[Any]

    def format_value(self, value: Any) -> str:
        """The value as shown to the reader."""
        return f"{value:,}" if isinstance(value, int) else str(value)

    def widget(self) -> ipywidgets.ValueWidget:
        """A new ipywidget; its `value` is the control's value."""
        raise NotImplementedError


def _check_default(control: Control) -> None:
    if control.default not in control.values:
        values = control.values if isinstance(control.values, range) else list(control.values)
        message = f"the default of {control.name} must be one of its values: got {control.default!r}, of {values}."
        raise ValueError(message)


@dataclass(frozen=True)
class IntChoice(Control):
    """A whole number. `values` is a range (a slider over all of it) or a list (a slider over these)."""

    name: str
    label: str
    values: Sequence[int]
    default: int
    unit: str = ""

    def __post_init__(self) -> None:
        check_fields(self)
        _check_default(self)

    def format_value(self, value: int) -> str:
        return f"{value:,} {self.unit}".strip()

    def widget(self) -> ipywidgets.ValueWidget:
        import ipywidgets

        if not isinstance(self.values, range):
            return _selection_slider(self)
        first, last = min(self.values), max(self.values)
        label = f"{self.label} ({self.unit})" if self.unit else self.label
        step = abs(self.values.step)
        return ipywidgets.IntSlider(self.default, first, last, step, description=label, **_wide())


@dataclass(frozen=True)
class LogSlider(Control):
    """A quantity between two ends, in steps of 1, 2, 5, 10, 20 ... Its ends and its default are among its values."""

    name: str
    label: str
    minimum: float
    maximum: float
    default: float
    unit: str = ""

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 < self.minimum < self.maximum:
            rule = f"the ends of {self.name} must satisfy 0 < minimum < maximum"
            raise ValueError(f"{rule}: got {self.minimum} and {self.maximum}.")
        if not self.minimum <= self.default <= self.maximum:
            rule = f"the default of {self.name} must lie between its ends"
            raise ValueError(f"{rule}: got {self.default}, outside {self.minimum} to {self.maximum}.")

    @property
    def values(self) -> tuple[float, ...]:
        """Every value of the slider, ascending."""
        inside = {
            # Read from text, so 5e-6 is the float nearest to it and not a product of two roundings.
            float(f"{digit}e{exponent}")
            for exponent in range(-15, 19)
            for digit in (1, 2, 5)
            if self.minimum <= float(f"{digit}e{exponent}") <= self.maximum
        }
        return tuple(sorted(inside | {float(v) for v in (self.minimum, self.default, self.maximum)}))

    def format_value(self, value: float) -> str:
        return format_quantity(value, self.unit)

    def widget(self) -> ipywidgets.ValueWidget:
        return _selection_slider(self)


@dataclass(frozen=True)
class Choice(Control):
    """One of several names, in a drop-down list."""

    name: str
    label: str
    values: Sequence[str]
    default: str

    def __post_init__(self) -> None:
        check_fields(self)
        _check_default(self)

    def widget(self) -> ipywidgets.ValueWidget:
        import ipywidgets

        return ipywidgets.Dropdown(options=list(self.values), value=self.default, description=self.label, **_wide())


@dataclass(frozen=True)
class Toggle(Control):
    """Yes or no, as a check box."""

    name: str
    label: str
    default: bool = False
    values: Sequence[bool] = (False, True)

    def format_value(self, value: bool) -> str:
        return "yes" if value else "no"

    def widget(self) -> ipywidgets.ValueWidget:
        import ipywidgets

        return ipywidgets.Checkbox(self.default, description=self.label, indent=False, **_wide())


@dataclass(frozen=True)
class Text(Control):
    """Text from the learner; it is read when the cursor leaves the field, or at Enter in a field of one line."""

    name: str
    label: str
    default: str
    rows: int = 1

    def __post_init__(self) -> None:
        check_fields(self)
        whole_number("rows", self.rows, example=4)

    @property
    def values(self) -> Sequence[str]:
        return (self.default,)

    def format_value(self, value: str) -> str:
        return "; ".join(value.splitlines())

    def widget(self) -> ipywidgets.ValueWidget:
        import ipywidgets

        options: dict[str, Any] = {"description": self.label, "continuous_update": False, **_wide()}
        if self.rows == 1:
            return ipywidgets.Text(self.default, **options)
        return ipywidgets.Textarea(self.default, rows=self.rows, **options)


@dataclass(frozen=True)
class Steps(Control):
    """A moment: 0, the first, to `count(value)`, of the explorer's value. The arrow keys step, Play plays.

    `explore` computes with the number; a new figure may have fewer moments than the slider had before.
    """

    name: str
    label: str
    count: Callable[[Any], int]
    default: int = 0
    values: Sequence[int] = (0,)

    def widget(self) -> ipywidgets.ValueWidget:
        from lablib.widgets.parts import Player

        return Player(self.label)  # pyright: ignore[reportReturnType]  (it has a value, as they have)


def _selection_slider(control: Control) -> ipywidgets.ValueWidget:
    """A slider over a list of values that are read aloud with their unit."""
    import ipywidgets

    options = [(control.format_value(value), value) for value in control.values]
    return ipywidgets.SelectionSlider(
        options=options, value=float(control.default) if isinstance(control, LogSlider) else control.default,
        description=control.label, **_wide(),
    )  # fmt: skip


def _wide() -> dict[str, Any]:
    """Room for the whole label and a long slider; `Explorer` aligns the labels of its controls."""
    return {"style": {"description_width": "initial"}, "layout": {"width": "min(36em, 100%)"}}
