"""Initial settings of a script's ranks, and their output.

Per-process settings of Python and torch are per rank in every simulation (lablib/process/settings). A script begins
with other states of some: its arguments, its folder on the import path, and unconfigured logging
(`basicConfig(level=...)` differs by rank in many scripts). Loggers that libraries made before stay the host's.
"""

import io
import logging
import os
import sys
import tempfile
from collections.abc import Sequence
from typing import Any, BinaryIO, TextIO

from lablib.process.settings.logs import logging_state


def begins_with(argv: Sequence[str], folder: str) -> dict[str, Any]:
    """The initial states of a rank's settings, by name."""
    path = [folder, *sys.path[1:]] if sys.path and sys.path[0] == "" else [folder, *sys.path]
    root: Any = logging.RootLogger(logging.WARNING)
    return {
        "sys.argv": (list(argv), tuple(argv)),
        "sys.path": (path, tuple(path)),
        "logging": logging_state(root, logging.Manager(root)),
    }


class Output(io.StringIO):
    """A rank's output; with `also`, it is shown there at once as well.

    A script may close it: later writes raise, and earlier output stays. A character that the terminal cannot show is
    replaced by its number (as in standard error), and a closed terminal gets no more output.
    """

    def __init__(self, also: TextIO | None = None):
        super().__init__()
        self._also, self._is_closed = also, False
        self._file: BinaryIO | None = None
        self._bytes = _Bytes(self)

    @property
    def closed(self) -> bool:
        return self._is_closed

    @property
    def buffer(self) -> Any:
        return self._bytes

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return "utf-8"

    def close(self) -> None:
        self._is_closed = True

    def reconfigure(self, **_: Any) -> None:
        """Ignore settings of a terminal's encoding and buffering."""

    def fileno(self) -> int:
        """A file for child processes and for writes by number; its content is added to the output at the next write."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(buffering=0)
        return self._file.fileno()

    def write(self, text: str) -> int:
        if self._is_closed:
            raise ValueError("I/O operation on closed file.")
        self._join_file()
        return self._add(text)

    def getvalue(self) -> str:
        self._join_file()
        return super().getvalue()

    def release(self) -> None:
        """Close the file at the end of the run."""
        self._join_file()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _add(self, text: str) -> int:
        if self._also is not None and not show(text, self._also):
            self._also = None
        return super().write(text)

    def _join_file(self) -> None:
        if self._file is not None and (size := os.fstat(self._file.fileno()).st_size):
            text = os.pread(self._file.fileno(), size, 0).decode("utf-8", "backslashreplace")
            os.ftruncate(self._file.fileno(), 0)
            os.lseek(self._file.fileno(), 0, os.SEEK_SET)
            self._add(text)


class _Bytes(io.RawIOBase):
    """`sys.stdout.buffer` of a rank."""

    def __init__(self, text: Output):
        self._text = text

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._text.write(bytes(data).decode("utf-8", "backslashreplace"))
        return len(data)


def show(text: str, terminal: TextIO) -> bool:
    """Write the characters that a terminal can show. Returns whether it still accepts output."""
    encoding = getattr(terminal, "encoding", None) or "utf-8"
    try:
        terminal.write(text.encode(encoding, "backslashreplace").decode(encoding))
        terminal.flush()
    except (OSError, ValueError):  # a full disk, a pipe without a reader, a closed stream
        return False
    return True
