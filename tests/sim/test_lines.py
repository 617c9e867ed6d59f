"""The line behind every operator is the one that a walk over all frames finds, whichever backward is under way."""

import sys
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lablib import launch
from lablib.process.replaced import replaced
from lablib.sim import lines
from lablib.sim.memory import memory_tracker
from lablib.sim.source import program_line

PARTS = ("linear", "custom", "checkpointed", "nested", "hooked", "retained", "grad", "detour")


class Scaled(torch.autograd.Function):
    """A function whose backward is code of the program."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * 2


def part(name: str, w: Tensor) -> None:
    """Forward and backward; each backward is called on a line of its own."""
    x = w * 3
    if name == "linear":
        torch.nn.functional.linear(x, w).sum().backward()
    elif name == "custom":
        Scaled.apply(x).sum().backward()  # pyright: ignore[reportAttributeAccessIssue]
    elif name == "checkpointed":
        y: Any = checkpoint(lambda x: (x * x).exp(), x, use_reentrant=False)
        y.sum().backward()
    elif name == "nested":
        x.register_hook(lambda grad: inside(w) or grad * 1)
        (x * x).sum().backward()
    elif name == "hooked":
        x.register_hook(lambda grad: grad + 1)
        x.sum().backward()
    elif name == "retained":
        y = (x * x).sum()
        y.backward(retain_graph=True)
        y.backward()
    elif name == "grad":
        (first,) = torch.autograd.grad((x * x * x).sum(), x, create_graph=True)
        first.sum().backward()
    else:
        for _ in range(2):
            detour(x * 1)


@torch.enable_grad()
def inside(w: Tensor) -> None:
    part("retained", w)


def detour(x: Tensor) -> None:
    x.sum().backward(retain_graph=True)


# Compiled as a file of the simulator's: a frame of this file would be the line of the program itself.
CHECKED = """
class Checked(Lines):
    def here(self, backward):
        asked.append((super().here(backward), str(program_line(sys._getframe(1)))))
        return asked[-1][0]
"""


@given(st.lists(st.lists(st.sampled_from(PARTS), max_size=4), min_size=1, max_size=2), st.booleans())
def test_a_line_is_that_of_a_walk_over_all_frames(ranks, is_shapes):
    names: dict[str, Any] = {"Lines": lines.Lines, "sys": sys, "program_line": program_line, "asked": []}
    exec(compile(CHECKED, lines.__file__, "exec"), names)

    def program() -> None:
        w = torch.ones(3, 3, requires_grad=True)
        parts = ranks[torch.distributed.get_rank()]
        for place in range(4):
            torch.distributed.barrier()
            if place < len(parts):
                part(parts[place], w)

    with replaced((memory_tracker, "Lines", names["Checked"])):
        launch(program, ranks=len(ranks), fidelity="shapes" if is_shapes else "values")
    assert names["asked"] and all(found == walked for found, walked in names["asked"])
