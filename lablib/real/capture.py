"""What one rank prints: descriptors 1 and 2 of the worker lead to two files, emptied before every launch.

Capturing the descriptors and not only `sys.stdout` gets what C++ libraries and child processes write as well, in order.
The files lie where the launcher can read them too: when a worker dies, its last words are there.
"""

import ctypes
import os
import sys
from pathlib import Path


def output_path(directory: str | Path, rank: int, stream: str) -> Path:
    """The file that holds "stdout" or "stderr" of a rank."""
    return Path(directory) / f"rank{rank}.{stream}"


def read_output(directory: str | Path, rank: int, stream: str) -> str:
    """What a rank has written to "stdout" or "stderr" since its program began; empty if there is no such file."""
    path = output_path(directory, rank, stream)
    return path.read_text(errors="replace") if path.exists() else ""


class Capture:
    """The output of this process, which its first lines (in agent.py) led to the files of `rank` in `directory`.

    They are open for appending: every writer, also a child process, writes at the end as it is then.
    """

    def __init__(self, directory: str, rank: int):
        self._directory, self._rank = directory, rank
        self._stdout, self._stderr = sys.stdout, sys.stderr
        for stream in (self._stdout, self._stderr):
            stream.reconfigure(line_buffering=True, encoding="utf-8", errors="replace")  # pyright: ignore

    def start(self) -> None:
        """Forget what was written so far; undo a program's own redirection of `sys.stdout`."""
        self._flush()
        sys.stdout, sys.stderr = self._stdout, self._stderr
        os.ftruncate(1, 0)
        os.ftruncate(2, 0)

    def stop(self) -> tuple[str, str]:
        """What was written to stdout and stderr since `start`."""
        self._flush()
        return read_output(self._directory, self._rank, "stdout"), read_output(self._directory, self._rank, "stderr")

    def _flush(self) -> None:
        self._stdout.flush()
        self._stderr.flush()
        ctypes.CDLL(None).fflush(None)  # what C and C++ code printed and still holds
