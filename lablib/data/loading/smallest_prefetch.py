"""The smallest prefetch, in batches loaded ahead, that hides a given jitter.

More prefetch never makes a batch later, so the smallest that is enough is found by halves. One slow load of X seconds
among quick ones is hidden by

    P >= X / (k S)

as it is ordered when the device takes the batch k P before it, and the device then has k P steps of S seconds to do. If
most loads jitter, slow ones coincide, and the trace itself must be run. No prefetch helps a loader that is too
slow on the average: L > k S.

Cost: log2(most prefetch) runs of the loop; k P batches of host memory for the answer.
Source: the loop of loader_timeline.py; queueing.py has the closed form for exponential times.
Simplified: no copies; steps of one length.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Annotated

from lablib.data.loading.loader import Jitter, Loader, Spread, draw_times
from lablib.data.loading.loader_timeline import run_loop
from lablib.signature import Count, Fraction, NonNegative, NonNegativeInt, Range, checked


@checked
def idle_share(
    load_s: NonNegative,
    step_s: NonNegative,
    workers: NonNegativeInt,
    prefetch: Count,
    spread: Spread = 0.0,
    num_batches: Annotated[int, Range(ge=1, le=10**8)] = 600,
    seed: int = 0,
) -> float:
    """Part of the time in which the device waits for batches, after the first: a run with lognormal loads.

    Arguments:
        load_s: mean seconds of a load; `workers / load_s` batches a second is the loader's rate.
        spread: of load times, their standard deviation over their mean.
        num_batches, seed: how long the run is, and of its draw.
    """
    jitter = Jitter.LOGNORMAL if spread else Jitter.NONE
    loads_s = draw_times(load_s, num_batches, jitter, spread, seed)
    return run_loop(Loader(workers, prefetch), loads_s, [float(step_s)] * num_batches).idle_share_from(0)


@checked
def smallest_prefetch(
    load_times_s: Sequence[NonNegative],
    step_s: NonNegative,
    workers: Annotated[Count, "without a worker nothing is loaded ahead: give at least one"] = 1,
    max_idle_share: Fraction = 0.0,
    max_prefetch: Count = 1024,
) -> int | None:
    """The least orders a worker with which the device waits no more than this share; None: no number up to the most.

    The wait for the first batch is left out, as nothing hides it.

    Arguments:
        load_times_s: seconds to load each batch, such as a measured trace.
        max_idle_share: of the time from the start of the first step on.
        max_prefetch: the most that is tried.
    """
    steps_s = [float(step_s)] * len(load_times_s)

    def is_enough(prefetch: int) -> bool:
        run = run_loop(Loader(workers=workers, prefetch=prefetch), load_times_s, steps_s)
        return run.idle_share_from(0) <= max_idle_share + 1e-9  # sums of times are off by roundings

    if not is_enough(max_prefetch):
        return None
    return bisect_left(range(max_prefetch), True, lo=1, hi=max_prefetch, key=is_enough)
