"""`lab sim`: run a script on the simulator, show its progress, and write its report.

    lab sim --ranks 8 --cluster dgx-h100 train.py --steps 10
    lab sim --fidelity shapes --assert "step_s < 0.2 and peak_bytes < 80e9" train.py

Exit codes: 0 the script ran to its end; 1 it failed; 2 the request was invalid, and nothing ran. With --assert: 0 it
holds; 1 it is broken; 3 the script failed, or would hang. Numbers of an assertion:

    step_s          median time of a step, without the first; from optimizer step to optimizer step (record/steps.py)
    num_steps       optimizer steps, with the first
    makespan_s      the whole script
    peak_bytes      the highest peak of a rank
    sent_bytes, num_communications      of all ranks, in the whole script
    busy_share, exposed_share, waiting_share, idle_share, mfu      means over the ranks, of the whole script
"""

import argparse
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import nan
from pathlib import Path
from statistics import median
from typing import TextIO

from lablib.cli.assertion import NUMBERS_OF_A_RUN, Assertion
from lablib.course.errors import CourseError, CourseFailure
from lablib.errors import LaunchError, RankError
from lablib.record.steps import step_ends_s
from lablib.run import Run
from lablib.script.own import show
from lablib.script.report import IncompleteReport, default_folder, files_line, write_output, write_report
from lablib.script.run import Script
from lablib.text.files import new_folder
from lablib.text.units import format_quantity

_FAILED_WITH_ASSERT = 3


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
        asserted = Assertion(options.asserted, NUMBERS_OF_A_RUN) if options.asserted is not None else None
        script = Script(
            options.script, options.arguments, options.ranks, options.cluster, shown, fidelity=options.fidelity
        )
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
        failure = CourseFailure(_failure(script, error, folder))
        failure.exit_code = 1 if asserted is None else _FAILED_WITH_ASSERT
        raise failure from error
    try:
        summary = write_report(run, folder, script.path.name)
    except IncompleteReport as error:
        show(f"\n{error.summary}", sys.stdout)
        raise CourseFailure(f"the report is incomplete: {error}; choose another folder with --out.") from error
    show(f"\n{summary}{files_line(folder)}\n", sys.stdout)
    if asserted is None:
        return 0
    holds, lines = asserted.check(numbers(run))
    show("".join(f"{line}\n" for line in lines), sys.stdout)
    return 0 if holds else 1


def numbers(run: Run) -> dict[str, float]:
    """The numbers of an assertion, by name; NaN for one that is not known."""
    ends_s = step_ends_s(run.timeline)
    durations_s = [end_s - start_s for start_s, end_s in zip(ends_s, ends_s[1:], strict=False)]
    summary, makespan_s = run.summary(), run.timeline.makespan_s
    seconds = (summary.busy_s, summary.exposed_s, summary.waiting_s, summary.idle_s)
    shares = (sum(each) / max(1, len(each)) / makespan_s if makespan_s else 0.0 for each in seconds)
    values = (
        median(durations_s) if durations_s else nan,
        len(ends_s),
        makespan_s,
        run.memory.peak_bytes() if run.memory.is_known else nan,
        sum(summary.sent_bytes),
        len(run.traffic),
        *shares,
        sum(summary.mfu) / len(summary.mfu) if summary.mfu else nan,
    )
    return dict(zip(NUMBERS_OF_A_RUN, values, strict=True))


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
