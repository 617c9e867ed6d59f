"""State of this process and functions of torch that a run changes, and gives back afterwards."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.distributed.algorithms.join import Join

from lablib.errors import LaunchError
from lablib.hardware.device import Device
from lablib.process import settings as process_settings
from lablib.sim.communication.agreement import ensure_one_dtype
from lablib.sim.communication.process_group import SimProcessGroup
from lablib.sim.communication.torch_functions import (
    monitored_barrier,
    notify_join_context,
    verify_params_across_processes,
)
from lablib.sim.operators.profilers import one_profile_at_a_time
from lablib.sim.ranks.ending import RunEnded
from lablib.sim.ranks.own_settings import WORLD
from lablib.sim.ranks.rank import Rank
from lablib.sim.ranks.signals import own_signal_handlers
from lablib.sim.ranks.threads import followed_threads
from lablib.sim.replaced import replaced
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
