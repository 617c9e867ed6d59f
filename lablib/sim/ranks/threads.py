"""Threads that a rank starts: their owner, and their access to the rank's process groups.

A simulated rank communicates from the thread that runs its program; other threads of it may compute, load and wait. If
one communicates, the run ends (turns.py), as it would do so in the turn of an arbitrary rank. The error names the
owner, which is recorded when the thread starts. The thread also gets torch's names of the rank's groups, which torch
keeps per thread in a run, so that a communication by group name fails with the same error.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial, partialmethod
from typing import Any

import torch.distributed as dist

from lablib.process.replaced import replaced
from lablib.torch_compat import register_process_group, unregister_process_group

Groups = Mapping[dist.ProcessGroup, Any]  # process group -> torch's name of it


def set_owner(thread: threading.Thread, rank: int) -> None:
    """Set the rank that owns a thread."""
    thread.sim_rank = rank  # pyright: ignore[reportAttributeAccessIssue]


def owner(thread: threading.Thread) -> int | None:
    """The rank that started a thread, directly or through other threads; None for threads of the host process."""
    return getattr(thread, "sim_rank", None)


def wait_to_be_run() -> None:
    """Schedule this rank's thread without preemption of running threads (SCHED_BATCH).

    A rank that passes its turn wakes the next one, which cannot go on before the first releases Python's interpreter
    lock, a moment later. By default Linux may run it at once, only to put it to sleep again: most of the cost of a
    turn. Threads that a rank starts keep the default policy; processes that it starts inherit this one.
    """
    if sys.platform == "linux" and os.sched_getscheduler(0) == os.SCHED_OTHER:  # keep any other policy
        _set_policy(os.SCHED_BATCH)


def _set_policy(policy: int) -> None:
    with suppress(OSError):  # a container may forbid it
        os.sched_setscheduler(0, policy, os.sched_param(0))


@contextmanager
def followed_threads(groups_of: Callable[[int], Groups]) -> Iterator[None]:
    """Record the owner of each thread that starts in this context; it may name the groups `groups_of(rank)`."""
    is_open = [True]
    with replaced((threading.Thread, "start", partialmethod(_started, threading.Thread.start, groups_of, is_open))):
        try:
            yield
        finally:
            is_open.clear()
            for thread in threading.enumerate():  # threads that go on have no owner in a later run
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
        for name in groups.values() if is_open else ():  # later these names may belong to the process
            unregister_process_group(name)
