"""Serialization of values for another process: by value, with tensors as needed there.

cloudpickle ships functions and classes that the other side cannot import. In addition, tensors are packed so that

  - memory is not copied (`pickle.PickleBuffer`, see channel.py), and tensors that share a storage still do;
  - a tensor on a GPU arrives on the CPU;
  - a view of part of a storage brings only that part;
  - a result of autograd arrives detached, because its graph is not copied; a leaf keeps `requires_grad` and `.grad`.

A class defined in a notebook is sent with the program and returns inside the values. It must return as the same class
object: cloudpickle recognizes it, but would also overwrite its methods with the copies from the worker (bound to the
worker's globals). `unpack` does not change a class that this process knows.
"""

import importlib
import io
import pickle
import sys
from dataclasses import dataclass
from types import BuiltinFunctionType, ModuleType
from typing import Any

import cloudpickle
import numpy as np
import torch
from cloudpickle import cloudpickle as cloudpickle_internals
from torch import Tensor, nn

from lablib.process.default_device import places
from lablib.process.tensor_pickle import reduce_tensor
from lablib.torch_compat import loaded


@dataclass(frozen=True, slots=True)
class PackedObject:
    """A pickle and its buffers. Packing and sending are two steps, to tell an error from a lost connection."""

    data: bytes
    buffers: list[Any]


def pack(value: Any) -> PackedObject:
    """Pickle a value. Communicates nothing; waits for pending functional collectives inside the value.

    Raises Exception: raised by the first object that cannot be pickled.
    """
    file, buffers = io.BytesIO(), []
    _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(value)
    return PackedObject(file.getvalue(), buffers)


def unpack(packed: PackedObject) -> Any:
    """Rebuild the value, with its tensors on the CPU. Raises any exception of a class that cannot be rebuilt here."""
    return _Unpickler(io.BytesIO(packed.data), buffers=packed.buffers).load()


def forget_classes() -> None:
    """Build all classes again from now on, even known ones: their functions may use other globals by now."""
    for known in ("_DYNAMIC_CLASS_TRACKER_BY_CLASS", "_DYNAMIC_CLASS_TRACKER_BY_ID"):
        getattr(cloudpickle_internals, known, {}).clear()


class _Pickler(cloudpickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if type(obj) in (Tensor, nn.Parameter) and obj.layout == torch.strided and obj.device.type != "meta":
            return reduce_tensor(obj, is_whole=False)
        if isinstance(obj, torch.UntypedStorage) and obj.device.type != "meta":
            memory: Any = torch.empty(0, dtype=torch.uint8, device=obj.device).set_(obj).cpu().numpy()  # pyright: ignore
            return _rebuild_storage, (pickle.PickleBuffer(memory),)
        if type(obj) is BuiltinFunctionType and obj in places():
            return getattr, places()[obj]  # the name under which a rank on a GPU has a replacement (default_device.py)
        if isinstance(obj, ModuleType) and type(obj) is not ModuleType and sys.modules.get(obj.__name__) is obj:
            # torch's configuration modules, such as torch.distributed.config: cloudpickle includes one if a program
            # mentions `config` next to `torch.distributed`, and cannot pickle their class.
            return importlib.import_module, (obj.__name__,)
        functional = loaded("torch.distributed._functional_collectives")
        if functional and isinstance(obj, functional.AsyncCollectiveTensor):
            return _itself, (obj.trigger_wait(),)  # pyright: ignore[reportAttributeAccessIssue]
        return super().reducer_override(obj)


class _Unpickler(pickle.Unpickler):
    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._known = set(getattr(cloudpickle_internals, "_DYNAMIC_CLASS_TRACKER_BY_CLASS", ()))

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if name == "_class_setstate" and module.startswith("cloudpickle"):
            return lambda cls, state: cls if cls in self._known else found(cls, state)
        return found


def _rebuild_storage(buffer: Any) -> torch.UntypedStorage:
    array = np.frombuffer(buffer, dtype=np.uint8)
    if array.size == 0:
        return torch.UntypedStorage(0)
    return torch.from_numpy(array if array.flags.writeable else array.copy()).untyped_storage()


def _itself(x: Any) -> Any:
    return x
