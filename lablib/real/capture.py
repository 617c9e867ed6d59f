"""What one rank prints: descriptors 1 and 2 of the worker lead to two files, emptied before every launch.

Capturing the descriptors and not only `sys.stdout` gets what C++ libraries and child processes write as well, in order.
The launcher has the files open too: when a worker dies, its last words are there. Once both sides have opened them
their names are removed, so nothing stays on disk however the processes end.
"""

import ctypes
import os
import sys
from pathlib import Path

STREAMS = ("stdout", "stderr")


def _read(descriptor: int) -> str:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")


class Capture:
    """The output of this process, which its first lines (in agent.py) led to files.

    They are open for appending: every writer, also a child process, writes at the end as it is then.
    """

    def __init__(self) -> None:
        self._files = os.dup(1), os.dup(2)
        self._streams = sys.stdout, sys.stderr
        for stream in self._streams:
            stream.reconfigure(line_buffering=True, encoding="utf-8", errors="replace")  # pyright: ignore

    def start(self) -> None:
        """Forget what was written so far; undo what a program did to its output."""
        self._flush()
        sys.stdout, sys.stderr = self._streams
        for descriptor, file in enumerate(self._files, start=1):
            os.dup2(file, descriptor)
            os.ftruncate(file, 0)

    def stop(self) -> tuple[str, str]:
        """What was written to stdout and stderr since `start`."""
        self._flush()
        return _read(self._files[0]), _read(self._files[1])

    def _flush(self) -> None:
        for stream in self._streams:
            stream.flush()
        ctypes.CDLL(None).fflush(None)  # what C and C++ code printed and still holds


class Outputs:
    """The launcher's view of the same files, of all ranks. `directory` is where the workers made them."""

    def __init__(self, directory: Path, ranks: int):
        self._files = {
            (rank, stream): os.open(directory / f"rank{rank}.{stream}", os.O_RDONLY)
            for rank in range(ranks)
            for stream in STREAMS
        }

    def read(self, rank: int, stream: str) -> str:
        """What a rank has written to "stdout" or "stderr" since its program began; empty after `close`."""
        file = self._files.get((rank, stream))
        return "" if file is None else _read(file)

    def close(self) -> None:
        while self._files:
            os.close(self._files.popitem()[1])
