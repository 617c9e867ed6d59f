"""Statements of a check. Each states a rule; a broken rule is reported as rule, saw, expected.

    run = expect.launch(program, x, ranks=4)                     a run of the learner's code, on the simulator
    expect.equal("every rank holds the sum", saw=run.values, expected=[total] * 4)
    expect.close("the loss is the one-device loss", saw=loss, expected=reference, rtol=1e-9)
    expect.budget("bytes each rank sends", saw=run.traffic.sent_bytes(0), at_most=2 * 3 / 4 * size_bytes, unit="B")
    expect.that("ranks end together", spread_s < 1e-9, saw=f"{spread_s} s apart", expected="all at the same time")
    expect.raises("a skipped collective is diagnosed", DeadlockError, lambda: expect.launch(program, ranks=2))
    ranks = expect.draw.integer(2, 9)                            inputs drawn for each run of the check

Rules that many checks share are in rules.py. A rule that holds is kept with its measured value, so that "passed" can
show its numbers.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeVar

from lablib.course.checks.comparison import difference, distinguishable, is_array, plain_number
from lablib.course.checks.formatting import short_repr
from lablib.course.checks.time_limit import LAUNCH_LIMIT_S
from lablib.signature import checked
from lablib.text.units import format_quantity

if TYPE_CHECKING:
    from lablib.course.checks.draw import Draw
    from lablib.run import Run

E = TypeVar("E", bound=BaseException)


class RuleBroken(Exception):
    """A broken rule of a check. It can be raised on a rank, and can be pickled in worker processes."""

    def __init__(self, rule: str, saw: str, expected: str):
        super().__init__(rule, saw, expected)  # pickling calls the class with these
        self.rule, self.saw, self.expected = rule, saw, expected

    def __str__(self) -> str:
        return f"{self.rule}: saw {self.saw}, expected {self.expected}"


class NotAttempted(Exception):
    """The exercise still holds its stub."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A rule that held, with its measured value as text."""

    rule: str
    text: str


class Expect:
    """The first argument of a check.

    Args:
        seed: seed of its inputs; None: a new one (draw.py).
        answers: the learner's answers; every rank of `launch` gets a copy (own_copy.py).

    Attributes:
        measured: the rules that held.
        printed: output of rank 0 in each run of `launch`.
    """

    @checked
    def __init__(self, seed: int | None = None, answers: Sequence[Any] = ()) -> None:
        self._answers = answers
        self.measured: list[Measured] = []
        self.printed: list[str] = []
        self._seed = seed

    @cached_property
    def draw(self) -> "Draw":
        """Draws the inputs. A rule that is broken after the first draw reports its seed."""
        from lablib.course.checks.draw import Draw  # it needs torch, and not every check does

        return Draw(self._seed)

    @property
    def seed(self) -> int | None:
        """The seed of `draw`, if anything was drawn."""
        return self.draw.seed if "draw" in vars(self) else None

    def launch(self, program: Callable[..., Any], *args: Any, **options: Any) -> "Run":
        """Run learner's code on simulated ranks: `lablib.launch`; time_limit.py ends a run that takes too long.

        As processes do, ranks have separate variables: values reach another rank only by communication. Raises
        LaunchError: as `lablib.launch` does.
        """
        from lablib.course.checks.own_copy import with_own_copies
        from lablib.launch import launch

        if options.get("backend", "sim") == "sim":
            program, args = with_own_copies(program, args, self._answers, options.get("ranks", 4))
        run = None
        try:
            run = launch(program, *args, **{"timeout_s": LAUNCH_LIMIT_S, **options})
            return run
        except Exception as error:
            run = getattr(error, "run", None)  # up to the error
            raise
        finally:
            if run is not None and run.stdout and run.stdout[0]:
                self.printed.append(run.stdout[0])

    def equal(self, rule: str, saw: Any, expected: Any) -> None:
        """`saw` equals `expected` exactly: tensors in shape, type and every bit of value; also inside lists and dicts.

        Raises:
            RuleBroken: it does not.
            NotAttempted: `saw` is or holds `...`.
        """
        self._compare(rule, saw, expected, rtol=None, atol=0.0, note="equal")

    def close(self, rule: str, saw: Any, expected: Any, *, rtol: float = 1e-9, atol: float = 0.0) -> None:
        """|saw - expected| <= atol + rtol * |expected| for every number; shapes equal, types free.

        Raises:
            RuleBroken: some number is further off, or is not a number.
            NotAttempted: `saw` is or holds `...`.
        """
        self._compare(rule, saw, expected, rtol=rtol, atol=atol, note=f"equal to {max(rtol, atol):.0e}")

    def budget(self, rule: str, saw: float, at_most: float, unit: str = "", at_least: float = 0.0) -> None:
        """`saw` is within a budget: simulated seconds ("s"), bytes ("B") sent or held, or a count.

        Allows rounding of the last bits (1e-9). `at_least` rejects an answer that does less than the task needs. Raises
        RuleBroken: it is more or less than allowed, or not a number.
        """
        _refuse_stub(saw)
        saw = plain_number(saw)
        if not isinstance(saw, Real) or isinstance(saw, bool):
            raise RuleBroken(rule, f"{type(saw).__name__} {short_repr(saw)}", "a number")

        def in_units(value: float, digits: int = 4) -> str:
            return format_quantity(value, unit, digits=digits)

        if not saw <= at_most + 1e-9 * abs(at_most):
            spent, most = distinguishable(in_units, saw, at_most)
            if at_most:
                times, _ = distinguishable(lambda x, digits=4: f"{x:.{digits}g}", saw / at_most, 1.0)
                spent = f"{spent}, {times} times the budget"
            raise RuleBroken(rule, spent, f"at most {most}")
        if not saw >= at_least - 1e-9 * abs(at_least):
            spent, least = distinguishable(in_units, saw, at_least)
            raise RuleBroken(rule, f"{spent}: less than the task needs", f"at least {least}")
        self.measured.append(Measured(rule, f"{in_units(saw)}, at most {in_units(at_most)}"))

    def that(self, rule: str, condition: bool, saw: object, expected: object) -> None:
        """`condition` holds. For rules that the other methods do not cover; `saw` and `expected` are for the message.

        A rule that holds keeps `saw` as measured, or `expected` if `saw` is text, which describes a failure, or is
        empty (no offenders). Raises RuleBroken: it does not hold.
        """
        _refuse_stub(saw)
        if not condition:
            raise RuleBroken(rule, _text(saw), _text(expected))
        is_empty = hasattr(saw, "__len__") and not is_array(saw) and len(saw) == 0  # pyright: ignore
        is_value = not (saw is None or isinstance(saw, str) or is_empty)  # 0 and False are values
        self.measured.append(Measured(rule, _text(saw if is_value else expected)))

    def raises(self, rule: str, error: type[E], call: Callable[[], object]) -> E:
        """Calling `call()` raises an `error`, which is returned.

        Raises RuleBroken: nothing is raised. Another exception passes through.
        """
        try:
            value = call()
        except error as raised:
            self.measured.append(Measured(rule, type(raised).__name__))
            return raised
        raise RuleBroken(rule, f"no error, and the value {short_repr(value)}", error.__name__)

    @contextmanager
    def grouped(self, rule: str, text: str) -> Iterator[None]:
        """Show rules that hold inside as one rule with this text: the same rule on every rank, or in a further run."""
        held = len(self.measured)
        yield
        self.measured[held:] = [Measured(rule, text)]

    def _compare(self, rule: str, saw: Any, expected: Any, rtol: float | None, atol: float, note: str) -> None:
        _refuse_stub(saw)
        found = difference(saw, expected, rtol, atol)
        if found:
            raise RuleBroken(rule, *found)
        self.measured.append(Measured(rule, note))


def _refuse_stub(saw: Any) -> None:
    if saw is Ellipsis or (isinstance(saw, list | tuple) and any(item is Ellipsis for item in saw)):
        raise NotAttempted


def _text(value: object) -> str:
    if isinstance(value, float):
        return format_quantity(value, digits=4)
    return value if isinstance(value, str) else short_repr(value)
