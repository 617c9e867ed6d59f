"""Corrupt one element of one gradient during backward: the effect of `CorruptGradient`.

A dispatch mode sees the `nn.Parameter`s that a rank's forward uses, and puts a hook on the selected one. Autograd calls
it with each gradient of that parameter before it is accumulated, and so before any gradient reduction (DDP, FSDP). The
program is not changed, and the clock does not move.

The name of a parameter is looked up in the `nn.Module` calls on the stack: the outermost module gives it.

Bits: a flip of bit b is exclusive or with 2^b on the bytes of the element. IEEE 754 counts from the lowest bit of the
mantissa; the highest bit of the exponent is 30 in float32, 62 in float64, 14 in float16 and bfloat16.
"""

import sys
from collections.abc import Callable, Iterable
from math import inf, nan
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from lablib.faults import CorruptGradient
from lablib.operators.mode import OperatorMode
from lablib.operators.op import tensors_in
from lablib.torch_compat import DisableTorchDispatch, is_call_of

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_DETACH = torch.ops.aten.detach.default  # no use of a parameter: DDP detaches each when it is made
_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")  # added to names by wrappers


class GradientWatch(OperatorMode):
    """Corrupts the gradients of one rank. Enter it in the rank's thread, and `close` it when the run ends.

    `is_here`: whether this rank has the turn: ranks may share a parameter.
    """

    def __init__(self, faults: Iterable[CorruptGradient], is_here: Callable[[], bool]):
        super().__init__()
        self._num_gradients = dict.fromkeys(faults, 0)
        self._is_here = is_here
        self._names: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self._known: list[str] = []
        self._hooks: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if torch.is_grad_enabled() and func is not _DETACH:
            for tensor in tensors_in((*args, *kwargs.values())):
                if isinstance(tensor, nn.Parameter) and tensor.requires_grad and tensor not in self._names:
                    self._meet(tensor)
        return func(*args, **kwargs)

    def _meet(self, param: Tensor) -> None:
        """Register a parameter that forward uses for the first time, and hook it if a fault selects it."""
        number, name = len(self._known), _name(param)
        self._names[param] = name
        self._known.append(name)
        for fault in self._num_gradients:
            if fault.parameter in (name, number) or (fault.parameter is None and number == 0):
                self._hooks.append(param.register_hook(self._hook(fault)))

    def _hook(self, fault: CorruptGradient) -> Callable[[Tensor], Tensor | None]:
        def on_gradient(grad: Tensor) -> Tensor | None:
            if not self._is_here():
                return None
            self._num_gradients[fault] += 1
            return corrupted(grad, fault) if self._num_gradients[fault] == fault.step + 1 else None

        return on_gradient

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    def missed(self) -> list[str]:
        """A sentence for each fault that did not happen."""
        return [self._why_not(f, n) for f, n in self._num_gradients.items() if n <= f.step]

    def _why_not(self, fault: CorruptGradient, num_gradients: int) -> str:
        if num_gradients:
            last = f"the last is step={num_gradients - 1}"
            return f"{fault} never came: that parameter had {num_gradients} gradients, {last}"
        names = [f"{number} {name!r}" if name else str(number) for number, name in enumerate(self._known[:8])]
        more = ", ..." if len(self._known) > 8 else ""
        used = f"forward used {', '.join(names)}{more}" if names else "forward used no nn.Parameter"
        return f"{fault} never came: no such parameter had a gradient on rank {fault.rank}, whose {used}"


def corrupted(grad: Tensor, fault: CorruptGradient) -> Tensor:
    """A copy of a gradient with one element changed; for a DTensor, an element of this rank's shard."""
    local = getattr(grad, "_local_tensor", grad)
    if local.layout != torch.strided:
        raise ValueError(f"{fault}: a gradient of layout {local.layout} has no elements to count; use a dense one")
    if fault.element >= local.numel():
        raise ValueError(f"{fault}: this rank's gradient has elements 0 to {local.numel() - 1}")
    with torch.no_grad():
        copy = torch.empty_like(local)  # seen by the memory tracker; the rest is not
        with DisableTorchDispatch():
            copy.copy_(local)
            element = copy[np.unravel_index(fault.element, copy.shape)]
            if fault.kind == "bit flip":
                flip_bit(element, fault.bit)
            else:
                element.fill_(nan if fault.kind == "nan" else inf)
    if local is grad:
        return copy
    from torch.distributed.tensor import DTensor

    assert isinstance(grad, DTensor)
    whole = {"shape": grad.shape, "stride": grad.stride()}
    return DTensor.from_local(copy, grad.device_mesh, grad.placements, run_check=False, **whole)


def flip_bit(x: Tensor, bit: int | None = None) -> None:
    """Flip one bit of every element of a floating-point tensor, in place.

    Args:
        x: of 8, 16, 32 or 64 bits per element.
        bit: from 0, the lowest of the mantissa; None: the highest of the exponent, next to the sign bit.
    """
    width = 8 * x.element_size()
    if not x.dtype.is_floating_point:
        raise ValueError(f"a bit is flipped in floating-point numbers of one part: got {x.dtype}")
    bit = width - 2 if bit is None else bit
    if bit >= width:
        raise ValueError(f"{x.dtype} has bits 0 to {width - 1}: got bit={bit}")
    # The sign bit of a signed integer is its lowest number.
    mask = 2**bit if bit < width - 1 or width == 8 else -(2**bit)
    x.view(_BITS[x.element_size()]).bitwise_xor_(mask)


def _name(param: Tensor) -> str:
    """The parameter's name in the outermost module on the stack; "" outside of all modules."""
    outermost = None
    for module in _modules_called(sys._getframe(2)):
        outermost = module
    if outermost is None:
        return ""
    name = next((name for name, p in outermost.named_parameters() if p is param), "")
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name.removeprefix("module.")  # DDP's


def _modules_called(frame: FrameType | None) -> Iterable[nn.Module]:
    """The modules with a forward on the stack, innermost first."""
    while frame is not None:
        if is_call_of(frame, "call_module") and isinstance(module := frame.f_locals.get("self"), nn.Module):
            yield module
        frame = frame.f_back
