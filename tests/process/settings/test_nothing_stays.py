"""After a launch nothing of it is left in torch: neither what ran, nor what stood in the place of torch's functions."""

import gc
import inspect
import os
import signal
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from lablib import launch
from lablib.errors import LaunchError
from lablib.sim.operators import clock, shapes
from lablib.studies import data_parallel_scaling
from lablib.torch_compat import backend_plugins

pytestmark = pytest.mark.timeout(60)


class Thing:
    """Something that a weak reference can follow."""


def end_well() -> None:
    pass


def fail() -> None:
    raise ValueError("the program's own")


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    run_too_long()


def run_too_long() -> None:
    while True:
        time.sleep(0.01)


ENDS: list[Callable[[], None]] = [end_well, fail, interrupt, run_too_long]


def launched(end: Callable[[], None], fidelity: str) -> list[weakref.ref]:
    """References to what took part in a run that is over: program, closure, argument, each rank's copy, value."""
    seen: list[weakref.ref] = []
    enclosed = Thing()

    def program(argument: Thing) -> Thing:
        value = Thing()
        seen.extend(map(weakref.ref, (argument, enclosed, value)))
        dist.all_reduce(torch.ones(2))
        end()
        return value

    argument = Thing()
    seen += map(weakref.ref, (program, argument))
    with suppress(LaunchError, KeyboardInterrupt):
        launch(program, argument, ranks=2, fidelity=fidelity, timeout_s=1.5 if end is run_too_long else None)
    assert len(seen) == 8  # all of both ranks was there
    return seen


@pytest.mark.parametrize("fidelity", ["values", "shapes"])
@pytest.mark.parametrize("end", ENDS)
def test_program_arguments_and_values_die_with_the_run(end: Callable[[], None], fidelity: str):
    seen = launched(end, fidelity)
    gc.collect()
    assert [kept() for kept in seen if kept() is not None] == []


@pytest.mark.parametrize("end", ENDS)
def test_functions_of_torch_are_torchs_own_after_a_run(end: Callable[[], None]):
    places: list[Any] = [torch.UntypedStorage, torch.utils, torch.distributed, torch, Tensor, signal]
    launched(end_well, "values")  # what torch itself loads on first use
    before = [dict(vars(place)) for place in places]
    launched(end, "values")
    assert [dict(vars(place)) for place in places] == before
    inherited = torch.UntypedStorage.__bases__[0]
    assert torch.UntypedStorage.resize_ is inherited.resize_  # as torch has it


def test_a_group_of_the_simulator_cannot_be_made_outside_a_launch():
    launched(end_well, "values")
    with pytest.raises(LaunchError, match="inside a launch"):
        backend_plugins["SIM"].creator_fn(None, None)


@pytest.mark.parametrize("module", [data_parallel_scaling, clock, shapes])
def test_what_is_remembered_of_clusters_and_of_a_programs_code_has_a_bound(module: Any):
    own = (found for found in vars(module).values() if getattr(found, "__module__", "") == module.__name__)
    caches = [found for found in own if hasattr(found, "cache_info") and inspect.signature(found).parameters]
    assert caches and all(found.cache_info().maxsize is not None for found in caches)
