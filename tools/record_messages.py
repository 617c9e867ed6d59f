"""A pytest plugin that records the text of every error that a test expects, for a comparison across a refactoring.

    LABLIB_MESSAGES=before python -m pytest -p tools.record_messages -n 2
    cat before/* | sort -u >before.txt

Each process writes one file into the folder: one line per error, with its class. Numbers and temporary folders differ
from run to run, so they are replaced by N and TMP.
"""

import os
import re
from pathlib import Path
from typing import Any

from _pytest.raises import RaisesExc

_TEMPORARY = re.compile(r"/tmp/[^\s'\":,)]*")
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+(?:[.,]\d+)*(?:e[-+]?\d+)?")
_TRACEBACK_LINE = re.compile(r'^\s*(File ".*|\^+|~.*)$', re.MULTILINE)


def pytest_configure() -> None:
    """Let each `pytest.raises` of this process write down the error that it caught."""
    folder = Path(os.environ["LABLIB_MESSAGES"])
    folder.mkdir(parents=True, exist_ok=True)
    file = folder.resolve() / f"{os.getpid()}.txt"
    leave, seen = RaisesExc.__exit__, set[str]()

    def record_and_leave(raises: Any, kind: Any, error: Any, trace: Any) -> Any:
        if kind is not None and (line := _line(kind, error)) not in seen:
            seen.add(line)
            with file.open("a") as out:
                out.write(line + "\n")
        return leave(raises, kind, error, trace)

    RaisesExc.__exit__ = record_and_leave


def _line(kind: type[BaseException], error: object) -> str:
    text = _TRACEBACK_LINE.sub("", str(error))
    text = _NUMBER.sub("N", _TEMPORARY.sub("TMP", text))
    return f"{kind.__name__}: {text}".replace("\n", "\\n")
