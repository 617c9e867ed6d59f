"""State of this process and functions of torch that a run changes, and gives back afterwards.

Per-rank signal handlers: stored, so that a program reads back its own, and never called.

Only the main thread of a process can set one, and a simulated rank receives no signals.

One torch profiler per process: a second profile that overlaps the first would crash the process.

On real processes every rank may profile. Here a rank that begins while another profiles gets an error instead.
"""

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partialmethod
from typing import Any, NoReturn

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.autograd import profiler
from torch.distributed.algorithms.join import Join

from lablib.errors import LaunchError
from lablib.hardware.device import Device
from lablib.process import settings as process_settings
from lablib.process.interrupts import NotedInterrupts
from lablib.process.replaced import replaced
from lablib.sim.communication.agreement import ensure_one_dtype
from lablib.sim.communication.process_group import SimProcessGroup
from lablib.sim.communication.torch_functions import (
    monitored_barrier,
    notify_join_context,
    verify_params_across_processes,
)
from lablib.sim.ranks.ending import THREAD_NAME, RunEnded
from lablib.sim.ranks.own_settings import WORLD
from lablib.sim.ranks.rank import Rank
from lablib.sim.ranks.threads import followed_threads, owner
from lablib.torch_compat import BackendPlugin, WorldMeta, backend_plugins, current, place, set_thread_isolation_mode


@contextmanager
def borrowed_process(make_group: Callable[[Any, Any], SimProcessGroup], ranks: Mapping[int, Rank]) -> Iterator[None]:
    """Register the backend, isolate torch's per-thread registries, and give everything back afterwards."""
    before = process_settings.taken(process_settings.AROUND_A_RUN)
    unraisablehook = sys.unraisablehook
    # A rank that is ended inside a destructor continues: no error to print.
    sys.unraisablehook = lambda u: None if isinstance(u.exc_value, RunEnded) else unraisablehook(u)
    if "SIM" not in backend_plugins:
        dist.Backend.register_backend("sim", _no_group, extended_api=True, devices=["cpu", "cuda"])
    between_runs = backend_plugins["SIM"]
    backend_plugins["SIM"] = BackendPlugin(make_group, True)
    set_thread_isolation_mode(True)
    own_answers = replaced(
        (dist, "monitored_barrier", monitored_barrier),
        (c10d, "monitored_barrier", monitored_barrier),
        (Join, "notify_join_context", notify_join_context),
        (*place("verify_params"), verify_params_across_processes),
        (WorldMeta, "WORLD", WORLD),
        (*place("ensure_same_dtype"), ensure_one_dtype),
        # A rank seeds no device of this process; torch would store each seed, with the stack, for a later device.
        (torch.cuda, "manual_seed_all", _seed_no_device),
        (torch.xpu, "manual_seed_all", _seed_no_device),
        (torch.mtia, "manual_seed_all", _seed_no_device),
    )
    try:
        threads = followed_threads(lambda rank: ranks[rank].world.pg_names)
        with own_answers, own_signal_handlers(), threads, one_profile_at_a_time():
            yield
    finally:
        backend_plugins["SIM"] = between_runs  # torch would keep the group maker, and with it the program
        set_thread_isolation_mode(False)
        sys.unraisablehook = unraisablehook
        process_settings.give_back(before)


def _seed_no_device(seed: int) -> None:
    """`torch.manual_seed` for devices: none, as ranks compute on the CPU."""


def _no_group(*_: Any) -> NoReturn:
    """torch's backend "sim" outside of a simulation."""
    raise LaunchError('backend "sim" makes process groups inside a launch only: call launch(program, backend="sim")')


def optimizers_of(device: Device) -> AbstractContextManager[None]:
    """Let optimizers treat "meta" as torch does a GPU: lists by default (`foreach`), and `fused` allowed.

    A script's tensors report "cuda" themselves.
    """
    foreach, fused = current("foreach_optimizers")(), current("fused_optimizers")()
    of_a_gpu = ["cpu", "meta"] if device.is_gpu else []
    return replaced(
        (*place("foreach_optimizers"), lambda: [*foreach, *of_a_gpu]),
        (*place("fused_optimizers"), lambda: [*fused, "meta"]),
    )


@contextmanager
def no_interrupts() -> Iterator[None]:
    """Ignore interrupts while the ranks are ended, so that a second one leaves none behind."""
    if threading.current_thread() is not threading.main_thread():
        yield  # interrupts reach the main thread only
        return
    handler = signal.signal(signal.SIGINT, lambda signum, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def own_signal_handlers() -> AbstractContextManager[None]:
    """Make `signal.signal` and `signal.getsignal` per-rank for the time of a run."""
    set_handler, get_handler = signal.signal, signal.getsignal

    def handlers() -> dict[int, Any] | None:
        thread = threading.current_thread()
        return thread.__dict__.setdefault("signal_handlers", {}) if thread.name.startswith(THREAD_NAME) else None

    def rank_gets(number: int) -> Any:
        own = handlers()
        handler = own[number] if own and number in own else get_handler(number)
        return signal.default_int_handler if isinstance(handler, NotedInterrupts) else handler

    def rank_sets(number: int, handler: Any) -> Any:
        own = handlers()
        if own is None:
            return set_handler(number, handler)
        before, own[number] = rank_gets(number), handler
        return before

    return replaced((signal, "signal", rank_sets), (signal, "getsignal", rank_gets))


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
