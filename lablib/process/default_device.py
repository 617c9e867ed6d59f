"""Default device of a rank for new tensors, without a cost per operator.

`torch.set_default_device("cuda")` is a mode: from then on every call of torch passes through Python, 2 to 9 us each.
Here the functions that make tensors are replaced instead, once per process (`factories`); all others are torch's own.

`torch.set_default_device` also gives the GPU to functions that cannot use it:

    torch.randperm(9, generator=torch.Generator())    CUDA rejects a generator of the CPU
    DistributedSampler, DataLoader(shuffle=True)      make that call, and so do libraries
    DataLoader(num_workers=2)                         CUDA rejects a process that was forked after it began

Programs that run under torchrun would fail in a launch. With this default device

    a generator determines the device of its numbers  the result is on that device, as torch requires
    samplers and loaders of torch.utils.data          draw on the host; batches are collated on the GPU
    a forked process                                  has no default device

Otherwise it acts like `torch.set_default_device`: `with torch.device(...)` and a default device set by the program have
priority, and other threads have none. One difference: a `TorchFunctionMode` of the program finds `device` among the
arguments.

Source: pytorch 2.11 to 2.13, torch/utils/_device.py; torch/utils/data/{sampler,distributed,dataloader}.py.
"""

import functools
import os
import sys
import threading
from collections.abc import Callable
from types import BuiltinFunctionType, FrameType, ModuleType
from typing import Any

import torch

from lablib.torch_compat import (
    DeviceContext,
    device_constructors,
    function_mode_at,
    num_function_modes,
    place,
    register_script_builtin,
)

_HOST = torch.device("cpu")
_CONTEXTS = place("DEVICE_CONTEXT")
_DRAW_ON_THE_HOST = {f"torch.utils.data.{name}" for name in ("sampler", "distributed", "dataloader")}
_BETWEEN = ("torch.overrides", "torch.functional", "lablib.process.default_device", "lablib.script.", "lablib.sim.")


class DefaultDevice:
    """A default device for programs written without one."""

    def __init__(self, device: torch.device):
        self._device, self._process = device, os.getpid()

    @property
    def device(self) -> torch.device:
        """The device; in a process that was forked from this one, the CPU."""
        return self._device if os.getpid() == self._process else _HOST

    def device_for(self, kwargs: dict[str, Any]) -> torch.device:
        """The device of the tensor for the current function call, given its keyword arguments without a device."""
        if torch.compiler.is_compiling():
            return self._device  # torch.compile cannot trace frames or process ids
        generator = kwargs.get("generator")
        if generator is not None:
            return self.device if generator.device.type == self.device.type else generator.device
        return _HOST if _draws_for_a_loader(sys._getframe(1)) else self.device

    def __exit__(self, *_: Any) -> None:
        """`torch.set_default_device` calls this on the default device that it replaces."""


class _Contexts(threading.local):
    """The default device of each thread. Autograd's threads, not started by Python, have the program's."""

    def __init__(self, of_the_program: DefaultDevice):
        self._of_the_program = of_the_program

    def __getattr__(self, name: str) -> Any:
        if name == "device_context" and type(threading.current_thread()).__name__ == "_DummyThread":
            return self._of_the_program
        raise AttributeError(name)


def make_tensors_on(device: torch.device) -> None:
    """Give the calling thread this default device. `torch.set_default_device(None)` removes it."""
    torch.set_default_device(None)
    getattr(*_CONTEXTS).device_context = DefaultDevice(device)


def make_tensors_of_the_process_on(device: torch.device) -> None:
    """Set it in the calling thread of a worker process, and replace the functions that make tensors, permanently."""
    torch.set_default_device(None)
    for owner, name, make in factories():
        setattr(owner, name, make)
    setattr(*_CONTEXTS, _Contexts(DefaultDevice(device)))
    make_tensors_on(device)


def default_of_thread() -> DefaultDevice | None:
    """The default device that `make_tensors_on` gave the calling thread; None if the program chose another."""
    if num_function_modes() and isinstance(function_mode_at(0), DeviceContext):
        return None  # `with torch.device(...)` is the lowest mode
    context = getattr(getattr(*_CONTEXTS), "device_context", None)
    return context if isinstance(context, DefaultDevice) else None


@functools.cache
def factories() -> list[tuple[ModuleType, str, Callable[..., torch.Tensor]]]:
    """(module, name, replacement) of each function that makes tensors; the replacement uses the default device."""
    return [(owner, name, _with_default(make, owner, name)) for make, (owner, name) in places().items()]


@functools.cache
def places() -> dict[Any, tuple[ModuleType, str]]:
    """The functions of torch that make tensors, with the module and name by which programs call them."""
    makers = device_constructors()  # cached by torch: the original functions, also after `factories`
    return {
        value: (owner, name)
        for owner in (torch, torch.fft)
        for name, value in vars(owner).items()
        if type(value) is BuiltinFunctionType and value in makers and name != "range"  # `range` passes no mode
    }


def _with_default(make: Callable[..., torch.Tensor], owner: ModuleType, name: str) -> Callable[..., torch.Tensor]:
    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> torch.Tensor:
        if kwargs.get("device") is None:
            default = default_of_thread()
            if default is not None:
                kwargs["device"] = default.device_for(kwargs)
        return make(*args, **kwargs)

    made.__module__, made.__qualname__ = owner.__name__, name  # for pickle
    register_script_builtin(made, f"aten::{make.__name__}")
    return made


def _draws_for_a_loader(frame: FrameType | None) -> bool:
    """Whether a sampler or a loader made this call, apart from frames of torch function modes."""
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_BETWEEN):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") in _DRAW_ON_THE_HOST
