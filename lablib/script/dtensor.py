"""DTensors on the simulated device: patches of DTensor's Python code below operators.

There DTensor uses the mesh's device "cuda" in callbacks from torch's C++, where the rank's mode is off (devices.py):

    shape inference                 it runs the operator on fake tensors of the mesh's device: here of the CPU, as the
                                    shards
    random numbers                  a tracker on every rank keeps the device's generators equal over the ranks: it moves
                                    their states to the device, and gives each shard a different offset
    loss on sharded logits          `loss_parallel` moves the targets to the mesh's device
    attention                       torch chooses the CPU's kernel, for which DTensor has no sharding rule; it is
                                    replaced by CUDA's memory-efficient kernel (cuda_kernels.py), which has one

torch imports DTensor on demand. Its users make a mesh, so the patches are installed with the first mesh.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from lablib.script.devices import switched_on, with_mode
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
    """Install the patches once a rank has a mesh of devices."""
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
    patches.answer(*place("dtensor_rng_state"), with_mode(current("dtensor_rng_state")))
    dtensor = import_module("torch.distributed.tensor").DTensor
    patches.answer(dtensor, "from_local", with_mode(dtensor.from_local))
    patches.answer(*place("dtensor_draws"), _region_with_mode(current("dtensor_draws")))


def _fake_argument(process: Process, spec: Any) -> torch.Tensor:
    meta = spec.tensor_meta
    assert meta is not None
    return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype)


def _attention(op: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Attention of DTensors; the mask is expanded to each row and head, as required by CUDA's kernel."""
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
    # torch uses the number of heads of k and v as the number of heads of q.
    return tuple(grad if grad.shape == x.shape else _shaped(grad, x) for grad, x in zip(grads, (q, k, v), strict=False))


def _shaped(grad: Any, like: Any) -> Any:
    sizes = {"shape": like.shape, "stride": like.stride()}
    return type(grad).from_local(grad.to_local(), grad.device_mesh, grad.placements, **sizes)


def _bias(q: Any, k: Any, kwargs: dict[str, Any]) -> Any:
    mask = kwargs.get("attn_mask")
    return None if mask is None else mask.expand(*q.shape[:3], k.shape[2])


def _region_with_mode(region: Callable[..., Any]) -> Callable[..., Any]:
    @contextmanager
    def answer(process: Process, *args: Any, **kwargs: Any) -> Iterator[None]:
        with switched_on(process), region(*args, **kwargs):
            yield

    return answer
