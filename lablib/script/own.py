"""What Python keeps once for the process and a script expects for itself: each a belonging of a rank.

    Interpreter     sys.argv, sys.path, sys.stderr
    Logging         the root logger and the loggers under it: `basicConfig(level=...)` differs by rank in many scripts
    WorkingFolder   os.getcwd()
    MatmulPrecision float32 products in TF32 or not, deterministic algorithms

Each is made from what the process has when the run begins, and `put` and `take` swap it with the rank's turn.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any, TextIO

import torch


class Interpreter:
    """A rank's arguments, import path and standard error.

    Args:
        argv: the script and its arguments.
        folder: the script's, first on the path.
        stderr: where the rank's messages go.
    """

    def __init__(self, argv: Sequence[str], folder: str, stderr: TextIO):
        self._argv, self._stderr = list(argv), stderr
        self._path = [folder, *sys.path[1:]] if sys.path and sys.path[0] == "" else [folder, *sys.path]

    def put(self) -> None:
        self._host = (sys.argv, sys.path, sys.stderr)
        sys.argv, sys.path, sys.stderr = self._argv, self._path, self._stderr

    def take(self) -> None:
        self._argv, self._path, self._stderr = sys.argv, sys.path, sys.stderr
        sys.argv, sys.path, sys.stderr = self._host


class Logging:
    """A rank's own loggers. Those that libraries made before stay the host's."""

    def __init__(self) -> None:
        self._root: Any = logging.RootLogger(logging.WARNING)
        self._manager = logging.Manager(self._root)

    def put(self) -> None:
        self._host = (logging.root, logging.Logger.manager)
        self._set(self._root, self._manager)

    def take(self) -> None:
        self._set(*self._host)

    @staticmethod
    def _set(root: Any, manager: logging.Manager) -> None:
        logging.root = logging.Logger.root = root
        logging.Logger.manager = manager


class WorkingFolder:
    """A rank's working folder; `os.chdir` on one rank leaves the others where they are."""

    def __init__(self) -> None:
        self._host = self._own = os.getcwd()

    def put(self) -> None:
        if self._own != self._host:
            os.chdir(self._own)

    def take(self) -> None:
        self._own = os.getcwd()
        if self._own != self._host:
            os.chdir(self._host)


class MatmulPrecision:
    """How a rank multiplies float32 (which the cost model reads), and whether it insists on determinism."""

    def __init__(self) -> None:
        self._precision = torch.get_float32_matmul_precision()
        self._deterministic = torch.get_deterministic_debug_mode()

    def put(self) -> None:
        self._host = (torch.get_float32_matmul_precision(), torch.get_deterministic_debug_mode())
        self._set(self._precision, self._deterministic)

    def take(self) -> None:
        self._precision, self._deterministic = (
            torch.get_float32_matmul_precision(),
            torch.get_deterministic_debug_mode(),
        )
        self._set(*self._host)

    @staticmethod
    def _set(precision: str, deterministic: int) -> None:
        if torch.get_float32_matmul_precision() != precision:
            torch.set_float32_matmul_precision(precision)
        if torch.get_deterministic_debug_mode() != deterministic:
            torch.set_deterministic_debug_mode(deterministic)


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
