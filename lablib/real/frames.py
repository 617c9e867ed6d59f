"""Stacks and tracebacks as the writer of the program wants them: without the launcher's own frames."""

import threading
import traceback
from pathlib import Path

from lablib import texts
from lablib.thread_frames import thread_frames

_HERE = (str(Path(__file__).parent), texts.__file__)


def traceback_text(error: BaseException) -> str:
    """The traceback of an exception, chained ones included, from the program's own frames on. Never raises."""
    return texts.traceback_text(error, _programs)


def main_thread_stack() -> str:
    """Where the main thread is now, as text; empty while it is not in a program."""
    frame = thread_frames().get(threading.main_thread().ident or 0)
    if frame is None:
        return ""
    stack = traceback.extract_stack(frame)
    if not any(_is_launchers(f) for f in stack):
        return ""
    return "".join(_programs(stack).format()).rstrip()


def _programs(stack: traceback.StackSummary) -> traceback.StackSummary:
    """The frames between the launcher's call of the program and its recorder of communication calls (see calls.py)."""
    frames = list(stack)
    is_recorder = [_is_launchers(f) and f.name == "record_and_go_on" for f in frames]
    if True in is_recorder:
        frames = frames[: is_recorder.index(True)]
    last = max((i for i, f in enumerate(frames) if _is_launchers(f)), default=-1)
    return traceback.StackSummary.from_list(frames[last + 1 :])


def _is_launchers(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(_HERE)
