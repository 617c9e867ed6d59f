"""`lab train`: train from a configuration file, on simulated ranks, CPU processes or GPUs.

    lab train train.toml optimizer.lr=1e-3 --ranks 4 --backend gloo

The lines of rank 0 appear as it writes them, also those before a failure. At the end stand the seconds, and the shares
of them in which rank 0 communicated without computing and waited for other ranks. With `monitor.breakdown` on the
simulator follow the virtual seconds of the phases; on real ranks their seconds stand under each line.

Exit code 1: the run failed, or a policy of [health] ended it. A hang of real ranks is ended by `health.hang_s`, any run
after `--timeout` seconds (default: never).

Under torchrun use examples/train.py, which runs the same program on the ranks of torchrun.
"""

import argparse
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

from lablib.course.errors import CourseError, CourseFailure
from lablib.errors import LaunchError, RankError
from lablib.text.units import format_quantity, plural

if TYPE_CHECKING:
    from lablib.run import Timeline


def train_command(options: argparse.Namespace) -> int:
    """Run it and print the lines of rank 0. CourseError: an invalid request; CourseFailure: the run failed."""
    from lablib.launch import launch
    from lablib.train.run import load, run

    with errors_in_a_sentence():
        config, sentences = load(options.file, options.passed_on, options.ranks, options.deepspeed)
        print("".join(f"{sentence}\n" for sentence in sentences), end="", flush=True)
        is_timed = config.monitor.breakdown and options.backend == "sim"
        if is_timed:
            config = replace(config, monitor=replace(config.monitor, breakdown=False))
        with shown_lines() as log:
            result = launch(
                run,
                config,
                (),
                log,
                ranks=options.ranks,
                backend=options.backend,
                cluster=options.cluster,
                timeout_s=inf if options.timeout is None else options.timeout,
            )
    where = f"simulated on {options.cluster}" if options.backend == "sim" else f"on {options.backend}"
    timeline, num_steps = result.timeline, len(result.values[0])
    time_s = format_quantity(timeline.makespan_s, "s")
    print(f"{plural(num_steps, 'steps')} on {plural(options.ranks, 'ranks')}, {where}: {time_s}")
    if options.ranks > 1 and timeline.makespan_s > 0:
        exposed, waiting = (part / timeline.makespan_s for part in (timeline.exposed_s(0), timeline.waiting_s(0)))
        print(f"rank 0: communication without computation {exposed:.1%}, waiting for other ranks {waiting:.1%}")
    if is_timed and num_steps:
        print(_breakdown(timeline, num_steps))
    return 0


def _breakdown(timeline: "Timeline", num_steps: int) -> str:
    """Mean virtual seconds per step of rank 0, by phase."""
    from lablib.train.breakdown import PHASES

    lines = ["virtual seconds per step of rank 0", f"{'phase':<10}{'computation':>15}{'communication':>15}"]
    for phase in PHASES:
        kinds = [[span for span in timeline.select(0, stream, phase)] for stream in ("compute", "comm")]
        times = [format_quantity(sum(span.duration_s for span in spans) / num_steps, "s") for spans in kinds]
        lines.append(f"{phase:<10}{times[0]:>15}{times[1]:>15}")
    return "\n".join(lines)


@contextmanager
def shown_lines(every_s: float = 0.1) -> Iterator[str]:
    """A file whose lines are printed while the block runs, and all of them at its end."""
    handle, path = tempfile.mkstemp(prefix="lab-train-", text=True)
    os.close(handle)
    over, out = threading.Event(), sys.stdout

    def show() -> None:
        with open(path, encoding="utf-8") as file:
            is_over = False
            while not is_over:
                is_over = over.wait(every_s)
                out.write(file.read())
                out.flush()

    thread = threading.Thread(target=show, name="lab train output", daemon=True)
    thread.start()
    try:
        yield path
    finally:
        over.set()
        thread.join()
        os.unlink(path)


@contextmanager
def errors_in_a_sentence() -> Iterator[None]:
    """Errors of a configuration or a launch as those of a command."""
    from lablib.train.health import RunStopped

    try:
        yield
    except ValueError as error:
        raise CourseError(str(error)) from error
    except RankError as error:
        if isinstance(error.__cause__, ValueError):  # such as a checkpoint of another model
            raise CourseError(str(error.__cause__)) from error
        is_told = isinstance(error.__cause__, OSError | RunStopped)  # such as a full disk; a policy
        raise CourseFailure(str(error.__cause__ if is_told else error)) from error
    except LaunchError as error:
        raise CourseFailure(str(error)) from error
