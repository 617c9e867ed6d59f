"""DTensors on the simulated device: what DTensor does in Python below an operator, where a rank's mode rests.

DTensor says "cuda" itself, as the mesh does, where torch's C++ has called it back (the mode: devices.py):

    which shape has the result?     it runs the operator on fake tensors of the mesh's device: here of the CPU, where
                                    the shards truly are
    random numbers                  every rank has a tracker that keeps the device's generators alike over the ranks: it
                                    moves their states to the device, and gives each shard an offset of its own
    a loss of cut logits            `loss_parallel` moves the targets to the mesh's device
    attention                       torch chooses the CPU's kernel, for which DTensor has no sharding rule: CUDA's
                                    memory-efficient kernel (cuda_kernels.py) has one, and takes its place

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
from lablib.script.marks import index_of, mark
from lablib.script.patches import Patches
from lablib.script.process import Process
from lablib.torch_compat import (
    current,
    efficient_attention,
    efficient_attention_backward,
    flash_attention_for_cpu,
    flash_attention_for_cpu_backward,
    op_dispatcher,
    op_handlers,
    place,
)


def answer_dtensor(patches: Patches) -> None:
    """Put the answers in place once a rank has a mesh of devices."""
    make, done = DeviceMesh.__init__, []

    def rank_makes_mesh(process: Process, mesh: DeviceMesh, device_type: str, *args: Any, **kwargs: Any) -> None:
        make(mesh, device_type, *args, **kwargs)
        if device_type != "cuda":
            return
        if not done:
            done.append(True)
            _answer(patches)
        api = import_module("torch.distributed.tensor._api")
        op_handlers(op_dispatcher(api)).update(  # of this rank (lablib/process/settings/torch_modules.py)
            {flash_attention_for_cpu.default: _attention, flash_attention_for_cpu_backward.default: _attention_backward}
        )

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


def _attention(op: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Attention of DTensors; a mask is given for each row and head, as CUDA's kernel wants it."""
    q, k, v, dropout_p, is_causal = (*args, *(0.0, False)[len(args) - 3 :])
    bias, scale = _bias(q, k, kwargs), kwargs.get("scale")
    return efficient_attention(q, k, v, bias, True, dropout_p, is_causal, scale=scale)[:2]


def _attention_backward(op: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[Any, ...]:
    dy, q, k, v, y, logsumexp, dropout_p, is_causal = args
    bias, scale, seed = _bias(q, k, kwargs), kwargs.get("scale"), torch.zeros((), dtype=torch.int64)
    wanted = (True, True, True, False)
    if (index := index_of(q)) is not None:
        mark(seed, index)
    grads = efficient_attention_backward(
        dy, q, k, v, bias, y, logsumexp, seed, seed, dropout_p, wanted, is_causal, scale=scale
    )
    # torch takes the number of heads of k and v for the number of heads of q.
    return tuple(grad if grad.shape == x.shape else _shaped(grad, x) for grad, x in zip(grads, (q, k, v), strict=False))


def _shaped(grad: Any, like: Any) -> Any:
    return type(grad).from_local(
        grad.to_local(), grad.device_mesh, grad.placements, shape=like.shape, stride=like.stride()
    )


def _bias(q: Any, k: Any, kwargs: dict[str, Any]) -> Any:
    mask = kwargs.get("attn_mask")
    return None if mask is None else mask.expand(*q.shape[:3], k.shape[2])


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
