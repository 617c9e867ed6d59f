"""`torch.device` and `torch.Generator` for the simulated device.

torch is built without CUDA here, so its own classes reject valid arguments for a GPU:

    torch.device(0)             the device of that number: "cuda:0"
    torch.Generator("cuda")     a generator of the host with device "cuda"

Every device and every generator is an instance of these classes, which make instances of torch's own.
"""

from typing import Any

import torch

from lablib.script.patches import Patches
from lablib.script.process import here
from lablib.torch_compat import Generator


def answer_classes(patches: Patches) -> None:
    patches.replace(torch, "device", _stand_in(torch.device, _make_device))
    patches.replace(torch, "Generator", _stand_in(torch.Generator, _make_generator))


def named(device: Any) -> Any:
    """0 -> "cuda:0"; other values unchanged."""
    return f"cuda:{device}" if isinstance(device, int) and not isinstance(device, bool) else device


def _make_device(plain: type, *args: Any, **kwargs: Any) -> Any:
    if len(args) + len(kwargs) == 1:
        return plain(named(args[0] if args else next(iter(kwargs.values()))))
    return plain(*args, **kwargs)


class _OnDevice(Generator):
    """A generator of the host that represents one of the device with this index."""

    index: int
    device = property(lambda self: torch.device("cuda", self.index))  # pyright: ignore[reportAssignmentType]


def is_on_device(generator: Any) -> bool:
    """Whether a generator was made for the simulated device."""
    return isinstance(generator, _OnDevice)


def _make_generator(plain: type, device: Any = "cpu") -> Any:
    device = torch.device(device)
    if device.type != "cuda":
        return plain(device)
    generator, process = _OnDevice("cpu"), here()
    own = process.placement.device_index if process is not None else 0
    generator.index = own if device.index is None else device.index
    return generator


def _stand_in(plain: type, make: Any) -> type:
    """A replacement class for `plain`, equal to it for `isinstance`, as a dictionary key and in pickles."""

    class Kind(type(plain)):
        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, plain)

        def __eq__(cls, other: Any) -> bool:
            return other is cls or other is plain

        def __hash__(cls) -> int:
            return hash(plain)

        def __getattr__(cls, name: str) -> Any:
            return getattr(plain, name)

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return plain(*args, **kwargs) if here() is None else make(plain, *args, **kwargs)

    return Kind(plain.__name__, (), {"__module__": plain.__module__, "__doc__": plain.__doc__})
