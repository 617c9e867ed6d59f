"""Exercises as a lab's `checks.py` declares them.

@exercise("Ring all-reduce", hints=["a nudge", "the idea", "nearly the answer"])
def ring_all_reduce(expect, answer):
    run = expect.launch(program, answer, ranks=4)
    expect.equal("every rank holds the sum", run.values, ...)
"""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType

from lablib.course.places import Lab
from lablib.signature import checked

RESERVED = ("hint", "names")


@dataclass(frozen=True)
class Exercise:
    """One exercise. `run(expect, answer, ...)` returns if the answer is right."""

    name: str
    title: str
    hints: tuple[str, ...]
    run: Callable[..., None]


@checked
def exercise(title: str, hints: Sequence[str] = ()) -> Callable[[Callable[..., None]], Exercise]:
    """Declare a check with a title, and hints from the first nudge to nearly the answer. Its name is the function's.

    Raises ValueError: a name that the notebook uses otherwise, or hints that are not a list.
    """
    if isinstance(hints, str):
        raise ValueError(f"hints must be a list of texts: got one text, {hints!r}; put it in brackets.")

    def declare(run: Callable[..., None]) -> Exercise:
        if run.__name__ in RESERVED or run.__name__.startswith("_"):
            raise ValueError(f"a check must not be called {run.__name__!r}: choose another name.")
        return Exercise(run.__name__, title, tuple(hints), run)

    return declare


def exercises_of(lab: Lab) -> list[Exercise]:
    """The exercises in a lab's file of checks, in order; none if there is no such file."""
    if not lab.checks.is_file():
        return []
    # Run again each time, since its author may have changed it, under a name unique to the lab.
    name = f"lablib_checks_of_{lab.name}"
    spec = importlib.util.spec_from_file_location(name, lab.checks)
    assert spec, lab.checks  # a .py file always has a loader
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    exec(_compiled(lab.checks.read_bytes(), str(lab.checks)), vars(module))
    return [value for value in vars(module).values() if isinstance(value, Exercise)]


@lru_cache(maxsize=32)
def _compiled(source: bytes, path: str) -> CodeType:
    """Compiled once: compiling takes longer than running, and a proof runs the same checks for each of its answers."""
    return compile(source, path, "exec")
