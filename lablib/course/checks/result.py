"""Display of a check's result, a hint and a solution: text, HTML, and fields for a program.

    failed: Ring all-reduce
      rule      bytes each rank sends
      saw       8.389 MB, 1.333 times the budget
      expected  at most 6.291 MB
      next      check.ring_all_reduce.hint() for a hint (3 left)

In another language (LAB_LANG) its words are translated here, where it is shown; its fields stay English.

Every state is written out, not shown by colour alone. The status is white on a dark ground, for a contrast of 4.5 to 1
on a page of any theme; the rest has the colours of the page.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from unicodedata import east_asian_width

from lablib.course.checks.expect import Measured
from lablib.course.translation import say_for
from lablib.text.markup import in_html, paragraph
from lablib.text.units import plural

Status = Literal["passed", "failed", "not attempted", "not checked"]
_COLOURS = {"passed": "#2e7d32", "failed": "#c62828", "not attempted": "#616161", "not checked": "#616161"}
_MAX_HELD = 3  # rules that held, named next to a broken one
_MARKS = {"passed": "&#10003;", "failed": "&#10007;", "not attempted": "&#9675;", "not checked": "&#9675;"}


@dataclass(frozen=True)
class Result:
    """The outcome of one check.

    Attributes:
        lab, name, title: which exercise.
        status: "passed", "failed", "not attempted", or "not checked" (the machine was too busy).
        rule, saw, expected: the rule broken, if one was.
        measured: the rules that held, with measured values.
        trace: lines of the learner's own code that raised, or "".
        next_step: the next action.
        notes: other messages for the learner (progress could not be saved, ...).
        printed: output of rank 0 in the last run of the check that printed.
        seed: seed of the inputs; None if none were drawn, or the exercise is passed.
        call: the answer's last call before its check failed, ready to paste; or "".
    """

    lab: str
    name: str
    title: str
    status: Status
    rule: str = ""
    saw: str = ""
    expected: str = ""
    measured: Sequence[Measured] = ()
    trace: str = ""
    next_step: str = ""
    notes: Sequence[str] = ()
    printed: str = ""
    seed: int | None = None
    call: str = ""

    @property
    def message(self) -> str:
        """The whole result as text."""
        say = say_for(self.lab)
        rows = [f"  {_padded(say(label))} {text}".replace("\n", "\n" + 12 * " ") for label, text in self._rows()]
        return "\n".join([f"{say(self.status)}{say(': ')}{say(self.title)}", *rows])

    def require(self) -> "Result":
        """This result, if the exercise is passed. Raises AssertionError: it is not."""
        if self.status != "passed":
            raise AssertionError(f"lab {self.lab}, {self.name}: {self.message}")
        return self

    def __bool__(self) -> bool:
        return self.status == "passed"

    def __repr__(self) -> str:
        return self.message

    def _repr_html_(self) -> str:
        rows, say = self._rows(), say_for(self.lab)
        held = [row for row in rows if row[0] == "measured"]  # many, so they are folded
        table = _table([(say(label), text) for label, text in rows if label != "measured"])
        if held:
            summary = say(f"{plural(len(held), 'rules')} held")
            measured = _table([(say(label), text) for label, text in held])
            table = f"<details><summary>{summary}</summary>{measured}</details>{table}"
        colour = _COLOURS[self.status]
        return (
            f'<div role="status" style="border-left:5px solid {colour};padding:4px 12px;margin:4px 0">'
            f'<b style="background:{colour};color:#ffffff;padding:1px 8px;border-radius:9px">'
            f"{_MARKS[self.status]} {say(self.status)}</b> <b>{in_html(say(self.title))}</b>"
            f"{table}</div>"
        )

    def _rows(self) -> list[tuple[str, str]]:
        """Label and text of each line below the headline, the texts in the reader's language."""
        say = say_for(self.lab)
        rows = [("rule", say(self.rule)), ("saw", say(self.saw)), ("expected", say(self.expected))]
        rows.append(("where", self.trace))
        if self.status == "passed":
            rows += [("measured", f"{say(measured.rule)}{say(': ')}{say(measured.text)}") for measured in self.measured]
        elif self.measured:
            held = list(dict.fromkeys(m.rule for m in self.measured if m.rule != self.rule))  # it held in another case
            more = [f"and {len(held) - _MAX_HELD} more"] if len(held) > _MAX_HELD else []
            rows.append(("held", say("; ").join(map(say, held[:_MAX_HELD] + more))))
        again = f'import os; os.environ["LAB_CHECK_SEED"] = "{self.seed}"  # the next checks draw these inputs again'
        rows += [("printed", self.printed), ("last call", self.call), ("seed", "" if self.seed is None else again)]
        rows += [("next", say(self.next_step)), *(("note", note) for note in self.notes)]
        return [(label, text) for label, text in rows if text]


def _padded(label: str) -> str:
    """The label in a column of 9 characters; those of East Asia are two wide."""
    return label + " " * (9 - sum(1 + (east_asian_width(character) in "WF") for character in label))


def _table(rows: Sequence[tuple[str, str]]) -> str:
    """Label and text of each row; "" without rows."""
    cells = "".join(
        f'<tr><td style="text-align:left;vertical-align:top;opacity:.75">{label}</td>'
        f'<td style="text-align:left;white-space:pre-wrap">{in_html(text)}</td></tr>'
        for label, text in rows
    )
    return f'<table style="margin:4px 0 0 0">{cells}</table>' if cells else ""


@dataclass(frozen=True)
class Hint:
    """The hints of an exercise that were taken, the newest last."""

    title: str
    shown: Sequence[str]
    left: int

    def __repr__(self) -> str:
        say = say_for()
        if not self.shown:
            return say(f"{self.title} has no hints.")
        return say(f"hint {len(self.shown)} of {len(self.shown) + self.left}: {self.shown[-1]}\n({self._left})")

    def _repr_html_(self) -> str:
        total, say = len(self.shown) + self.left, say_for()
        items = "".join(
            f"<details{' open' if number == len(self.shown) else ''}><summary>"
            f"{in_html(say(f'Hint {number} of {total}: {self.title}'))}</summary>{paragraph(hint)}</details>"
            for number, hint in enumerate(self.shown, 1)
        )
        return items + f"<small>{say(self._left)}</small>" if items else paragraph(repr(self))

    @property
    def _left(self) -> str:
        return f"{self.left} left" if self.left else "that was the last one"


@dataclass(frozen=True)
class ShownSource:
    """Source to show: text in a terminal, folded or open in a notebook."""

    title: str
    text: str
    is_open: bool

    def __repr__(self) -> str:
        return self.text if self.is_open else self.title

    def _repr_html_(self) -> str:
        code = f'<pre style="margin:4px 0;white-space:pre-wrap;font-family:monospace">{in_html(self.text)}</pre>'
        return f"<details{' open' if self.is_open else ''}><summary>{in_html(self.title)}</summary>{code}</details>"
