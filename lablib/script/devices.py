"""Device arguments and attributes: "cuda" in a script is simulated on CPU memory.

A `TorchFunctionMode` sees every torch function and tensor attribute that Python code of a rank uses:

    torch.zeros(3, device="cuda:1")      computes on the CPU; the result is marked (placement.py)
    x.cuda(), x.to("cuda"), x.cpu()      copy between host and device
    x.device, x.is_cuda, repr(x)         are read from the mark
    x.numpy()                            raises for device memory, as in torch
    x.normal_(generator=g)               raises for a generator of another device than x
    x.grad = y                           raises for a gradient of another device than x

placement.py checks the devices of operator arguments (a @ b, with a on the host) by the rules of mixing.py. So device
errors show here as on a GPU.

Simplified: code inside torch's own C++ sees CPU tensors.
"""

import functools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lablib.process.default_device import default_of_thread
from lablib.script.classes import named
from lablib.script.marks import HOST, index_of, is_memory, mark
from lablib.script.mixing import check_generator, device_name
from lablib.script.patches import Patches
from lablib.script.process import Process
from lablib.torch_compat import (
    DeviceContext,
    DispatchKey,
    Generator,
    OpOverload,
    TensorBase,
    current,
    device_constructors,
    function_mode_at,
    is_key_excluded,
    num_function_modes,
    parse_to,
    place,
    tensor_text,
)

_MAPPED = torch.device("cpu")
_SET_GRAD = vars(TensorBase)["grad"].__set__


def answer_hooks(patches: Patches) -> None:
    """Enable the mode in hooks that run inside a torch function (backward, saved tensors), which may use "cuda" too."""
    run, push = current("run_backward"), current("push_saved_tensors_hooks")

    def rank_runs_backward(process: Process, outputs: Any, *args: Any, **kwargs: Any) -> Any:
        with switched_on(process), process.placement.assuming(_index_in(outputs)):  # of allocations of the engine
            return run(outputs, *args, **kwargs)

    def rank_saves_tensors(process: Process, *hooks: Callable[[Any], Any]) -> None:
        push(*(functools.partial(with_mode(hook), process) for hook in hooks))

    patches.answer(*place("run_backward"), rank_runs_backward)
    patches.answer(*place("push_saved_tensors_hooks"), rank_saves_tensors)
    # torch's C++ rejects the type of our streams (streams.py) before it calls the mode.
    patches.answer(Tensor, "record_stream", lambda process, tensor, stream: None)


def answer_grouping(patches: Patches) -> None:
    """Group tensors by simulated device for optimizers and clipping; torch's C++ finds them all on the CPU."""
    group = current("group_tensors")

    def rank_groups(process: Process, lists: list[list[Tensor | None]], with_indices: bool = False) -> dict:
        groups: dict[tuple[torch.device, torch.dtype], tuple[list[list], list[int]]] = {}
        for (device, dtype), (parts, indices) in group(lists, with_indices).items():
            for position, first in enumerate(parts[0]):
                index = index_of(first)
                key = (device if index is None else torch.device("cuda", index), dtype)
                kept, kept_indices = groups.setdefault(key, ([[] for _ in parts], []))
                for whole, part in zip(parts, kept, strict=True):
                    part += whole[position : position + 1]  # a list may be empty: an optimizer without such states
                kept_indices += indices[position : position + 1]
        return groups

    patches.answer(*place("group_tensors"), rank_groups)


def answer_wrappers(patches: Patches) -> None:
    """Mark wrapper tensors (a quantized weight), which are on the CPU in C++, with the device of the tensors inside."""
    make = current("make_wrapper")

    def rank_wraps(process: Process, *args: Any, **kwargs: Any) -> Tensor:
        index = process.calls.index(kwargs.get("device"))
        if index is None:
            return make(*args, **kwargs)
        wrapper = make(*args, **kwargs | {"device": _MAPPED})
        if index != HOST:
            mark(wrapper, index)
        return wrapper

    patches.answer(*place("make_wrapper"), rank_wraps)


def switched_on(process: Process) -> AbstractContextManager[Any]:
    """The rank's mode enabled, although it is off inside a torch function."""
    stack = (function_mode_at(i) for i in range(num_function_modes()))
    return nullcontext() if any(mode is process.calls for mode in stack) else process.calls


def with_mode(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the mode of a rank enabled, whose process is its first argument."""

    def answer(process: Process, *args: Any, **kwargs: Any) -> Any:
        with switched_on(process):
            return function(*args, **kwargs)

    return answer


class DeviceCalls(TorchFunctionMode):
    """Handles one rank's device arguments and attributes. Enter it in the rank's thread."""

    def __init__(self, process: Process):
        super().__init__()
        self.process = process
        self.placement = process.placement

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        self._check(func, args, kwargs)
        if self.placement.is_busy or is_key_excluded(
            DispatchKey.Python
        ):  # internal call: no operator passes the dispatcher
            return func(*args, **kwargs)
        if isinstance(func, OpOverload) and _says_no_device(kwargs):
            return func(*args, **kwargs)
        if (special := _special().get(func)) is not None:
            return special(self, *args, **kwargs)
        if func in device_constructors() or kwargs.get("device") is not None:
            return self._constructed(func, args, kwargs)
        if not self.placement.is_used:
            return func(*args, **kwargs)
        with self.placement.assuming(_index_in((args, kwargs))):  # of allocations without a device on the way
            return func(*args, **kwargs)

    def _check(self, func: Any, args: tuple, kwargs: dict) -> None:
        """Reject a gradient on another device than the tensor's, and a generator of another device.

        (`x.data = y` is allowed on any device: so `Module.to` works. Source: pytorch,
        torch/csrc/autograd/python_variable.cpp, `THPVariable_set_grad`; c10/core/TensorImpl.h,
        `has_compatible_shallow_copy_type`.)
        """
        if func == _SET_GRAD and isinstance(args[1], Tensor):
            tensor, given = index_of(args[0]), index_of(args[1])
            if tensor != given:
                raise RuntimeError(
                    f"attempting to assign a gradient with device type '{device_name(given)}' to a tensor with device "
                    f"type '{device_name(tensor)}': a grad must be where its tensor is; move it with .to(tensor.device)"
                )
        # isinstance(value, Generator) runs the Python of a metaclass, 5 us for each argument of each call.
        for generator in (value for value in (*args, *kwargs.values()) if Generator in type(value).__mro__):
            check_generator(generator, self._where_drawn(args, kwargs), getattr(func, "__name__", str(func)))

    def _where_drawn(self, args: tuple, kwargs: dict) -> int | None:
        """The device on which a call draws: its argument, or the device of its first tensor, or the default."""
        device = kwargs.get("device")
        if device is None:
            tensor = next(iter(_tensors((*args, *kwargs.values()))), None)
            if tensor is not None:
                return index_of(tensor)
            device = default_device(kwargs) or torch.device("cpu")
        index = self.index(device)
        return None if index == HOST else index

    def index(self, device: Any) -> int | None:
        """The index of a device argument ("cuda", "cuda:3", 3, a torch.device); HOST for the CPU; None for neither."""
        if isinstance(device, int):
            return self.placement.use(device)
        if isinstance(device, str):
            device = torch.device(device)
        if not isinstance(device, torch.device) or device.type not in ("cuda", "cpu"):
            return None
        if device.type == "cpu":
            return HOST
        index = self.placement.device_index if device.index is None else device.index
        if index >= self.process.num_devices:
            raise RuntimeError(
                f"CUDA error: invalid device ordinal: cuda:{index} does not exist; this node of "
                f"{self.process.cluster.name} has cuda:0 to cuda:{self.process.num_devices - 1}"
            )
        return self.placement.use(index)

    def _constructed(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Call a function that makes a tensor from sizes, numbers, or another tensor."""
        device = default_device(kwargs) if kwargs.get("device") is None else kwargs["device"]
        index = None if device is None else self.index(device)
        kwargs.pop("pin_memory", None)
        if index is None:
            with self.placement.assuming(_index_in((args, kwargs))):
                return func(*args, **kwargs)
        kwargs["device"] = _MAPPED
        with self.placement.wanting(index):
            out = func(*args, **kwargs)
            if not isinstance(out, Tensor) or index == HOST or index_of(out) == index:
                return out
            if func in (torch.as_tensor, torch.asarray):  # may have returned its input's memory
                return out.to(_MAPPED, copy=True)
        mark(out, index)
        return out

    # ---- moving tensors ----

    def to(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        device, dtype, copy, memory_format = _parse_to(args, kwargs)
        at = self._place(tensor)
        if isinstance(device, Tensor):
            index = self._place(device)
        else:
            index = at if device is None else self.index(device)
        if index is None:  # neither a GPU nor the host: "meta"
            return Tensor.to(tensor, *args, **kwargs)
        if index == at and not copy and memory_format is torch.preserve_format and dtype in (None, tensor.dtype):
            return tensor
        if index != at and tensor.requires_grad and torch.is_grad_enabled() and is_memory(tensor):
            return _Moved.apply(tensor, self.process, index, at, dtype or tensor.dtype, memory_format)  # pyright: ignore
        return self.copied(tensor, index, dtype or tensor.dtype, copy or index != at, memory_format)

    def _place(self, tensor: Tensor) -> int | None:
        """The index of a tensor's device; HOST for the CPU; None for neither."""
        return index if (index := index_of(tensor)) is not None else self.index(_getter("device")(tensor))

    def copied(self, tensor: Tensor, index: int, dtype: torch.dtype, copy: bool, memory_format: Any) -> Tensor:
        with self.placement.wanting(index):
            return Tensor.to(tensor, _MAPPED, dtype, copy=copy, memory_format=memory_format)

    def cuda(self, tensor: Tensor, device: Any = None, non_blocking: bool = False, **kwargs: Any) -> Tensor:
        return self.to(tensor, "cuda" if device is None else device, non_blocking=non_blocking, **kwargs)

    def parse_to(self, *args: Any, **kwargs: Any) -> Any:
        """Parse the arguments of `Module.to`."""
        if "device" in kwargs:
            kwargs["device"] = named(kwargs["device"])
        return parse_to(*map(named, args[:1]), *args[1:], **kwargs)

    def pin_memory(self, tensor: Tensor, device: Any = None) -> Tensor:
        if index_of(tensor) is not None:
            raise RuntimeError(f"cannot pin {tensor.type()!r}: only dense CPU tensors can be pinned")
        return tensor

    # ---- attributes of a tensor ----

    def device(self, tensor: Tensor) -> torch.device:
        index = index_of(tensor)
        return _getter("device")(tensor) if index is None else torch.device("cuda", index)

    def type(self, tensor: Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        name = dtype if isinstance(dtype, str) else ""
        if name.startswith("torch.cuda."):
            with self:
                return self.cuda(tensor).type(name.replace("torch.cuda.", "torch."))
        if dtype is None:
            name = Tensor.type(tensor)
            return name if index_of(tensor) is None else name.replace("torch.", "torch.cuda.", 1)
        return Tensor.type(tensor, dtype, *args, **kwargs)

    def repr(self, tensor: Tensor, *, tensor_contents: Any = None) -> str:
        with self:  # torch's printing reads the device
            return tensor_text(tensor, tensor_contents=tensor_contents)

    def item(self, tensor: Tensor) -> Any:
        if index_of(tensor) is not None:
            self.process.streams.host_waits()  # the host waits for the value until the stream gets here
        return Tensor.item(tensor)

    def deepcopy(self, tensor: Tensor, memo: dict) -> Tensor:
        copied = Tensor.__deepcopy__(tensor, memo)
        index = index_of(tensor)
        if index is not None and index_of(copied) is None:
            mark(copied, index)
        return copied


class _Moved(torch.autograd.Function):
    """A copy to another device with the gradient copied back: in C++ both are CPU tensors."""

    generate_vmap_rule = True

    @staticmethod
    def forward(tensor: Tensor, process: Process, index: int, at: int, dtype: Any, layout: Any) -> Tensor:
        return process.calls.copied(tensor, index, dtype, True, layout)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        tensor, ctx.process, _, at, *_ = inputs
        ctx.dtype = tensor.dtype
        ctx.home = torch.device("cpu") if at == HOST else torch.device("cuda", at)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        with switched_on(ctx.process):
            return grads[0].to(ctx.home, ctx.dtype), None, None, None, None, None


def _says_no_device(kwargs: dict[str, Any]) -> bool:
    """Whether an operator's arguments give no device for its result.

    torch's own allocations in C++ (DDP's buckets, autograd's copy of a gradient) pass here as operators too, and always
    give "cpu", as C++ sees CPU tensors. Their device is the device of the surrounding work.
    """
    device = kwargs.get("device")
    return device is None or (isinstance(device, torch.device) and device.type == "cpu")


def _getter(name: str) -> Callable[[Tensor], Any]:
    return vars(TensorBase)[name].__get__


def _to_numpy(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(_: DeviceCalls, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        if (index := index_of(tensor)) is not None:
            raise TypeError(
                f"can't convert cuda:{index} device type tensor to numpy. "
                "Use Tensor.cpu() to copy the tensor to host memory first."
            )
        return method(tensor, *args, **kwargs)

    return call


@functools.cache
def _special() -> dict[Any, Callable[..., Any]]:
    """The functions that need more than a mapped device."""
    calls = DeviceCalls
    return {
        Tensor.to: calls.to,
        parse_to: calls.parse_to,
        Tensor.cuda: calls.cuda,
        Tensor.cpu: lambda self, tensor, **kwargs: self.to(tensor, "cpu", **kwargs),
        Tensor.pin_memory: calls.pin_memory,
        Tensor.is_pinned: lambda self, *args, **kwargs: False,
        _getter("device"): calls.device,
        _getter("is_cuda"): lambda self, tensor: index_of(tensor) is not None,
        _getter("is_cpu"): lambda self, tensor: index_of(tensor) is None and _getter("is_cpu")(tensor),
        Tensor.get_device: lambda self, tensor: -1 if (index := index_of(tensor)) is None else index,
        Tensor.type: calls.type,
        Tensor.__repr__: calls.repr,
        Tensor.numpy: _to_numpy(Tensor.numpy),
        Tensor.__array__: _to_numpy(Tensor.__array__),
        Tensor.item: calls.item,
        Tensor.__deepcopy__: calls.deepcopy,
    }


def _tensors(values: Any) -> Iterable[Tensor]:
    for value in values.values() if isinstance(values, dict) else values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple, dict)):
            yield from _tensors(value)


def _index_in(values: Any) -> int:
    """The device of the first tensor on one; HOST for none."""
    return next((index for tensor in _tensors(values) if (index := index_of(tensor)) is not None), HOST)


def default_device(kwargs: dict[str, Any]) -> torch.device | None:
    """The default device of a call with these arguments and no device.

    It comes from `launch(device="cuda")`, `torch.set_default_device` or `with torch.device(...)`; None if not set.
    """
    if (default := default_of_thread()) is not None:
        return default.device_for(kwargs)
    bottom: Any = function_mode_at(0) if num_function_modes() else None
    return bottom.device if isinstance(bottom, DeviceContext) else None


def _parse_to(args: tuple, kwargs: dict) -> tuple[Any, torch.dtype | None, bool, torch.memory_format]:
    """The device (or a tensor on it), dtype, copy and memory format of a call of `Tensor.to`."""
    device = kwargs.get("device", kwargs.get("other"))
    dtype = kwargs.get("dtype")
    flags = []
    for value in args:
        if isinstance(value, bool):
            flags.append(value)
        elif isinstance(value, torch.dtype):
            dtype = value
        elif value is not None:
            device = value
    if isinstance(device, Tensor):
        dtype = device.dtype
    copy = kwargs.get("copy", flags[1] if len(flags) > 1 else False)
    return device, dtype, copy, kwargs.get("memory_format") or torch.preserve_format
