"""One torch profiler per process: a second profile that overlaps the first would crash the process.

On real processes every rank may profile. Here a rank that begins while another profiles gets an error instead.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partialmethod
from typing import Any

from torch.autograd import profiler

from lablib.sim.ranks.threads import owner
from lablib.sim.replaced import replaced
from lablib.torch_compat import current, place


@contextmanager
def one_profile_at_a_time() -> Iterator[None]:
    """Raise, within this context, if a profile begins before another has ended."""
    under_way: list[tuple[Any, str]] = []  # (profile, its owner); at most one
    if current("is_profiler_enabled"):
        under_way.append((None, "the notebook"))
    kind = profiler.profile
    begin, start, end = current("prepare_profile"), current("start_profile"), kind.__exit__
    with replaced(
        (*place("prepare_profile"), partialmethod(_begun, begin, under_way)),
        (*place("start_profile"), partialmethod(_begun, start, under_way)),
        (kind, "__exit__", partialmethod(_ended, end, under_way)),
    ):
        try:
            yield
        finally:
            for profile in [profile for profile, _ in under_way if profile is not None]:  # of ranks that ended first
                with suppress(Exception):
                    profile.__exit__(None, None, None)


def _begun(profile: Any, begin: Callable[[Any], None], under_way: list[tuple[Any, str]]) -> None:
    me = f"rank {owner(threading.current_thread())}"
    for other, whose in under_way:
        if other is not profile:
            raise RuntimeError(
                f"{me} begins to profile while {whose} does: simulated ranks share one process, and torch's profiler "
                f"keeps one profile a process; profile on one rank, end each profile before the ranks communicate, or "
                f"read the timeline of the run"
            )
    under_way[:] = [(profile, me)]
    begin(profile)


def _ended(profile: Any, end: Callable[..., Any], under_way: list[tuple[Any, str]], *error: Any) -> Any:
    try:
        return end(profile, *error)
    finally:
        under_way[:] = [one for one in under_way if one[0] is not profile]
