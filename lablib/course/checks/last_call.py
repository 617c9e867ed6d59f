"""The last call of an answer as a line to paste: `join(torch.tensor([1.0, 2.0]), ...)`.

A failed check is run again from the same seed, with a profile function that records the answer's calls. So checks and
answers need no wrapper, and an answer that passes costs nothing.
"""

import functools
import inspect
import re
import sys
import threading
from contextlib import suppress
from types import CodeType, FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lablib.torch_compat import disable_current_modes

MAX_ELEMENTS = 64  # of a tensor or list that is written in full
_MAX_CHARACTERS = 2000


class LastCalls:
    """The last call of an answer in each thread, as text.

    with LastCalls(answer, "join") as calls:
        exercise.run(expect, answer)
    calls.text("... on rank 1 ...")
    """

    def __init__(self, answer: Any, name: str) -> None:
        self._name = name
        function = inspect.unwrap(answer.func if isinstance(answer, functools.partial) else answer)
        function = function if hasattr(function, "__code__") else type(function).__call__
        self._code: CodeType | None = getattr(function, "__code__", None)
        self._texts: dict[str, str] = {}

    def __enter__(self) -> "LastCalls":
        self._before = sys.getprofile(), threading.getprofile()
        if self._code is not None:
            sys.setprofile(self._see)
            threading.setprofile(self._see)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(self._before[0])
        threading.setprofile(self._before[1])  # pyright: ignore[reportArgumentType]

    def _see(self, frame: FrameType, event: str, _: Any) -> None:
        code, own = frame.f_code, self._code
        assert own is not None
        if event != "call" or code.co_name != own.co_name or code.co_firstlineno != own.co_firstlineno:
            return  # ranks have copies of the code
        if code.co_filename == own.co_filename:
            # On the simulator reading a number takes simulated time. An unreadable value is no error of the answer.
            with suppress(Exception), disable_current_modes():
                self._texts[threading.current_thread().name] = call_text(self._name, code, frame.f_locals)

    def text(self, message: str) -> str:
        """The call of the rank that a message names, of the main thread, or of the first rank."""
        named = re.search(r"\brank (\d+)", message)
        ranks = {name.rsplit(" ", 1)[-1]: text for name, text in self._texts.items() if name[-1:].isdigit()}
        if named and named[1] in ranks:
            return f"{ranks[named[1]]}  # on rank {named[1]}"
        if not ranks or len(ranks) < len(self._texts):
            return next((text for name, text in self._texts.items() if not name[-1:].isdigit()), "")
        first = min(ranks, key=int)
        return f"{ranks[first]}  # on rank {first}"


def call_text(function: str, code: CodeType, values: dict[str, Any]) -> str:
    """A call as text; an argument without a short form is written as its name."""
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    texts = []
    for number, name in enumerate(names):
        text = literal(values[name]) or name
        texts.append(text if number < code.co_argcount else f"{name}={text}")
    if code.co_flags & inspect.CO_VARARGS:
        rest = values[code.co_varnames[len(names)]]
        texts[code.co_argcount : code.co_argcount] = [literal(value) or "..." for value in rest]
    text = f"{function}({', '.join(texts)})"
    return text if len(text) <= _MAX_CHARACTERS else f"{function}({', '.join(names)})"


def literal(value: Any) -> str:
    """Python source of a value; "" if it has no short one."""
    if value is None or isinstance(value, bool | int | str):
        return repr(value)
    if isinstance(value, torch.dtype):
        return str(value)
    if isinstance(value, float):
        return repr(value) if value - value == 0 else f'float("{value}")'
    if isinstance(value, Tensor):
        return _tensor(value)
    if isinstance(value, list | tuple) and len(value) <= MAX_ELEMENTS and type(value) in (list, tuple):
        parts = [literal(item) for item in value]
        comma = "," if isinstance(value, tuple) and len(value) == 1 else ""
        inside = ", ".join(parts) + comma
        return "" if "" in parts else f"[{inside}]" if isinstance(value, list) else f"({inside})"
    if type(value) is dict and len(value) <= MAX_ELEMENTS:
        parts = [(literal(key), literal(item)) for key, item in value.items()]
        return "" if any("" in part for part in parts) else "{" + ", ".join(f"{k}: {v}" for k, v in parts) + "}"
    return ""


def _tensor(x: Tensor) -> str:
    if type(x) is not Tensor or x.device.type != "cpu" or x.numel() > MAX_ELEMENTS or x.is_complex():
        return ""
    flat = x.detach().flatten()
    if x.dtype == torch.float32:  # the fewest digits that give the same float32
        numbers = [float(str(number)) for number in flat.numpy()]
    else:
        numbers = flat.tolist()
    dtype = "" if x.dtype in (torch.float32, torch.int64, torch.bool) and x.numel() else f", dtype={x.dtype}"
    nested = np.array(numbers, dtype=object).reshape(x.shape).tolist() if x.dim() else numbers[0]
    text = f"torch.tensor({literal(nested)}{dtype})"
    if x.dim() and not x.numel() and tuple(x.shape) != (0,):
        text = f"torch.zeros({tuple(x.shape)}, dtype={x.dtype})"
    return text + (".requires_grad_()" if x.requires_grad and x.is_leaf else "")
