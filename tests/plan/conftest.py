"""A device that multiplies at its peak and reads in no time, so that seconds are FLOPs / peak to the last digit."""

from collections.abc import Callable

import pytest

from lablib.hardware import CLUSTERS, Device
from lablib.plan.derating import IDEAL
from lablib.plan.machine import Machine
from lablib.plan.stack import Stack, find_stack


@pytest.fixture(scope="session")
def ideal() -> Device:
    """1 PFLOP/s in every dtype: no tiles, no depth, no launches, and memory that takes no time."""
    return Device("ideal", dict.fromkeys(("float32", "bfloat16", "float16"), 1e15), 80e9, 1e30)


@pytest.fixture(scope="session")
def machine(ideal) -> Callable[..., Machine]:
    """Of a stack and a precision: this device in DGX A100s, and no derating."""

    def made(stack: str | Stack, precision: str = "bfloat16") -> Machine:
        return Machine(CLUSTERS["dgx-a100"].replace(device=ideal), find_stack(stack), IDEAL, precision)

    return made
