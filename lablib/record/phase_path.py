"""Path of named blocks around an operator, later `phase` and `outer_phases` of its span.

    with phase("setup"):
        with phase("forward"):      path "setup", "forward": phase "forward", outer phases ("setup",)

The text is made once, when a block opens, and shared by all operators inside.
"""

from collections.abc import Sequence
from functools import lru_cache

BETWEEN = "\x1f"  # ASCII's unit separator


def within(outer: str, name: str) -> str:
    """The path of a block inside `outer` ("": none); one without a name, or with the name of `outer`, adds nothing."""
    name = name.replace(BETWEEN, " ")
    if not outer or not name:
        return outer or name
    return outer if split(outer)[0] == name else f"{outer}{BETWEEN}{name}"


@lru_cache(maxsize=1024)  # a run has few phases and many spans
def split(path: str) -> tuple[str, tuple[str, ...]]:
    """The innermost name of a path, and the outer ones, outermost first."""
    *outer, phase = path.split(BETWEEN)
    return phase, tuple(outer)


def joined(outer: str, inner: str) -> str:
    """The path `inner` nested within `outer`."""
    for name in inner.split(BETWEEN):
        outer = within(outer, name)
    return outer


def recomputed(path: str) -> str:
    """The path of recomputed forward code: "recompute" instead of an innermost "backward"."""
    phase, outer = split(path)
    return BETWEEN.join((*outer, "recompute")) if phase == "backward" else path


def is_inside(name: str, phase: str, outer_phases: Sequence[str]) -> bool:
    """Whether a phase is a block of this name, or nested in one at any depth."""
    return phase == name or name in outer_phases
