"""Capture the output of a rank: descriptors 1 and 2 lead to files, emptied before every launch.

Unlike a replaced `sys.stdout`, the descriptors also capture C++ libraries and child processes, in order. The launcher
has the files open too, so the output of a dead worker is available. Once both sides have opened them their names are
removed, so nothing stays on disk however the processes end.
"""

import contextlib
import ctypes
import os
import sys
from pathlib import Path
from typing import TextIO

STREAMS = ("stdout", "stderr")
MAX_BYTES = 1 << 30  # per stream and rank: its file must not fill the disk
_LAST_WORDS_BYTES = 100_000


def _read(descriptor: int, max_bytes: int = MAX_BYTES) -> str:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, max_bytes, max(0, size - max_bytes)).decode(errors="replace")


class Capture:
    """The output of this process, redirected to files at its start (fork_server.py).

    They are open for appending: every writer, including child processes, writes at the current end.
    """

    def __init__(self) -> None:
        self._files = os.dup(1), os.dup(2)
        self._streams: list[TextIO] = [sys.stdout, sys.stderr]

    def start(self) -> None:
        """Discard the output so far."""
        self._reclaim()
        for file in self._files:
            os.ftruncate(file, 0)

    def stop(self) -> tuple[str, str]:
        """The output to stdout and stderr since `start`."""
        self._reclaim()
        return _read(self._files[0]), _read(self._files[1])

    def _reclaim(self) -> None:
        """Flush all buffers to the files, and restore the output streams, even if a program closed them."""
        self._flush_buffers()
        for descriptor, file in enumerate(self._files, start=1):
            os.dup2(file, descriptor)
        self._flush_buffers()  # of a descriptor that the program had closed
        # New streams: the program's may be closed or detached. They do not close the descriptors.
        self._streams = [open(number, "w", 1, encoding="utf-8", errors="replace", closefd=False) for number in (1, 2)]
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__ = self._streams

    def _flush_buffers(self) -> None:
        for stream in self._streams:
            with contextlib.suppress(OSError, ValueError):  # closed, detached, or a full disk
                stream.flush()
        ctypes.CDLL(None).fflush(None)  # buffers of C and C++ code


class Outputs:
    """The launcher's view of the same files, of all ranks. `directory` is their folder."""

    def __init__(self, directory: Path, ranks: int):
        self._files = {
            (rank, stream): os.open(directory / f"rank{rank}.{stream}", os.O_RDONLY)
            for rank in range(ranks)
            for stream in STREAMS
        }

    def read(self, rank: int, stream: str) -> str:
        """The end of a rank's output to "stdout" or "stderr" since its program began; empty after `close`."""
        file = self._files.get((rank, stream))
        return "" if file is None else _read(file, _LAST_WORDS_BYTES)

    def endless(self) -> tuple[int, str] | None:
        """A rank and a stream with more than `MAX_BYTES` of output."""
        return next((key for key, file in self._files.items() if os.fstat(file).st_size > MAX_BYTES), None)

    def close(self) -> None:
        while self._files:
            os.close(self._files.popitem()[1])
