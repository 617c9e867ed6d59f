"""A rank's tensors are made on its GPU unless the program says otherwise, and what draws on the host is left alone.

`torch.set_default_device("cuda")` gives every function that makes a tensor the GPU, also those that cannot use it:

    torch.randperm(9, generator=torch.Generator())    CUDA refuses a generator of the CPU
    DistributedSampler, DataLoader(shuffle=True)      call just that, and so do libraries
    DataLoader(num_workers=2)                         CUDA refuses a process that was forked after it began

Programs that are right under torchrun would fail in a launch. With this default device

    a generator says where its numbers are drawn      the result is there, as the rules of torch ask
    samplers and loaders of torch.utils.data          draw on the host; batches are put together on the GPU
    a forked process                                  has no default device

Everything else is as with `torch.set_default_device`; a program that calls it gets torch's own, which replaces this.
Source: pytorch 2.11 to 2.13, torch/utils/_device.py; torch/utils/data/{sampler,distributed,dataloader}.py.
"""

import os
import sys
from types import FrameType
from typing import Any

import torch

from lablib.torch_compat import DEVICE_CONTEXT, DeviceContext, device_constructors

_HOST = torch.device("cpu")
_DRAW_ON_THE_HOST = {f"torch.utils.data.{name}" for name in ("sampler", "distributed", "dataloader")}
_BETWEEN = ("torch.overrides", "torch.functional", "lablib.default_device", "lablib.script.", "lablib.sim.")


class DefaultDevice(DeviceContext):
    """A default device for programs that were written for none."""

    def __init__(self, device: torch.device):
        self._process = os.getpid()
        super().__init__(device)

    @property
    def device(self) -> torch.device:
        """The device; in a process that was forked from this one, the CPU."""
        return self._device if os.getpid() == self._process else _HOST

    @device.setter
    def device(self, device: torch.device) -> None:
        self._device = device

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if func in device_constructors() and kwargs.get("device") is None:
            # torch.compile follows this code, but can ask neither for frames nor for processes.
            kwargs["device"] = self._device if torch.compiler.is_compiling() else self.device_for(kwargs)
        return func(*args, **kwargs)

    def device_for(self, kwargs: dict[str, Any]) -> torch.device:
        """Where a function that is called now, with these arguments and no device, makes its tensor."""
        generator = kwargs.get("generator")
        if generator is not None:
            return self.device if generator.device.type == self.device.type else generator.device
        return _HOST if _draws_for_a_loader(sys._getframe(1)) else self.device


def make_tensors_on(device: torch.device) -> None:
    """Give the calling thread this default device. `torch.set_default_device(None)` takes it away."""
    torch.set_default_device(None)
    context = DefaultDevice(device)
    context.__enter__()
    DEVICE_CONTEXT.device_context = context  # where torch.set_default_device looks for what it replaces


def _draws_for_a_loader(frame: FrameType | None) -> bool:
    """Whether a sampler or a loader made the call that this frame, and modes of torch functions, pass on."""
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_BETWEEN):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") in _DRAW_ON_THE_HOST
