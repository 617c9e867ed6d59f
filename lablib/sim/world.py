"""`torch.distributed.group.WORLD` in a module that a rank imports: None, which torch takes for the default group.

A module's own lines run once, in the turn of the rank that imports it first. Functions with `group=group.WORLD` as a
default (all of torch.distributed.nn.functional) would keep that rank's end of the group for every rank, and for every
later launch. In a process of its own each rank would find its own. None stands for the default group in all of torch.
"""

import sys
from inspect import CO_OPTIMIZED
from types import FrameType
from typing import Any

from lablib.torch_compat import WorldMeta

_WORLD: Any = vars(WorldMeta)["WORLD"]


def _world(cls: type) -> Any:
    frame = sys._getframe(1)
    is_function = frame.f_code.co_flags & CO_OPTIMIZED
    return _WORLD.fget(cls) if is_function or not _is_import(frame) else None


def _is_import(frame: FrameType | None) -> bool:
    """Whether a frame runs lines of a module, or of a class in one, outside any function; not a script's own."""
    while frame is not None and not frame.f_code.co_flags & CO_OPTIMIZED:
        if frame.f_code.co_name == "<module>":
            return frame.f_globals.get("__name__") != "__main__"
        frame = frame.f_back
    return False


WORLD = property(_world, _WORLD.fset)
