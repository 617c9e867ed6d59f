"""Run a file as a rank's `__main__`, from its first line to its exit.

Equivalent of `python train.py ARGS`: compile the file, execute it in a module named `__main__`, end at `sys.exit`, then
run the `atexit` handlers, last first. The file is compiled once for all ranks.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, ModuleType

from lablib.process.lifetime import ends_well
from lablib.text.files import printable, read_bytes
from lablib.text.messages import safe_str, traceback_text

_MAX_BYTES = 4 * 2**20  # larger scripts take seconds to compile


def compiled(path: Path) -> CodeType:
    """The script's code. Raises ValueError: there is no such file, or it is not Python."""
    try:
        source = read_bytes(path, _MAX_BYTES)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        what = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be read ({why})"
        rule = "a script must be a Python file"
        raise ValueError(f"{rule}: {printable(path)} {what}; give the path of the file torchrun would run") from None
    try:
        return compile(source, str(path), "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        where = f" (line {error.lineno})" if isinstance(error, SyntaxError) and error.lineno else ""
        why = error.args[0] if isinstance(error, (SyntaxError, ValueError)) else "it is nested too deeply"
        raise ValueError(f"a script must be Python that compiles: {path.name}{where}: {why}; correct it") from error


def main_module(path: Path) -> ModuleType:
    """An empty `__main__` for one rank."""
    main = ModuleType("__main__")
    main.__dict__.update(__file__=str(path), __builtins__=__builtins__, __cached__=None)
    return main


class ScriptExit(RuntimeError):
    """The script ended itself with an exit code other than 0."""


def run_program(code: CodeType, main_of: Callable[[], ModuleType]) -> int:
    """Execute the script on the rank of this thread. Returns its exit code: 0.

    ScriptExit: `sys.exit` with any other code. BaseException: any other exception of the script.
    """
    status: object = 0
    try:
        exec(code, main_of().__dict__)
    except SystemExit as ended:
        status = ended.code
    finally:
        _run_exit_handlers()
    if not ends_well(status):
        text = status if isinstance(status, str) else f"exit code {safe_str(status)}"
        raise ScriptExit(f"the script ended itself: {text}")
    return 0


def _run_exit_handlers() -> None:
    """Run the script's `atexit` handlers, last first; print an error in one and continue."""
    from lablib.script.process import here  # imports torch, which `compiled` does not need

    process = here()
    while process is not None and process.exit_handlers:
        function, args, kwargs = process.exit_handlers.pop()
        try:
            function(*args, **kwargs)
        except Exception as error:
            print(traceback_text(error), file=sys.stderr)
