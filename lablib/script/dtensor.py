"""DTensors on the simulated device: what DTensor does in Python below an operator, where a rank's mode rests.

DTensor says "cuda" itself, as the mesh does, where torch's C++ has called it back (the mode: devices.py):

    which shape has the result?     it runs the operator on fake tensors of the mesh's device: here of the CPU, where
                                    the shards truly are
    random numbers                  every rank has a tracker that keeps the device's generators alike over the ranks: it
                                    moves their states to the device, and gives each shard an offset of its own
    a loss of cut logits            `loss_parallel` moves the targets to the mesh's device

torch imports DTensor when it is used. Who uses it has a mesh, so the answers are put in place when the first is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from lablib.script.devices import switched_on
from lablib.script.patches import Patches
from lablib.script.process import Process
from lablib.torch_compat import current, place


def answer_dtensor(patches: Patches) -> None:
    """Put the answers in place once a rank has a mesh of devices."""
    make, done = DeviceMesh.__init__, []

    def rank_makes_mesh(process: Process, mesh: DeviceMesh, device_type: str, *args: Any, **kwargs: Any) -> None:
        make(mesh, device_type, *args, **kwargs)
        if device_type == "cuda" and not done:
            done.append(True)
            _answer(patches)

    patches.answer(DeviceMesh, "__init__", rank_makes_mesh)


def _answer(patches: Patches) -> None:
    patches.answer(*place("dtensor_fake_argument"), _fake_argument)
    patches.answer(*place("dtensor_rng_state"), _with_mode(current("dtensor_rng_state")))
    dtensor = import_module("torch.distributed.tensor").DTensor
    patches.answer(dtensor, "from_local", _with_mode(dtensor.from_local))
    patches.answer(*place("dtensor_draws"), _region_with_mode(current("dtensor_draws")))


def _fake_argument(process: Process, spec: Any) -> torch.Tensor:
    """A fake tensor of the whole DTensor's shape."""
    meta = spec.tensor_meta
    assert meta is not None
    return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype)


def _with_mode(function: Callable[..., Any]) -> Callable[..., Any]:
    def answer(process: Process, *args: Any, **kwargs: Any) -> Any:
        with switched_on(process):
            return function(*args, **kwargs)

    return answer


def _region_with_mode(region: Callable[..., Any]) -> Callable[..., Any]:
    @contextmanager
    def answer(process: Process, *args: Any, **kwargs: Any) -> Iterator[None]:
        with switched_on(process), region(*args, **kwargs):
            yield

    return answer
