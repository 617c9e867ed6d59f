"""`lab train`: train from a configuration file, on simulated ranks, CPU processes or GPUs.

    lab train train.toml optimizer.lr=1e-3 --ranks 4 --backend gloo

Under torchrun use examples/train.py, which runs the same program on the ranks of torchrun.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from lablib.course.errors import CourseError, CourseFailure
from lablib.errors import LaunchError, RankError
from lablib.text.units import format_quantity, plural


def train_command(options: argparse.Namespace) -> int:
    """Run it and print the lines of rank 0. CourseError: an invalid request; CourseFailure: the run failed."""
    from lablib.launch import launch
    from lablib.train.run import load, run

    with errors_in_a_sentence():
        config, sentences = load(options.file, options.passed_on, options.ranks, options.deepspeed)
        print("".join(f"{sentence}\n" for sentence in sentences), end="", flush=True)
        result = launch(
            run,
            config,
            ranks=options.ranks,
            backend=options.backend,
            cluster=options.cluster,
            timeout_s=options.timeout,
        )
    print(result.stdout[0], end="")
    where = f"simulated on {options.cluster}" if options.backend == "sim" else f"on {options.backend}"
    time_s = format_quantity(result.timeline.makespan_s, "s")
    print(f"{plural(len(result.values[0]), 'steps')} on {plural(options.ranks, 'ranks')}, {where}: {time_s}")
    return 0


@contextmanager
def errors_in_a_sentence() -> Iterator[None]:
    """Errors of a configuration or a launch as those of a command."""
    try:
        yield
    except ValueError as error:
        raise CourseError(str(error)) from error
    except RankError as error:
        if isinstance(error.__cause__, ValueError):  # such as a checkpoint of another model
            raise CourseError(str(error.__cause__)) from error
        is_of_a_file = isinstance(error.__cause__, OSError)  # such as a full disk
        raise CourseFailure(str(error.__cause__ if is_of_a_file else error)) from error
    except LaunchError as error:
        raise CourseFailure(str(error)) from error
