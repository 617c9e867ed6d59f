"""Where in the learner's program a call was made: the innermost frame outside torch, the simulator and the library.

Finding it walks a few frames for every communication, so it keeps file name and line only; the text is put together
when an error needs it.
"""

import linecache
import os
import sys
from enum import Enum
from functools import lru_cache
from types import FrameType
from typing import NamedTuple

import torch

from lablib.process.whose_code import MADE_UP, TEXT, is_of_package
from lablib.text.messages import error_text
from lablib.torch_compat import torch_file

_TORCH = os.path.dirname(torch.__file__) + os.sep
_LABLIB = os.path.dirname(os.path.dirname(__file__)) + os.sep
_DEPRECATION = os.path.join(  # stands around torch's deprecated functions
    os.path.dirname(os.path.dirname(_TORCH)), "typing_extensions.py"
)
_COMMUNICATION = (
    _LABLIB + "sim",
    torch_file("distributed", "distributed_c10d.py"),
    torch_file("distributed", "c10d_logger.py"),
    torch_file("overrides.py"),  # through these a call passes under a mode: shapes.py, a default device
    torch_file("utils", "_device.py"),
    _DEPRECATION,
)
_BOTTOM = _LABLIB + os.path.join("sim", "simulation.py")
_MACHINERY = (_LABLIB + "sim", _LABLIB + "launch")  # what runs the program
_STDLIB = os.path.dirname(os.__file__) + os.sep
_SITE_PACKAGES = (_STDLIB + "site-packages", _STDLIB + "dist-packages")  # without a virtual environment


class Source(NamedTuple):
    """A line of the program."""

    filename: str
    line: int

    def __str__(self) -> str:
        if not self.filename:
            return ""
        # ipykernel compiles a cell under a temporary file name that means nothing to the reader.
        is_cell = "ipykernel_" in self.filename or self.filename.startswith("<ipython")
        place = f"cell line {self.line}" if is_cell else f"{os.path.basename(self.filename)}:{self.line}"
        text = linecache.getline(self.filename, self.line).strip()
        return f"{place}: {text}" if text else place


UNKNOWN = Source("", 0)


class Code(Enum):
    """Whose a file is.

    PROGRAM is not of torch, lablib, Python's own library, or what Python makes up. LIBRARY is code of lablib that a
    program calls; BOTTOM lies beneath the program on a rank's stack; OTHER is the rest.
    """

    PROGRAM = "program"
    LIBRARY = "library"
    BOTTOM = "bottom"
    OTHER = "other"


@lru_cache(maxsize=4096)
def code_of(filename: str) -> Code:
    """Whose code this file holds."""
    if filename.startswith(_LABLIB):
        if filename == _BOTTOM:
            return Code.BOTTOM
        return Code.OTHER if filename.startswith(_MACHINERY) else Code.LIBRARY
    is_python = filename.startswith(_STDLIB) and not filename.startswith(_SITE_PACKAGES)
    is_other = is_python or filename.startswith((_TORCH, _DEPRECATION, *MADE_UP, TEXT))
    return Code.OTHER if is_other else Code.PROGRAM


def program_line(frame: FrameType | None = None) -> Source:
    """The line of the program that led here (or to `frame`). Lines of lablib count only when it has none of its own."""
    frame = frame or sys._getframe(1)
    inside_lablib = UNKNOWN
    while frame is not None:
        code = code_of(frame.f_code.co_filename)
        if code is Code.PROGRAM and not _is_audit_hook(frame):
            return Source(frame.f_code.co_filename, frame.f_lineno)
        if code is Code.BOTTOM:
            break
        if code is Code.LIBRARY and inside_lablib is UNKNOWN:
            inside_lablib = Source(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return inside_lablib


def program_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the program in a thread's stack, however deep in torch the thread is; None: there is
    none."""
    while frame is not None and (not is_program(frame) or _is_audit_hook(frame)):
        frame = frame.f_back
    return frame


def _is_audit_hook(frame: FrameType) -> bool:
    """Whether the simulator called this frame, of an installed package: an audit hook of that package
    (`sys.addaudithook`).

    Python calls the hooks from any function that raises an event, `sys._getframe` for one. filelock has a hook from
    Python 3.12 on. The simulator calls a program's functions from its bottom alone.
    """
    caller = frame.f_back
    if caller is None or not caller.f_code.co_filename.startswith(_MACHINERY[0]):
        return False
    return caller.f_code.co_filename != _BOTTOM and is_of_package(frame.f_code.co_filename)


class Here:
    """The line of the program that a frame is at: looked for when somebody asks, while the frame waits."""

    __slots__ = ("_frame",)

    def __init__(self) -> None:
        self._frame = sys._getframe(1)

    def __str__(self) -> str:
        return str(program_line(self._frame))


def is_program(frame: FrameType) -> bool:
    """Whether a frame runs code of the program."""
    return code_of(frame.f_code.co_filename) is Code.PROGRAM


def is_called_by_program() -> bool:
    """Whether the program called `torch.distributed` itself: not torch for it, as DDP does."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_COMMUNICATION):
        frame = frame.f_back
    return frame is not None and not frame.f_code.co_filename.startswith(_TORCH)


def handling() -> str:
    """ ", while handling ValueError: ..." where the program is in an `except` or `finally` block; else nothing.

    A collective in a `finally` block can hide the error that led there behind a deadlock.
    """
    error = sys.exc_info()[1]
    return f", while handling {error_text(error)}" if error is not None else ""
