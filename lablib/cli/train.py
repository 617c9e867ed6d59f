"""`lab train`: train from a configuration file, on simulated ranks, CPU processes or GPUs.

    lab train train.toml optimizer.lr=1e-3 --ranks 4 --backend gloo

The lines of rank 0 appear as it writes them, also before a failure. The last lines have the seconds of the run, and the
shares in which rank 0 communicated without computing and waited for other ranks. With monitor.folder or monitor.rules,
these shares are compared with the thresholds of the rules on communication_share and synchronization_s (per step).
`monitor.communication` has both as metrics of each step.
With `monitor.breakdown`, the simulator prints virtual seconds of phases at the end, real ranks seconds below each line.

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
    check_early(options)
    from lablib.launch import launch
    from lablib.train.alert_files import read_rules
    from lablib.train.alerts import TRAINING_RULES
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
        share, waiting_s = timeline.exposed_s(0) / timeline.makespan_s, timeline.waiting_s(0)
        waiting = waiting_s / timeline.makespan_s
        print(f"rank 0: communication without computation {share:.1%}, waiting for other ranks {waiting:.1%}")
        if config.monitor.folder or config.monitor.rules:
            measured = {"communication_share": share, "synchronization_s": waiting_s / max(1, num_steps)}
            for rule in read_rules(config.monitor.rules) if config.monitor.rules else TRAINING_RULES:
                if rule.metric in measured and rule.holds(value := measured[rule.metric]):
                    print(f"{rule.name}: {rule.metric} of the whole run is {value:.3g}, {rule.when} {rule.threshold:g}")
    if is_timed and num_steps:
        print(_breakdown(timeline, num_steps))
    return 0


def check_early(options: argparse.Namespace) -> None:
    """Refuse an unknown cluster, a missing file or an unknown field before torch is imported. Raises CourseError."""
    from lablib.hardware.catalogue import find_cluster
    from lablib.train.read_config import parse_config, read_tables, with_overrides

    with errors_in_a_sentence():
        find_cluster(options.cluster)
        if not options.file.endswith(".json") and not getattr(options, "deepspeed", None):
            parse_config(with_overrides(read_tables(options.file), options.passed_on), options.file)


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
    """A file; its lines are printed while the block runs, and all of them at its end."""
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
    """Errors of a configuration or a launch as errors of a command."""
    try:
        yield
    except CourseError:  # with its exit code
        raise
    except ValueError as error:
        raise CourseError(str(error)) from error
    except RankError as error:
        if isinstance(error.__cause__, ValueError):  # such as a checkpoint of another model
            raise CourseError(str(error.__cause__)) from error
        from lablib.train.health import RunStopped

        is_told = isinstance(error.__cause__, OSError | RunStopped)  # such as a full disk; a policy
        raise CourseFailure(str(error.__cause__ if is_told else error)) from error
    except LaunchError as error:
        raise CourseFailure(str(error)) from error
