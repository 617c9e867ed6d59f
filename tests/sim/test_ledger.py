"""The ledger counts what a program holds: closed forms, a plain model of what lives, and torch's own tracker."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from lablib import launch
from lablib.ledger import Memory


def memory_of(program: Callable[..., Any], *args: Any, ranks: int = 1) -> Memory:
    return launch(program, *args, ranks=ranks).memory


def held_at_end(memory: Memory, rank: int = 0) -> dict[str, int]:
    return {name: size for name, size in memory.at(rank, float("inf")).items() if size}


@pytest.mark.parametrize(
    ("make_optimizer", "state_copies"),
    [
        (lambda params: torch.optim.SGD(params, lr=0.1), 0),
        (lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9), 1),
        (lambda params: torch.optim.AdamW(params), 2),
    ],
    ids=["SGD", "momentum", "AdamW"],
)
@pytest.mark.parametrize("sizes", [(8, 16), (64, 32, 10)])
def test_a_step_holds_parameters_gradients_and_the_state_of_its_optimizer(make_optimizer, state_copies, sizes):
    def program() -> tuple:
        model = nn.Sequential(*(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:], strict=False)))
        optimizer = make_optimizer(model.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(4, sizes[0])).sum().backward()
            optimizer.step()
        return model, optimizer

    parameters = 4 * sum(a * b + b for a, b in zip(sizes, sizes[1:], strict=False))
    # AdamW counts its steps in a tensor of 4 bytes for each parameter.
    counters = 4 * 2 * (len(sizes) - 1) if state_copies == 2 else 0
    expected = {"parameter": parameters, "gradient": parameters}
    if state_copies:
        expected["optimizer state"] = state_copies * parameters + counters
    assert held_at_end(memory_of(program)) == expected
