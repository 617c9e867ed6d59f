"""Per-rank copies of the program's arguments, as a process would get them.

The arguments are pickled once, and unpickled by every rank; references to the same object stay so within a rank.

  - Tensor memory is not in the pickle: it is copied once, and ranks share that copy until they write (torch's
  copy-on-write), so that 512 ranks with a tensor of 100 MB do not take 50 GB.
  - Views of one storage stay views of one storage; a leaf keeps `requires_grad` and `.grad`, and a result of autograd
  arrives detached, because its graph is not copied, as on a real backend.
  - Functions, classes, modules and long texts are not copied. So references of a function (globals, closures, default
  arguments) are the notebook's own objects for all ranks.

A `functools.partial` brings copies of its arguments, and a bound method one of its object.
"""

import io
import pickle
from collections.abc import Callable, Sequence
from types import BuiltinFunctionType, FunctionType, ModuleType, NoneType
from typing import Any

import torch
from torch import Tensor, nn

from lablib.process.tensor_pickle import reduce_tensor
from lablib.torch_compat import lazy_clone, storage_id

_CODE = (FunctionType, ModuleType, type)
_LONG = 1000  # characters or bytes from which on a text is shared


class Copies:
    """The source of the ranks' copies. Raises ValueError: an object cannot be copied; the message names it."""

    def __init__(self, fn: Callable[..., Any], args: Sequence[Any]):
        self._outside: list[Any] = []  # objects kept out of the pickle
        try:
            self._pickle = self._pickled((fn, tuple(args)))
        except RecursionError:
            raise
        except Exception as error:
            raise ValueError(
                f"every rank gets its own copy of the program's arguments, so all of them must be picklable: "
                f"{self._culprit(fn, args)} is not ({type(error).__name__}: {error}); make it inside the function, or "
                f"pass plain data and tensors"
            ) from error

    def copy(self) -> tuple[Callable[..., Any], tuple]:
        """The program and its arguments for one rank."""
        return _Unpickler(self._pickle, self._outside).load()

    def _pickled(self, value: Any) -> bytes:
        file = io.BytesIO()
        _Pickler(file, self._outside).dump(value)
        return file.getvalue()

    def _culprit(self, fn: Callable[..., Any], args: Sequence[Any]) -> str:
        for number, value in enumerate(args):
            try:
                self._pickled(value)
            except Exception:
                return f"argument {number} of type {type(value).__qualname__}"
        return f"the {type(fn).__qualname__} that was launched"


class _Pickler(pickle.Pickler):
    """Puts shared objects and tensor memory into `outside`."""

    def __init__(self, file: io.BytesIO, outside: list[Any]):
        super().__init__(file, protocol=5)
        self._outside = outside
        self._memory: dict[int, tuple[int, Any]] = {}  # by address of the storage: its number, and the storage

    def persistent_id(self, obj: Any) -> Any:
        """The number of an object that ranks share: tensor memory, code, or a long immutable text. None for others."""
        if isinstance(obj, torch.UntypedStorage):
            return self._number(obj)
        is_long_text = type(obj) in (str, bytes) and len(obj) > _LONG
        # A builtin with another `__self__` is the method of an object.
        is_function = isinstance(obj, BuiltinFunctionType) and isinstance(obj.__self__, (ModuleType, NoneType))
        if not (is_long_text or is_function or isinstance(obj, _CODE)):
            return None
        self._outside.append(obj)
        return len(self._outside) - 1

    def _number(self, storage: torch.UntypedStorage) -> int:
        """Copy the storage once: the notebook's must not become copy-on-write, as numpy may share its memory."""
        known = self._memory.get(storage_id(storage))
        if known is None:
            known = self._memory[storage_id(storage)] = len(self._outside), storage
            self._outside.append(_Memory(storage))
        return known[0]

    def reducer_override(self, obj: Any) -> Any:
        is_plain = type(obj) in (Tensor, nn.Parameter) and obj.layout == torch.strided
        if is_plain and obj.device.type != "meta" and not obj.is_quantized:
            return reduce_tensor(obj)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, outside: list[Any]):
        super().__init__(io.BytesIO(data))
        self._outside = outside
        self.storages: dict[int, torch.UntypedStorage] = {}

    def persistent_load(self, number: int) -> Any:
        outside = self._outside[number]
        if not isinstance(outside, _Memory):
            return outside
        if number not in self.storages:
            self.storages[number] = outside.clone()
        return self.storages[number]


class _Memory:
    """The bytes of one storage. Each rank gets a clone that takes memory once it is written to."""

    def __init__(self, storage: torch.UntypedStorage):
        self._bytes = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage.clone())  # pyright: ignore

    def clone(self) -> torch.UntypedStorage:
        return lazy_clone(self._bytes).untyped_storage()
