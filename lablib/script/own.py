"""What a script expects to find for itself: the settings with which each of its ranks begins, and its output.

Everything that Python and torch keep once for the process is a rank's own in every simulation (lablib/owners). A script
begins with other states of some: its arguments, its folder on the import path, its standard error, and a logging that
nobody has configured yet (`basicConfig(level=...)` differs by rank in many scripts). Loggers that libraries made before
stay the host's.
"""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from lablib.owners.logs import logging_state


def begins_with(argv: Sequence[str], folder: str, stderr: TextIO) -> dict[str, Any]:
    """The states of a rank's owners, by name.

    Args:
        argv: the script and its arguments.
        folder: the script's, first on the path.
        stderr: where the rank's messages go.
    """
    path = [folder, *sys.path[1:]] if sys.path and sys.path[0] == "" else [folder, *sys.path]
    root: Any = logging.RootLogger(logging.WARNING)
    return {
        "sys.argv": (list(argv), tuple(argv)),
        "sys.path": (path, tuple(path)),
        "error stream and input": (stderr, sys.stdin),
        "logging": logging_state(root, logging.Manager(root)),
    }


class Output(io.StringIO):
    """What a rank prints; with `also`, it is shown there at once as well."""

    def __init__(self, also: TextIO | None = None):
        super().__init__()
        self._also = also

    def write(self, text: str) -> int:
        if self._also is not None:
            self._also.write(text)
            self._also.flush()
        return super().write(text)
