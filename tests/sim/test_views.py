"""Programs that change views of their parameters under `no_grad`, as some optimizers do: any of them is counted."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from lablib import launch

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "slice": lambda p: p[:2],
    "row": lambda p: p[1],
    "transposed": lambda p: p.t() if p.dim() == 2 else p,
    "flat": lambda p: p.view(-1),
    "chunk": lambda p: p.chunk(2)[0],
    "data": lambda p: p.data[1:],
    "detached": lambda p: p.detach()[1:],
    "diagonal": lambda p: p.diagonal() if p.dim() == 2 else p,
    "all": lambda p: p,
}
CHANGES: dict[str, Callable[[Tensor], Any]] = {
    "add": lambda v: v.add_(1),
    "multiply": lambda v: v.mul_(0.5),
    "zero": lambda v: v.zero_(),
    "foreach": lambda v: torch._foreach_add_([v], 1.0),  # pyright: ignore[reportPrivateImportUsage]
    "read": lambda v: v + 1,
    "out": lambda v: torch.mul(v, 2.0, out=v),
    "assign": lambda v: v.__setitem__(0, 3.0) if v.dim() else v,
}
MAKERS: dict[str, Callable[[], Tensor]] = {
    "parameter": lambda: nn.Parameter(torch.ones(4, 4)),
    "plain leaf": lambda: torch.ones(4, 4, requires_grad=True),
    "activation": lambda: torch.ones(4, 4, requires_grad=True) * 2,
    "buffer": lambda: torch.ones(4, 4),
}
steps = st.lists(st.tuples(st.sampled_from(sorted(VIEWS)), st.lists(st.sampled_from(sorted(CHANGES)), max_size=3)))


class Changing(torch.optim.Optimizer):
    """Does to its parameters what it was told, view by view."""

    def __init__(self, params: list[Tensor], steps: list[tuple[str, list[str]]]):
        super().__init__(params, {})
        self._steps = steps

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for param in group["params"]:
                change(param, self._steps)


def change(tensor: Tensor, steps: list[tuple[str, list[str]]]) -> None:
    with torch.no_grad():
        for view, changes in steps:
            if tensor.dim() == 0:
                return
            part = VIEWS[view](tensor)
            for name in changes:
                CHANGES[name](part)


@given(st.sampled_from(sorted(MAKERS)), steps, st.booleans())
def test_any_change_of_any_view_gives_torchs_values_and_adds_nothing(maker, steps, inside_a_step):
    def program() -> Tensor:
        tensor = MAKERS[maker]()
        if inside_a_step and tensor.is_leaf and tensor.requires_grad:
            Changing([tensor], steps).step()
        else:
            change(tensor, steps)
        return tensor.detach().clone()

    run = launch(program, ranks=1)
    assert torch.equal(run.values[0], program())
    assert run.memory.at(0, float("inf"))["optimizer state"] == 0


@pytest.mark.parametrize("maker", ["parameter", "plain leaf"])
def test_an_optimizer_that_updates_a_slice_twice_holds_parameters_and_no_state(maker):
    def program() -> Tensor:
        param = MAKERS[maker]()
        (param * 2).sum().backward()
        Changing([param], [("slice", ["add", "multiply", "add"]), ("slice", ["zero"])]).step()
        return param

    memory = launch(program, ranks=1).memory
    held = {name: size for name, size in memory.at(0, float("inf")).items() if size}
    assert held == {"parameter": 64, "gradient": 64}
