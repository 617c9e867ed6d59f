"""Where in the learner's program a call was made: the innermost frame outside torch, the simulator and the library.

Finding it walks a few frames for every communication, so it keeps file name and line only; the text is put together
when an error needs it.
"""

import linecache
import os
import sys
from dataclasses import dataclass
from types import FrameType

import torch

from lablib.texts import error_text
from lablib.torch_compat import torch_file

_TORCH = os.path.dirname(torch.__file__) + os.sep
_LABLIB = os.path.dirname(os.path.dirname(__file__)) + os.sep
_COMMUNICATION = (
    _LABLIB + "sim",
    torch_file("distributed", "distributed_c10d.py"),
    torch_file("distributed", "c10d_logger.py"),
    torch_file("overrides.py"),  # through these a call passes under a mode: shapes.py, a default device
    torch_file("utils", "_device.py"),
    os.path.join(os.path.dirname(os.path.dirname(_TORCH)), "typing_extensions.py"),  # around deprecated functions
)
_STDLIB = os.path.dirname(os.__file__) + os.sep
_SITE_PACKAGES = (_STDLIB + "site-packages", _STDLIB + "dist-packages")  # without a virtual environment
_NOT_A_PROGRAM = ("<frozen", "<string>", "<eval_with_key>")


@dataclass(frozen=True, slots=True)
class Source:
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


def program_line(frame: FrameType | None = None) -> Source:
    """The line of the program that led here (or to `frame`). Lines of lablib count only when it has none of its own."""
    frame = frame or sys._getframe(1)
    inside_lablib = UNKNOWN
    while frame is not None:
        if is_program(frame):
            return Source(frame.f_code.co_filename, frame.f_lineno)
        if is_bottom(frame):
            break
        if inside_lablib is UNKNOWN and is_library(frame):
            inside_lablib = Source(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return inside_lablib


def is_library(frame: FrameType) -> bool:
    """Whether a frame runs code of lablib that a program calls: not the machinery that runs the program."""
    name = frame.f_code.co_filename
    return name.startswith(_LABLIB) and not name.startswith((_LABLIB + "sim", _LABLIB + "launch"))


def is_bottom(frame: FrameType) -> bool:
    """Whether a frame is at the bottom of a rank's stack, beneath the program."""
    return frame.f_code.co_filename == _LABLIB + os.path.join("sim", "simulation.py")


def is_program(frame: FrameType) -> bool:
    """Whether a frame runs code of the program: not of torch, lablib, Python's own library, or what Python makes up."""
    name = frame.f_code.co_filename
    if name.startswith((_TORCH, _LABLIB, *_NOT_A_PROGRAM)):
        return False
    return not name.startswith(_STDLIB) or name.startswith(_SITE_PACKAGES)


def is_users_code(filename: str) -> bool:
    """Whether code of this file is the user's: not of torch, lablib, Python's library or an installed package."""
    own = (_TORCH, _LABLIB, _STDLIB, *_NOT_A_PROGRAM)
    return not filename.startswith(own) and not {"site-packages", "dist-packages"} & set(filename.split(os.sep))


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
