"""Run one program on a simulated cluster: build the ranks, run them in turns, collect the results.

ranks         one thread each (turns.py), with the state of a process (rank.py)
groups        shared state (engine/group.py) behind a torch.distributed backend named "sim" (process_group.py)
time          compute from the dispatched operators (clock.py), communication from the cost model (lablib/cost)
"""

import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from itertools import dropwhile
from typing import Any, NoReturn, Protocol

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.distributed.algorithms.join import Join

from lablib.cost import GroupNetwork
from lablib.engine.conditions import Conditions
from lablib.engine.cores import Cores
from lablib.engine.events import Events
from lablib.engine.group import WHOSE_RANKS, Group
from lablib.engine.network import Network
from lablib.engine.scheduler import Scheduler
from lablib.errors import (
    DeadlockError,
    FaultError,
    LaunchError,
    LaunchTimeoutError,
    NotOnNcclWarning,
    OverlapWarning,
    RankError,
    ReadInFlightWarning,
    UnwaitedWarning,
    Wait,
    WriteInFlightWarning,
)
from lablib.faults import Fault
from lablib.hardware.cluster import Cluster
from lablib.hardware.device import FREE, Device
from lablib.launch_checks import check_value
from lablib.operators.pricer import Pricer
from lablib.process import settings as process_settings
from lablib.process.lifetime import ends_well
from lablib.process.missing_cuda import note_missing_cuda
from lablib.process.thread_frames import thread_frames
from lablib.record.passes import with_phases
from lablib.record.rank_text import short_ranks
from lablib.run import Run, Span, Timeline, Traffic, Transfer
from lablib.sim.communication.ddp_check import verify_params_across_processes
from lablib.sim.communication.delivery import follow
from lablib.sim.communication.group_labels import GroupLabels
from lablib.sim.communication.group_orders import GroupOrders
from lablib.sim.communication.named_backends import named_backends
from lablib.sim.communication.nccl_limits import NcclLimits
from lablib.sim.communication.process_group import (
    SimProcessGroup,
    ensure_one_dtype,
    monitored_barrier,
    notify_join_context,
)
from lablib.sim.communication.store import SimStore, stores_of_the_program
from lablib.sim.communication.unwaited import overlap_notes, read_notes, unwaited_notes, written_notes
from lablib.sim.faults.inject import Faults
from lablib.sim.memory.collector import no_collections, older_objects_set_aside
from lablib.sim.memory.memory_tracker import MemoryTrackers
from lablib.sim.memory.storages import heard_changes
from lablib.sim.notebook import Notebook
from lablib.sim.operators.clock import Clock, call
from lablib.sim.operators.compiled import Compiled
from lablib.sim.operators.meta_kernels import Answer, MetaKernels
from lablib.sim.operators.profilers import one_profile_at_a_time
from lablib.sim.operators.shapes import OnMeta, torch_without_values
from lablib.sim.ranks.by_thread import own_environments, own_streams
from lablib.sim.ranks.copies import Copies
from lablib.sim.ranks.own_settings import WORLD, OwnSettings, Settings
from lablib.sim.ranks.rank import Rank
from lablib.sim.ranks.signals import own_signal_handlers
from lablib.sim.ranks.threads import followed_threads
from lablib.sim.ranks.turns import THREAD_NAME, RunEnded, Turns
from lablib.sim.ranks.watchdog import naming_what_cannot_be_ended
from lablib.sim.recorder import Recorder
from lablib.sim.replaced import replaced
from lablib.sim.source import program_frame, program_line
from lablib.text.messages import traceback_text
from lablib.text.units import plural
from lablib.torch_compat import (
    BackendPlugin,
    WorldMeta,
    backend_plugins,
    current,
    place,
    process_group_name,
    set_thread_isolation_mode,
)

_TIMEOUT = timedelta(days=1)  # required by torch; never expires, as the engine detects deadlocks
_LAUNCHERS = tuple(os.path.join(os.path.dirname(os.path.dirname(__file__)), name) for name in ("sim", "script"))
_OURS = (*_LAUNCHERS, threading.__file__)
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
        return _Simulation(fn, args, ranks, cluster, trace, fidelity, faults, simulate, environment, like).run(
            timeout_s
        )
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
        num_ranks: int,
        cluster: Cluster,
        trace: bool,
        fidelity: str,
        faults: Sequence[Fault],
        simulate: Sequence[int] | None = None,
        environment: "RankEnvironment | None" = None,
        like: str | None = None,
    ):
        # A script has no arguments to copy.
        self._program = (lambda: (fn, args)) if environment else Copies(fn, args).copy
        self._notebook = Notebook(*((len, ()) if environment else (fn, args)))
        self._cluster, self._trace = cluster, trace
        self._fidelity, self._environment = fidelity, environment
        self._like, self._nccl_notes = like, dict[str, None]()
        self._meta_answers: dict[tuple, Answer] = {}
        self._groups: dict[tuple[str, tuple[int, ...]], Group] = {}
        self._labels = GroupLabels()
        self._trackers = MemoryTrackers()
        self._compiled = Compiled()
        self._num_ranks = num_ranks
        self._simulated = None if simulate is None else tuple(sorted(simulate))
        self._ranks: list[Rank] = []
        self._faults = Faults(faults, cluster) if faults else None
        if self._faults:
            self._cluster = self._faults.cluster
        self._pricer = Pricer(self._cluster.device)
        make_rank = self._faults.rank if self._faults else Rank
        for rank in range(num_ranks) if self._simulated is None else self._simulated:
            first = cluster.node(rank) * cluster.devices_per_node
            local_size = min(cluster.devices_per_node, num_ranks - first)
            self._ranks.append(make_rank(rank, num_ranks, rank - first, local_size, cluster.node(rank), trace))
        self._by_number = {rank.rank: rank for rank in self._ranks}
        if cluster.shared_cores:
            cores: dict[int, Cores] = {}
            for number, rank in self._by_number.items():
                node = cluster.node(number)
                local_size = min(cluster.devices_per_node, num_ranks - node * cluster.devices_per_node)
                rank.cores = cores.setdefault(node, Cores(cluster.shared_cores, local_size))
        self._network = Network()
        self._scheduler = Scheduler(self._ranks, self._network)
        self._events = Events()
        self._recorder = Recorder(self._by_number, self._events)
        follow(self._events)
        self._turns = Turns(self._ranks, self._scheduler, self._error_of)
        self._group_orders = GroupOrders()
        if self._faults:
            self._faults.turns = self._turns
        self._store = SimStore(self._turns)

    def run(self, timeout_s: float | None) -> Run:
        self._began_s = time.perf_counter()
        changed_torch = torch_without_values() if self._fidelity == "shapes" else nullcontext()
        around = nullcontext()
        if self._environment is not None:
            around = self._environment.of_the_run(self._ranks, self._store, self._cluster)
        heard = heard_changes(self._resized, self._swapped)
        process = _borrowed_process(self._make_group, self._by_number)
        name_group = self._group_orders.checking(process_group_name, lambda: self._turns.current)
        with (
            replaced((*place("process_group_name"), name_group)),
            named_backends(is_rank),
            stores_of_the_program(self._store, is_rank),
            process,
            changed_torch,
            _optimizers_of(self._cluster.device) if self._environment is None else nullcontext(),
            heard,
            around,
            own_environments({rank.rank: rank.environ for rank in self._ranks}),
            own_streams(self._ranks),
            self._compiled.eagerly(),
            older_objects_set_aside(),
            Settings().watched() as settings,
        ):
            for rank in self._ranks:
                rank.per_rank_state.append(OwnSettings(settings, rank.begins_with))
            error: BaseException | None = None
            try:
                with naming_what_cannot_be_ended(timeout_s):
                    in_time = self._turns.run(self._body, _as_launch_error, timeout_s)
                if not in_time:
                    error = self._timeout(timeout_s or 0.0)
            except BaseException as interrupt:  # noqa: B036 - KeyboardInterrupt: no rank outlives the call
                error = interrupt
                if isinstance(interrupt, KeyboardInterrupt):
                    interrupt.add_note(self._where())
            with _no_interrupts():
                stuck = self._turns.end()
                self._trackers.close(self._ranks)
            for rank in stuck:
                text = f"rank {rank} is in a long call outside Python; its thread ends when that call returns."
                (error or self._turns.error or RuntimeError()).add_note(text)
        error = error or self._turns.error
        notes = self._faults.end() if self._faults else []
        if error is not None:
            raise error
        for note in notes:
            warnings.warn(note, stacklevel=4)
        unwaited = unwaited_notes(self._ranks)
        for note in unwaited:
            warnings.warn(note, UnwaitedWarning, stacklevel=4)
        written = written_notes(self._ranks)
        for note in written:
            warnings.warn(note, WriteInFlightWarning, stacklevel=4)
        read = read_notes(self._ranks)
        for note in read:
            warnings.warn(note, ReadInFlightWarning, stacklevel=4)
        overlaps = overlap_notes(self._ranks)
        for note in overlaps:
            warnings.warn(note, OverlapWarning, stacklevel=4)
        for note in self._nccl_notes:
            warnings.warn(note, NotOnNcclWarning, stacklevel=4)
        by_luck = [*unwaited, *written, *read, *overlaps, *self._nccl_notes]
        return self._result([*notes, *by_luck, *self._compiled.notes(), *self._notebook.notes()])

    def _error_of(self, headline: str, waits: Sequence[Wait]) -> LaunchError:
        """The error for a run in which no rank can go on. Called while all ranks wait."""
        if cause := self._group_orders.cause_of_deadlock():
            headline = f"{headline} {cause}"
        elif len(self._groups) > 1 and any(group.has_unmet_messages for group in self._groups.values()):
            headline = f"{headline} {WHOSE_RANKS}"
        if self._faults is None:
            return DeadlockError(headline, waits)
        error = self._faults.error_of(headline, waits)
        if isinstance(error, FaultError):
            end_s = max(
                [rank.clock_s for rank in self._ranks] + [span[5] for rank in self._ranks for span in rank.spans]
            )
            error.run = self._result(
                self._faults.notes(),
                *self._faults.unfinished(self._groups.values(), end_s, len(self._recorder.transfers)),
            )
        return error

    @no_collections()
    def _result(self, notes: list[str], open_spans: Sequence[Span] = (), unfinished: Sequence[Transfer] = ()) -> Run:
        """The result of the run; for one that a fault ended, with the unfinished communication."""
        spans: list[Span] = []
        passes = {}
        for rank in self._ranks:
            of_rank, passes[rank.rank] = rank.named_spans()
            spans += of_rank
        if open_spans:
            spans = with_phases([*spans, *open_spans])
        transfers = [*self._recorder.transfers, *unfinished]
        memory = self._trackers.memory(self._ranks, passes, self._num_ranks, self._simulated)
        every_rank = range(self._num_ranks)
        if self._simulated is not None:
            notes = [_phantoms(len(self._simulated), self._num_ranks), *notes]
        return Run(
            values=[self._by_number[rank].value if rank in self._by_number else None for rank in every_rank],
            timeline=Timeline.of(
                spans, self._num_ranks, self._faults.deaths() if self._faults else (), self._simulated
            ),
            traffic=Traffic(tuple(sorted(transfers, key=lambda t: (t.start_s, t.ranks)))),
            stdout=[self._by_number[rank].stdout.getvalue() if rank in self._by_number else "" for rank in every_rank],
            backend="sim",
            cluster=self._cluster.name,
            wall_s=time.perf_counter() - self._began_s,
            notes=(*notes, *memory.notes(self._cluster.device)),
            memory=memory,
            device=self._cluster.device,
            fidelity=self._fidelity,
        )

    def _body(self, number: int) -> None:
        rank = self._by_number[number]
        with torch.autograd.set_multithreading_enabled(False):
            if self._environment is None:
                dist.init_process_group(
                    "sim",
                    rank=number,
                    world_size=self._num_ranks,
                    store=self._store.of_another_rank(),
                    timeout=_TIMEOUT,
                )
            try:
                fn, args = self._program()
                environment, on_meta, clock = self._modes(rank)
                with environment, on_meta, clock, self._faults.begin(rank) if self._faults else nullcontext():
                    try:
                        rank.value = _returned(fn, args)
                    except Exception as error:
                        if self._environment is None:
                            note_missing_cuda(error, 'device="cuda"')
                        raise
            finally:
                # A thread that could not be ended in time must not touch the process's own world.
                if not self._turns.is_closed and dist.is_initialized():
                    dist.destroy_process_group()

    def _modes(self, rank: Rank) -> tuple[AbstractContextManager, AbstractContextManager, AbstractContextManager]:
        """The script's patches, the meta device, and the clock of this rank's operators.

        Not an `ExitStack`: from Python 3.12 on it reads attributes of the exception, which may raise.
        """
        environment = nullcontext() if self._environment is None else self._environment.of_a_rank(rank)
        is_shapes = self._fidelity == "shapes"
        run = MetaKernels(self._meta_answers).run if is_shapes else call
        pricer, trackers = (self._pricer, self._trackers) if self._trace else (Pricer(FREE), None)
        clock = Clock(rank, pricer, run, trackers) if self._trace or is_shapes else nullcontext()
        return environment, OnMeta() if is_shapes else nullcontext(), clock

    def _resized(self, storage: torch.UntypedStorage) -> None:
        tracker = self._by_number[self._turns.current].memory_tracker
        if tracker is not None and is_rank():
            tracker.resized(storage)

    def _swapped(self, *tensors: torch.Tensor) -> None:
        """Called when the current rank swaps tensors, which other ranks may also hold."""
        for rank in self._ranks if is_rank() else ():
            if rank.memory_tracker is not None:
                rank.memory_tracker.categories.forget(*tensors)

    def _make_group(self, options: Any, _: Any) -> SimProcessGroup:
        """Make one rank's end of a group for torch; the ends of one group share a `Group`."""
        number = self._turns.current
        members = tuple(options.global_ranks_in_group) or tuple(range(self._num_ranks))
        key = (str(options.group_id), members)
        if key not in self._groups:
            clocks = {rank: self._by_number[rank] for rank in members if rank in self._by_number}
            name = short_ranks(members) if options.global_ranks_in_group else "world"
            self._groups[key] = Group(
                label=self._labels.take(clocks, name),
                clocks=clocks,
                network=GroupNetwork(self._cluster, members),
                wires=self._network,
                scheduler=self._scheduler,
                events=self._events,
                conditions=self._faults or Conditions(),
            )
        group = SimProcessGroup(
            self._groups[key],
            options.group_rank,
            self._by_number[number],
            self._turns,
            str(options.group_id),
            self._labels,
        )
        if self._like == "nccl":  # with a device, as in the workers of lablib/real
            group.limit_to_nccl(NcclLimits(), True, lambda note: self._nccl_notes.setdefault(note))
        return group

    def _timeout(self, timeout_s: float) -> LaunchTimeoutError:
        return LaunchTimeoutError(
            f"the program was still running after timeout_s={timeout_s:g} s of real time: {self._where()}"
        )

    def _where(self) -> str:
        """The running rank, and its last lines in the program."""
        number, thread = self._turns.running_rank()
        frame = thread_frames().get(thread or 0)
        where = f"rank {number} was at {program_line(frame)}" if frame else f"rank {number} was running"
        frames = _programs(traceback.extract_stack(program_frame(frame) or frame), _OURS) if frame else []
        return where + "\n" + "".join(traceback.format_list(frames[-3:]))


def _phantoms(num_simulated: int, num_ranks: int) -> str:
    return (
        f"{num_simulated:,} of {plural(num_ranks, 'ranks')} were simulated; the others were taken to do what those of "
        f"their groups did, at the same time, and have no spans, memory or values"
    )


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


def _as_launch_error(rank: int, error: BaseException) -> BaseException:
    if issubclass(type(error), LaunchError):
        return error
    wrapped = RankError(rank, error, traceback_text(error, _programs) + "\n")
    wrapped.__cause__ = error
    return wrapped


def _programs(stack: traceback.StackSummary, left_out: str | tuple[str, ...] = _LAUNCHERS[1]) -> traceback.StackSummary:
    """A stack without the frames of the simulator beneath the program.

    A script's calls of torch also pass through functions that emulate a device (lablib/script); these are left out too.
    """
    above = dropwhile(lambda frame: frame.filename.startswith(_OURS), stack)
    return traceback.StackSummary.from_list([f for f in above if not f.filename.startswith(left_out)])


def _optimizers_of(device: Device) -> AbstractContextManager[None]:
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
def _borrowed_process(make_group: Callable[[Any, Any], SimProcessGroup], ranks: Mapping[int, Rank]):
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


@contextmanager
def _no_interrupts():
    """Ignore interrupts while the ranks are ended, so that a second one leaves none behind."""
    if threading.current_thread() is not threading.main_thread():
        yield  # interrupts reach the main thread only
        return
    handler = signal.signal(signal.SIGINT, lambda signum, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
