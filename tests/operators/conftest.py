"""Fixtures: every operator of a program below autograd, as it was called, and with its cost."""

from collections.abc import Callable
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from lablib.hardware import Device
from lablib.operators import OpCost, op_cost
from lablib.operators.op import is_free

Calls = list[tuple[Any, tuple, dict, Any]]


class Recorder(TorchDispatchMode):
    """Holds the calls of a program in order: operator, arguments and result; views and reservations left out."""

    def __init__(self):
        super().__init__()
        self.calls: Calls = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not is_free(func):
            self.calls.append((func, args, kwargs or {}, out))
        return out


def _calls_of(program: Callable[[], Any]) -> Calls:
    with Recorder() as recorder:
        program()
    return recorder.calls


@pytest.fixture(scope="session")
def calls_of() -> Callable[[Callable[[], Any]], Calls]:
    """program -> its calls that start a kernel."""
    return _calls_of


@pytest.fixture(scope="session")
def priced() -> Callable[[Callable[[], Any], Device], list[tuple[str, OpCost]]]:
    """(program, device) -> name and cost of each of its calls that start a kernel."""

    def costs_of(program: Callable[[], Any], device: Device) -> list[tuple[str, OpCost]]:
        return [(call[0]._schema.name, op_cost(*call, device)) for call in _calls_of(program)]

    return costs_of
