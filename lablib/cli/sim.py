"""`lab sim`: run a script on the simulator, show its progress, and write its report.

    lab sim --ranks 8 --cluster dgx-h100 train.py --steps 10

Exit codes: 0 the script ran to its end; 1 it failed; 2 the request was invalid, and nothing ran.
"""

import argparse
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from lablib.course.errors import CourseError, CourseFailure
from lablib.errors import LaunchError, RankError
from lablib.script.own import show
from lablib.script.report import IncompleteReport, default_folder, files_line, write_output, write_report
from lablib.script.run import Script
from lablib.text.files import new_folder
from lablib.text.units import format_quantity


def simulate(options: argparse.Namespace) -> int:
    """Run `options.script` with the options.

    Raises:
        CourseError: an invalid option.
        CourseFailure: the script failed, or the report cannot be written.
    """
    if options.timeout is not None and not options.timeout > 0:
        raise CourseError(f"--timeout must be positive seconds: got {options.timeout:g}; try --timeout 600.")
    shown = None if options.quiet else sys.stdout
    try:
        script = Script(options.script, options.arguments, options.ranks, options.cluster, shown)
    except ValueError as error:
        raise CourseError(str(error)) from error
    try:
        folder = Path(options.out) if options.out else new_folder(default_folder(script.path))
    except OSError as error:
        raise CourseFailure(f"the report cannot be written: {error}; choose another folder with --out.") from error
    try:
        with progress(script, sys.stderr):
            run = script.run(options.timeout)
    except LaunchError as error:
        raise CourseFailure(_failure(script, error, folder)) from error
    try:
        summary = write_report(run, folder, script.path.name)
    except IncompleteReport as error:
        show(f"\n{error.summary}", sys.stdout)
        raise CourseFailure(f"the report is incomplete: {error}; choose another folder with --out.") from error
    show(f"\n{summary}{files_line(folder)}\n", sys.stdout)
    return 0


def _failure(script: Script, error: LaunchError, folder: Path) -> str:
    """The error with the path of the ranks' output; a traceback, if there is one, begins in the script."""
    text = str(error)
    if isinstance(error, RankError) and error.rank_traceback:
        text = f"rank {error.rank} of {script.path.name} failed.\n{error.rank_traceback.rstrip()}"
    text += "".join(f"\nNote: {note}" for note in getattr(error, "__notes__", ()))
    try:
        write_output((script.output(rank) for rank in range(len(script.processes))), folder)
    except IncompleteReport as missing:
        return f"{text}\nthe output of the ranks is incomplete: {missing}; choose another folder with --out."
    return f"{text}\nthe output of each rank until then is in {folder}"


@contextmanager
def progress(script: Script, terminal: TextIO, every_s: float = 0.5) -> Iterator[None]:
    """A progress line on a terminal; nothing without a terminal."""
    if not terminal.isatty():
        yield
        return
    over = threading.Event()
    thread = threading.Thread(
        target=_report, args=(script, terminal, over, every_s), name="lab sim progress", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _report(script: Script, terminal: TextIO, over: threading.Event, every_s: float) -> None:
    began_s = time.perf_counter()
    while not over.wait(every_s):
        elapsed_s = time.perf_counter() - began_s
        terminal.write(
            f"\r\x1b[Ksimulating: {format_quantity(script.clock_s, 's', 4)} of virtual time, {elapsed_s:.0f} s elapsed"
        )
        terminal.flush()
    terminal.write("\r\x1b[K")
    terminal.flush()
