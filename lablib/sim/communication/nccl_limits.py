"""Calls of `torch.distributed` that NCCL does not support: a table and a check.

A program that runs on gloo and on the simulator may still fail on NCCL. `launch(program, like="nccl")` rejects it here,
with NCCL's words and a remedy; so do the groups of a script that asks for "nccl". nccl_order.py checks order and tags
of messages; lablib/script/backends.py checks the device of the memory.

Source: torch 2.11 to 2.13, torch/csrc/distributed/c10d: `getNcclReduceOp`, `isUnsupportedFloat8`,
`check_gpu_single_tensor` and the methods of ProcessGroupNCCL.cpp; `ncclDataType` of NCCLUtils.hpp (its float8 types
need NCCL 2.24; each of these torch's wheels brings 2.27 or later).

Simplified: sums of float8 need a GPU of compute capability 9.0, which is not checked here. In three places NCCL accepts
memory with gaps and silently moves the wrong bytes (the output of `gather`, `scatter`, `reduce_scatter_tensor`): here
these are rejected as well.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

RedOp: Any = dist.ReduceOp.RedOpType  # an enum of torch's C++ side, missing in its type stubs


@dataclass(frozen=True)
class Limit:
    """One unsupported use of NCCL."""

    what: str  # its name in messages
    error: type[Exception]  # the type of torch's exception
    says: str  # torch's words; `{}` is the given value
    remedy: str  # the replacement


LIMITS: Mapping[str, Limit] = MappingProxyType(
    {
        "bitwise": Limit(
            "bitwise reductions",
            ValueError,
            "Cannot use ReduceOp.{} with NCCL",
            "gather the tensors with all_gather and combine them; of flags, MAX is `any` and MIN is `all`",
        ),
        "premul_sum": Limit(
            "PREMUL_SUM of integers",
            TypeError,
            "PreMulSum Data type must be half, float, bfloat16 or double: got {}",
            "multiply before the call and use SUM",
        ),
        "dtype": Limit(
            "int16, unsigned integers of more than 8 bits, complex numbers in some calls, and other rare types",
            TypeError,
            "Input tensor data type is not supported for NCCL process group: {}",
            "send it as another: x.to(torch.int32), torch.view_as_real(x), or x.view(torch.uint8) for its bytes",
        ),
        "float8": Limit(
            "sums of float8_e4m3fnuz and float8_e5m2fnuz",
            RuntimeError,
            "Unsupported Float8 type for NCCL reduction: got {}",
            "reduce in bfloat16, or in float8_e4m3fn or float8_e5m2 on Hopper and later",
        ),
        "contiguous": Limit(
            "tensors with gaps or in another order of dimensions",
            ValueError,
            "Tensors must be contiguous: got shape {} with strides {}",
            "communicate x.contiguous(), and copy the result back",
        ),
        "dense": Limit(
            "messages, and lists of tensors, with gaps",
            ValueError,
            "Tensors must be non-overlapping and dense: got shape {} with strides {}",
            "communicate x.contiguous(), and copy the result back",
        ),
        "any source": Limit(
            "a receive from anyone",
            NotImplementedError,
            "ProcessGroupNCCL does not support recvAnysource",
            "name the sender: dist.recv(x, src=0)",
        ),
        "coalesced lists": Limit(
            "all_gather_coalesced",
            NotImplementedError,
            "ProcessGroupNCCL does not support allgather_coalesced",
            "call all_gather for each tensor, or once for all of them in one tensor",
        ),
        "monitored barrier": Limit(
            "monitored_barrier",
            ValueError,
            "monitored_barrier is only implemented for GLOO backend",
            'call barrier(), or monitored_barrier on a group of dist.new_group(backend="gloo")',
        ),
    }
)

_DTYPES = frozenset(
    (torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool, torch.float16, torch.bfloat16, torch.float32)
    + (torch.float64, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
)
_NO_SUMS = (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
_BITWISE = (RedOp.BAND, RedOp.BOR, RedOp.BXOR)
_PREMULTIPLIED = (torch.float16, torch.float32, torch.bfloat16, torch.float64)
_AS_REAL = ("all_reduce", "broadcast", "reduce")  # torch's NCCL group views complex numbers as pairs itself
_COPIED = {("all_gather", "received"), ("reduce_scatter", "sent")}  # through a buffer of torch


class NcclLimits:
    """Rejects the calls of a group that NCCL would reject.

    `is_own`: whether NCCL handles a tensor: in a group "cpu:gloo,cuda:nccl" only tensors on the device.
    """

    def __init__(self, is_own: Callable[[Tensor], bool] = lambda tensor: True):
        self.is_own = is_own

    def check_collective(self, name: str, sent: Sequence[Tensor], received: Sequence[Tensor], reduction: Any) -> None:
        """Raise torch's error for this call on NCCL, with a remedy, if NCCL does not support it.

        Args:
            name: the collective, as the process group calls it: "all_reduce", ....
            sent, received: input tensors and buffers.
            reduction: the reduction; None for a call without one.
        """
        if name == "monitored_barrier":
            refuse("monitored barrier")
        for role, tensors in (("sent", sent), ("received", received)):
            for tensor in filter(self.is_own, tensors):
                _check_dtype(name, tensor.dtype, reduction)
                if (name, role) not in _COPIED:
                    is_list = name == "all_reduce" and len(tensors) > 1
                    _check_layout(tensor, "dense" if is_list else "contiguous")

    def check_message(self, tensor: Tensor, from_anyone: bool) -> None:
        """Raise torch's error for this send or receive on NCCL, with a remedy."""
        if not self.is_own(tensor):
            return
        if from_anyone:
            refuse("any source")
        _check_dtype("send", tensor.dtype, None)
        _check_layout(tensor, "dense")

    def check_coalesced_lists(self, tensors: Sequence[Tensor]) -> None:
        """Raise torch's error for all_gather_coalesced on NCCL, with a remedy."""
        if any(map(self.is_own, tensors)):
            refuse("coalesced lists")


def refuse(key: str, *given: object) -> NoReturn:
    """Raise the error of a row of the table."""
    limit = LIMITS[key]
    raise limit.error(f"NCCL: {limit.says.format(*given)}; {limit.remedy}")


def _check_dtype(name: str, dtype: torch.dtype, reduction: Any) -> None:
    if dtype not in _DTYPES and not (dtype.is_complex and name in _AS_REAL):
        refuse("dtype", dtype)
    if reduction is None:
        return
    if reduction in _BITWISE:
        refuse("bitwise", reduction.name)
    if reduction == RedOp.PREMUL_SUM and dtype not in _PREMULTIPLIED:
        refuse("premul_sum", dtype)
    if dtype in _NO_SUMS:
        refuse("float8", dtype)


def _check_layout(tensor: Tensor, key: str) -> None:
    fits = _is_dense(tensor) if key == "dense" else _is_contiguous(tensor)
    if not fits:
        refuse(key, list(tensor.shape), list(tensor.stride()))


def _is_contiguous(tensor: Tensor) -> bool:
    """Whether a tensor has the default order of dimensions, or channels last, which NCCL accepts too."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    last = formats.get(tensor.dim())
    return tensor.is_contiguous() or (last is not None and tensor.is_contiguous(memory_format=last))


def _is_dense(tensor: Tensor) -> bool:
    """Whether a tensor has neither gaps nor overlaps, in any order of dimensions."""
    expected = 1
    if not tensor.numel():
        return True
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True
