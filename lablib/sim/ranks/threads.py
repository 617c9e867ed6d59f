"""Threads that a rank starts: whose each one is, and what it finds of the rank's process groups.

A simulated rank communicates from the thread that runs its program; a thread that it starts may compute, load and wait.
One that communicates ends the run (turns.py): it would do so in the turn of whichever rank has it. The error says
whose thread it was; that is noted when the thread starts. The thread also gets torch's names of the rank's groups,
which torch keeps for each thread in a run, so that a communication that names its group is refused like any other.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial, partialmethod
from typing import Any

import torch.distributed as dist

from lablib.sim.replaced import replaced
from lablib.torch_compat import register_process_group, unregister_process_group

Groups = Mapping[dist.ProcessGroup, Any]  # with torch's name of each


def set_owner(thread: threading.Thread, rank: int) -> None:
    """Say whose thread this is."""
    thread.sim_rank = rank  # pyright: ignore[reportAttributeAccessIssue]


def owner(thread: threading.Thread) -> int | None:
    """The rank that started a thread, itself or through other threads; None for those of the host process."""
    return getattr(thread, "sim_rank", None)


def wait_to_be_run() -> None:
    """Have this thread, a rank's, run only once nobody who is running must be interrupted for it.

    A rank that passes its turn wakes the next one, which cannot go on before the first lets go of Python's interpreter,
    a moment later. By default Linux may run it at once, only to put it to sleep again: most of what a turn costs.
    Threads that a rank starts are as usual; processes that it starts are as it is.
    """
    if sys.platform == "linux" and os.sched_getscheduler(0) == os.SCHED_OTHER:  # somebody chose any other
        _set_policy(os.SCHED_BATCH)


def _set_policy(policy: int) -> None:
    with suppress(OSError):  # a container may forbid it
        os.sched_setscheduler(0, policy, os.sched_param(0))


@contextmanager
def followed_threads(groups_of: Callable[[int], Groups]) -> Iterator[None]:
    """Note whose each thread is that starts until the end; `groups_of(rank)` are the groups that it may name."""
    is_open = [True]
    with replaced((threading.Thread, "start", partialmethod(_started, threading.Thread.start, groups_of, is_open))):
        try:
            yield
        finally:
            is_open.clear()
            for thread in threading.enumerate():  # one that goes on is no rank's of a later run
                vars(thread).pop("sim_rank", None)


def _started(
    thread: Any, start: Callable[[Any], None], groups_of: Callable[[int], Groups], is_open: list[bool]
) -> None:
    rank = owner(threading.current_thread())
    if rank is not None:
        set_owner(thread, rank)
        thread.run = partial(_run, thread.run, dict(groups_of(rank)), is_open)
    start(thread)


def _run(run: Callable[[], None], groups: Groups, is_open: list[bool]) -> None:
    if sys.platform == "linux" and os.sched_getscheduler(0) == os.SCHED_BATCH:
        _set_policy(os.SCHED_OTHER)
    for group, name in groups.items():
        register_process_group(name, group)
    try:
        run()
    finally:
        for name in groups.values() if is_open else ():  # later, these would be names of the process's own groups
            unregister_process_group(name)
