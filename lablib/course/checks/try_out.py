"""Try a function before its check: output and return value of each rank, or the error.

try_out(plan_buckets, [40, 8, 60], 100)              called here, once
try_out(program, ranks=4, cluster="dgx-h100")        on every rank of a launch
"""

from collections.abc import Callable
from typing import Any

from lablib.course.checks.expect import NotAttempted
from lablib.course.checks.formatting import short_repr
from lablib.course.checks.learner_code import is_stub, learner_frames, program_error, unfinished
from lablib.course.checks.printing import print_error, print_text
from lablib.course.checks.time_limit import LAUNCH_LIMIT_S, TimeIsUp, time_limit
from lablib.course.translation import say_for
from lablib.errors import LaunchError

_MAX_RANKS = 16  # lines to read


def try_out(function: Any, *args: Any, ranks: int | None = None, **options: Any) -> None:
    """Call a function, or launch it, and print the outcome. Raises and records nothing.

    Args:
        function: the function, or `...` if it is not written yet.
        ranks: number of ranks; None: call it here, without ranks.
        options: of `launch`: cluster, backend, ...
    """
    try:
        if function is Ellipsis:
            raise NotAttempted
        with time_limit():
            values, printed = _values(function, args, ranks, options)
    except (NotAttempted, Exception) as error:
        _say(error)
        return
    say = say_for()
    for rank in range(min(len(values), _MAX_RANKS)):
        place = "" if ranks is None else f"rank {rank}: "
        for line in printed[rank].rstrip().splitlines():
            print(say(f"{place}printed  {line}"))
        print(say(f"{place}returned {short_repr(values[rank])}"))
    if len(values) > _MAX_RANKS:
        print(f"... and {len(values) - _MAX_RANKS} ranks more")


def _values(
    function: Callable[..., Any], args: tuple, ranks: int | None, options: dict[str, Any]
) -> tuple[list[Any], list[str]]:
    if ranks is None:
        return [function(*args, **options)], [""]
    from lablib.launch import launch

    run = launch(function, *args, ranks=ranks, **{"timeout_s": LAUNCH_LIMIT_S, **options})
    return run.values, run.stdout


def _say(error: BaseException) -> None:
    if isinstance(error, NotAttempted) or is_stub(error):
        remedy = unfinished(error) or "solve the exercise above, run its cell, then this one."
        print(say_for()(f"Not attempted yet: {remedy}"))
    elif isinstance(error, LaunchError):
        print_error(error)
    else:
        cause = program_error(error)
        where = f"\n{cause.where if isinstance(cause, TimeIsUp) else learner_frames(cause)}".rstrip()
        print_text(f"{type(cause).__name__}: {cause}{where}")
