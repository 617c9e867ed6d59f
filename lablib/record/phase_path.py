"""The path of blocks that work ran in: one text until the run has ended, then a span's `phase` and its `outer_phases`.

    with phase("setup"):
        with phase("forward"):      path "setup", "forward": phase "forward", outer phases ("setup",)

The text is made once, when a block opens, so that an operator is given it as it is.
"""

from collections.abc import Sequence
from functools import lru_cache

BETWEEN = "\x1f"  # ASCII's unit separator


def within(outer: str, name: str) -> str:
    """The path of a block with this name inside another ("": none); one without a name, or within itself, adds none."""
    name = name.replace(BETWEEN, " ")
    if not outer or not name:
        return outer or name
    return outer if split(outer)[0] == name else f"{outer}{BETWEEN}{name}"


@lru_cache(maxsize=1024)  # a run has few phases and many spans
def split(path: str) -> tuple[str, tuple[str, ...]]:
    """The innermost name of a path, and the others, outermost first."""
    *outer, phase = path.split(BETWEEN)
    return phase, tuple(outer)


def joined(outer: str, inner: str) -> str:
    """The path of blocks inside others."""
    for name in inner.split(BETWEEN):
        outer = within(outer, name)
    return outer


def recomputed(path: str) -> str:
    """The path of forward code run again: "recompute" in place of an innermost "backward"."""
    phase, outer = split(path)
    return BETWEEN.join((*outer, "recompute")) if phase == "backward" else path


def is_inside(name: str, phase: str, outer_phases: Sequence[str]) -> bool:
    """Whether what ran in this phase ran in the one with this name, however deep."""
    return phase == name or name in outer_phases
