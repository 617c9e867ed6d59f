"""`fidelity="shapes"`: tensors without values; time, memory and traffic are unchanged.

Every tensor that the program makes is on torch's device "meta", regardless of the requested device:

    OnMeta      (torch functions)    a mode: replaces the requested device by "meta"
    MetaKernels (dispatched ops)     for the clock: an op on meta tensors gives meta tensors (meta_kernels.py)
    AutocastOnMeta                   the casts of `torch.autocast`, which torch makes on real devices only (autocast.py)

A few places in torch need true values to work (object collectives, samplers, generator states): tensors that they make
are real. A real tensor in an op with meta tensors is treated as its shape.

A program that reads a value (`item`, `tolist`, `if loss > 1`, `nonzero`) gets a `ValueNeededError`.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from types import CodeType, FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lablib.operators.fused_attention import UNFUSED, fused_attention
from lablib.process.replaced import replaced
from lablib.sim.operators.autocast import AutocastOnMeta, body
from lablib.sim.operators.meta_kernels import META, needs_value
from lablib.torch_compat import (
    current,
    current_function_modes,
    device_constructors,
    foreach_devices,
    parse_to,
    place,
    torch_file,
)

# Modes above this one: a default device, and the devices of a script.
_MODES_ABOVE = (torch_file("utils", "_device.py"), os.path.join("lablib", "script", "devices.py"))
# Code that computes with values on behalf of the program: its tensors are real.
_NEEDS_VALUES = (
    *("torch/distributed/device_mesh.py", "torch/distributed/_mesh_layout.py", "torch/distributed/utils.py"),
    *("torch/distributed/distributed_c10d.py", "torch/distributed/pipelining/stage.py:_warmup", "torch/optim/"),
    *("torch/utils/data/", "torch/random.py", "torch/serialization.py", "torch/_utils.py", "lablib/sim/"),
)


@lru_cache(maxsize=4096)  # includes code of the program
def _needs_values(code: CodeType) -> bool:
    place = f"{code.co_filename}:{code.co_name}".replace(os.sep, "/")
    return any(known in place for known in _NEEDS_VALUES)


@cache
def _factories() -> frozenset[Any]:
    """Functions that make a tensor on the default device by default, from torch's list."""
    return frozenset(device_constructors())


_MOVES = {Tensor.to, Tensor.cuda, Tensor.cpu, Tensor.pin_memory}
_READS = {
    Tensor.numpy: "numpy()",
    Tensor.__array__: "an array of it",
    Tensor.tolist: "tolist()",
    Tensor.__bool__: "its truth (if, while, assert)",
    Tensor.item: "item()",
    Tensor.__float__: "float()",
    Tensor.__int__: "int()",
    Tensor.__index__: "an index",
}


@cache
def _answered() -> frozenset[Any]:
    return _factories() | _MOVES | _READS.keys() | {UNFUSED}


class OnMeta(TorchFunctionMode):
    """Redirects the program's new and moved tensors to the device "meta"."""

    def __init__(self):
        super().__init__()
        self.autocast = AutocastOnMeta()

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func in _answered() or "generator" in kwargs or torch.is_autocast_enabled("cpu"):
            return self._answer(func, args, kwargs)
        return func(*args, **kwargs)

    def _answer(self, func: Any, args: tuple, kwargs: dict) -> Any:
        if torch.is_autocast_enabled("cpu"):
            if (inside := body(func)) is not None:
                with self:
                    return inside(*args, **kwargs)
            args, kwargs = self.autocast.cast(func, args, kwargs)
        if func in _factories():
            needs_values = _needs_values(_caller().f_code)
            device = kwargs.get("device")
            if not needs_values:
                kwargs = {key: value for key, value in kwargs.items() if key not in ("generator", "pin_memory")}
                kwargs["device"] = META
            elif device is not None and torch.device(device).type != "meta":
                kwargs = {**kwargs, "device": "cpu"}
        elif func is UNFUSED and args[0].is_meta:
            return fused_attention(*args, **kwargs)
        elif func in _MOVES:
            return _moved(func, args, kwargs)
        elif func in _READS and args[0].is_meta:
            raise needs_value(_READS[func])
        elif args and "generator" in kwargs and isinstance(args[0], Tensor) and args[0].is_meta:
            kwargs = {**kwargs, "generator": None}  # no values to draw
        return func(*args, **kwargs)


def _caller() -> FrameType:
    """The frame that called the torch function, without frames of the modes above."""
    frame = sys._getframe(3)
    while frame.f_code.co_filename.endswith(_MODES_ABOVE) and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _moved(func: Any, args: tuple, kwargs: dict) -> Tensor:
    """Move to another device: a meta tensor stays, a real tensor becomes meta; a change of dtype is made."""
    tensor, *rest = args
    device, dtype, memory_format, copy = None, None, None, False
    if func is Tensor.cuda:
        device = "cuda"
    elif func is Tensor.to and (rest and isinstance(rest[0], Tensor) or "other" in kwargs):
        other = rest[0] if rest else kwargs["other"]
        device, dtype = other.device, other.dtype
    elif func is Tensor.to:
        copy = bool(kwargs.get("copy"))
        known = {key: value for key, value in kwargs.items() if key != "copy"}
        device, dtype, _, memory_format = parse_to(*rest[:3], **known)
    if not tensor.is_meta and (device is None or torch.device(device).type == "cpu"):
        return func(*args, **kwargs)
    target = tensor if tensor.is_meta else tensor.to(META)
    if dtype is None and memory_format is None and not copy:
        return target
    return target.to(dtype=dtype or target.dtype, copy=copy, memory_format=memory_format or torch.preserve_format)


@contextmanager
def torch_without_values() -> Iterator[None]:
    """Patch, for the time of a run, functions of torch that no mode sees."""
    engine, devices = current("run_backward"), foreach_devices()

    def attention(query: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return (fused_attention if query.is_meta else UNFUSED)(query, *args, **kwargs)

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        """Enter the mode again: it is off inside `backward`, a torch function, where the program's hooks run."""
        with OnMeta():
            return engine(*args, **kwargs)

    def clear_autocast_cache() -> None:
        for mode in current_function_modes():
            if isinstance(mode, OnMeta):
                mode.autocast.clear_cache()
        clear()

    clear, handle = torch.clear_autocast_cache, current("fsdp_device_handle")
    with replaced(
        (torch, "clear_autocast_cache", clear_autocast_cache),
        (F, "scaled_dot_product_attention", attention),
        (*place("run_backward"), run_backward),
        # Foreach kernels exist for the CPU and the devices of this list; "meta" acts as one of them.
        (*place("foreach_devices"), lambda: [*devices, "meta"]),
        (*place("refuse_meta_params"), lambda group: None),  # meta parameters are correct here
        (*place("fsdp_device_handle"), lambda kind="cuda": handle("cpu" if kind == "meta" else kind)),
    ):
        yield
