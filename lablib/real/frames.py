"""Stacks and tracebacks of the user's program, without the launcher's frames."""

import sys
import threading
import traceback
from itertools import takewhile
from pathlib import Path
from types import FrameType

import torch

from lablib.process.thread_frames import thread_frames
from lablib.text import messages as texts

_HERE = (str(Path(__file__).parent), texts.__file__)
_LIBRARIES = (*_HERE, str(Path(torch.__file__).parent))


def traceback_text(error: BaseException) -> str:
    """The traceback of an exception and its chain, from the program's frames on. Never raises."""
    return texts.traceback_text(error, _programs)


def main_thread_stack() -> str:
    """The current stack of the main thread, as text; empty outside of a program."""
    frame = thread_frames().get(threading.main_thread().ident or 0)
    if frame is None:
        return ""
    stack = traceback.extract_stack(frame)
    if not any(_is_launchers(f) for f in stack):
        return ""
    if _is_at_end(stack):
        return "its end: it had returned, and its work on the GPU was not done"
    return "".join(_programs(stack).format()).rstrip()


def program_line() -> str:
    """The current line of the program on this thread, as "file:line"; empty if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""


def _programs(stack: traceback.StackSummary) -> traceback.StackSummary:
    """The frames between the launcher's call of the program and its call recorder (see calls.py)."""
    if _is_at_end(stack):
        return traceback.StackSummary()
    frames = list(takewhile(lambda f: not (_is_launchers(f) and f.name == "record_and_go_on"), stack))
    last = max((i for i, f in enumerate(frames) if _is_launchers(f)), default=-1)
    return traceback.StackSummary.from_list(frames[last + 1 :])


def _is_at_end(stack: traceback.StackSummary) -> bool:
    """Whether the launcher itself waits for the GPU (measure.py)."""
    own = [frame.name for frame in stack if _is_launchers(frame)]
    return own[-1:] == ["wait_for_gpu"]


def _is_launchers(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(_HERE)
