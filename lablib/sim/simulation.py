"""Run one program on a simulated cluster: the ranks take turns, each with the state of a process.

ranks         one thread each (turns.py), with the state of a process (rank.py)
groups        shared state (engine/group.py) behind a torch.distributed backend named "sim" (process_group.py)
time          compute from the dispatched operators (clock.py), communication from the cost model (lablib/cost)

build.py makes the parts, report.py the result.
"""

import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from lablib.errors import LaunchError, LaunchTimeoutError
from lablib.faults import Fault
from lablib.hardware.cluster import Cluster
from lablib.hardware.device import FREE
from lablib.launch_checks import check_value
from lablib.operators.pricer import Pricer
from lablib.process.interrupts import kept_interrupts
from lablib.process.lifetime import ends_well
from lablib.process.missing_cuda import note_missing_cuda
from lablib.process.replaced import replaced
from lablib.run import Run
from lablib.sim.borrowed_process import borrowed_process, no_interrupts, optimizers_of
from lablib.sim.build import Parts
from lablib.sim.communication.named_backends import named_backends
from lablib.sim.communication.store import SimStore, stores_of_the_program
from lablib.sim.memory.collector import older_objects_set_aside
from lablib.sim.memory.storages import heard_changes
from lablib.sim.notebook import Notebook
from lablib.sim.operators.clock import Clock, call
from lablib.sim.operators.compiled import Compiled
from lablib.sim.operators.gpu_kernels import kernels_of
from lablib.sim.operators.kernel_choices import chosen_kernels, kernel_choice_notes
from lablib.sim.operators.meta_kernels import Answer, MetaKernels
from lablib.sim.operators.shapes import OnMeta, torch_without_values
from lablib.sim.ranks.by_thread import own_environments, own_streams
from lablib.sim.ranks.copies import Copies
from lablib.sim.ranks.ending import THREAD_NAME
from lablib.sim.ranks.own_settings import OwnSettings, Settings
from lablib.sim.ranks.rank import Rank
from lablib.sim.ranks.streams import Stream, Streams, set_streams, torch_cpu_streams
from lablib.sim.ranks.watchdog import naming_what_cannot_be_ended
from lablib.sim.report import as_launch_error, result_of, waits_of_others, warn_of_findings, where_it_is
from lablib.torch_compat import place, process_group_name

_TIMEOUT = timedelta(days=1)  # required by torch; never expires, as the engine detects deadlocks
_ONE_AT_A_TIME = threading.Lock()  # a run changes process-wide state (lablib/process/settings)


def run_sim(
    fn: Callable[..., Any],
    args: Sequence[Any],
    *,
    ranks: int,
    cluster: Cluster,
    timeout_s: float | None = None,
    trace: bool = True,
    fidelity: str = "values",
    faults: Sequence[Fault] = (),
    simulate: Sequence[int] | None = None,
    environment: "RankEnvironment | None" = None,
    like: str | None = None,
) -> Run:
    """Run `fn(*args)` on every rank of a simulated cluster, or on the ranks of `simulate`.

    With `environment` (script mode) the program initializes its process group itself. With `like="nccl"` groups reject
    calls that NCCL rejects.

    Raises:
        RankError: an exception on one rank; its cause is the original.
        DeadlockError, CollectiveMismatchError: the ranks cannot go on.
        FaultError: one of `faults` ended the run.
        LaunchTimeoutError: still running after `timeout_s` seconds of real time.
        LaunchError: called from inside a rank, or while another simulation runs.
    """
    if not _ONE_AT_A_TIME.acquire(blocking=False):
        raise LaunchError(
            "one simulation runs at a time in a process: a launch is under way in another thread; wait for its end."
        )
    try:
        parts = Parts(ranks, cluster, trace, fidelity, faults, simulate, like)
        return _Simulation(fn, args, parts, trace, environment).run(timeout_s)
    finally:
        _ONE_AT_A_TIME.release()


def is_rank() -> bool:
    """Whether the caller is a rank of a simulation."""
    return threading.current_thread().name.startswith(THREAD_NAME)


class RankEnvironment(Protocol):
    """The environment of a program that is a whole script (lablib/script), not a function."""

    def of_the_run(self, ranks: list[Rank], store: SimStore, cluster: Cluster) -> AbstractContextManager[Any]:
        """Context of the whole run: entered before the first rank's turn, left after the last."""
        ...

    def of_a_rank(self, rank: Rank) -> AbstractContextManager[Any]:
        """Context of one rank: entered in its thread, beneath the clock."""
        ...


class _Simulation:
    def __init__(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        parts: Parts,
        is_traced: bool,
        environment: "RankEnvironment | None",
    ):
        # A script has no arguments to copy.
        self._program = (lambda: (fn, args)) if environment else Copies(fn, args).copy
        self._notebook = Notebook(*((len, ()) if environment else (fn, args)))
        self._parts, self._is_traced, self._environment = parts, is_traced, environment
        self._pricer = Pricer(parts.cluster.device)
        self._meta_answers: dict[tuple, Answer] = {}
        self._compiled = Compiled()

    def run(self, timeout_s: float | None) -> Run:
        parts, turns = self._parts, self._parts.turns
        around = nullcontext()
        if self._environment is not None:
            around = self._environment.of_the_run(parts.ranks, parts.store, parts.cluster)
        name_group = parts.group_orders.checking(process_group_name, lambda: turns.current)
        with (
            kept_interrupts() as raise_lost_interrupt,
            replaced((*place("process_group_name"), name_group)),
            named_backends(is_rank),
            stores_of_the_program(parts.store, is_rank),
            borrowed_process(parts.make_group, parts.by_number),
            torch_without_values() if parts.fidelity == "shapes" else nullcontext(),
            optimizers_of(parts.cluster.device) if self._environment is None else nullcontext(),
            torch_cpu_streams(),
            kernels_of(parts.cluster.device),
            heard_changes(self._resized, self._swapped),
            around,
            own_environments({rank.rank: rank.environ for rank in parts.ranks}),
            own_streams(parts.ranks),
            self._compiled.eagerly(),
            older_objects_set_aside(),
            Settings().watched() as settings,
        ):
            for rank in parts.ranks:
                rank.per_rank_state.append(OwnSettings(settings, rank.begins_with))
            error: BaseException | None = None
            try:
                with naming_what_cannot_be_ended(timeout_s):
                    in_time = turns.run(self._body, as_launch_error, timeout_s, raise_lost_interrupt)
                    raise_lost_interrupt()
                if not in_time:
                    error = LaunchTimeoutError(
                        f"the program was still running after timeout_s={timeout_s or 0.0:g} s of real time: "
                        f"{where_it_is(parts)}{waits_of_others(parts)}"
                    )
            except BaseException as interrupt:  # noqa: B036 - KeyboardInterrupt: no rank outlives the call
                error = interrupt
                if isinstance(interrupt, KeyboardInterrupt):
                    interrupt.add_note(where_it_is(parts))
            with no_interrupts():
                stuck = turns.end()
                parts.trackers.close(parts.ranks)
            for rank in stuck:
                text = f"rank {rank} is in a long call outside Python; its thread ends when that call returns."
                (error or turns.error or RuntimeError()).add_note(text)
        error = error or turns.error
        notes = parts.faults.end() if parts.faults else []
        if error is not None:
            raise error
        for note in notes:
            warnings.warn(note, stacklevel=4)
        findings = warn_of_findings(parts, stacklevel=4)
        notes += [*findings, *self._compiled.notes(), *self._notebook.notes(), *kernel_choice_notes(parts.ranks)]
        return result_of(parts, notes)

    def _body(self, number: int) -> None:
        rank = self._parts.by_number[number]
        with torch.autograd.set_multithreading_enabled(False):
            if self._environment is None:
                if self._parts.cluster.device.is_gpu:
                    set_streams(Streams(rank, Stream()))
                dist.init_process_group(
                    "sim",
                    rank=number,
                    world_size=self._parts.num_ranks,
                    store=self._parts.store.of_another_rank(),
                    timeout=_TIMEOUT,
                )
            try:
                fn, args = self._program()
                on_meta, environment, clock = self._modes(rank)
                faults = self._parts.faults.begin(rank) if self._parts.faults else nullcontext()
                with on_meta, environment, clock, faults:
                    try:
                        rank.value = _returned(fn, args)
                        rank.chosen_kernels = chosen_kernels()
                    except Exception as error:
                        if self._environment is None:
                            note_missing_cuda(error, 'device="cuda"')
                        raise
            finally:
                # A thread that could not be ended in time must not touch the process's own world.
                if not self._parts.turns.is_closed and dist.is_initialized():
                    dist.destroy_process_group()

    def _modes(self, rank: Rank) -> tuple[AbstractContextManager, AbstractContextManager, AbstractContextManager]:
        """The meta device, the script's patches, and the clock of this rank's operators.

        Not an `ExitStack`: from Python 3.12 on it reads attributes of the exception, which may raise.
        """
        environment = nullcontext() if self._environment is None else self._environment.of_a_rank(rank)
        is_shapes = self._parts.fidelity == "shapes"
        run = MetaKernels(self._meta_answers).run if is_shapes else call
        pricer, trackers = (self._pricer, self._parts.trackers) if self._is_traced else (Pricer(FREE), None)
        clock = Clock(rank, pricer, run, trackers) if self._is_traced or is_shapes else nullcontext()
        # The script's devices are answered above the meta device, which they are made of.
        return OnMeta() if is_shapes else nullcontext(), environment, clock

    def _resized(self, storage: torch.UntypedStorage) -> None:
        tracker = self._parts.by_number[self._parts.turns.current].memory_tracker
        if tracker is not None and is_rank():
            tracker.resized(storage)

    def _swapped(self, *tensors: torch.Tensor) -> None:
        """Called when the current rank swaps tensors, which other ranks may also hold."""
        for rank in self._parts.ranks if is_rank() else ():
            if rank.memory_tracker is not None:
                rank.memory_tracker.categories.forget(*tensors)


def _returned(fn: Callable[..., Any], args: Sequence[Any]) -> Any:
    try:
        value = fn(*args)
    except SystemExit as end:
        # A script may end a rank with exit code 0; any other is a failure.
        if ends_well(end.code):
            return None
        raise
    check_value(value)
    return value
