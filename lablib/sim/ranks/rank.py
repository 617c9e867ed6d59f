"""The state of one simulated rank, and its swap at the beginning and end of the rank's turn.

A process has its own default process group, random generators, environment and output (lablib/process/settings lists
everything). Ranks here are threads of one process, so state that torch and Python keep once per process is swapped on
every turn (own_settings.py), or selected by thread (by_thread.py). Grad mode, autocast, dispatch modes and the number
of threads are per thread already; a rank computes with one thread.

Swapped state has the methods `put` (a turn begins) and `take` (it ends). Script mode adds more (lablib/script/run.py).
"""

import io
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TextIO

import torch

from lablib.engine.rank_clock import RankClock
from lablib.phases import HOST_WORK
from lablib.process.rank_state import compute_with_one_thread, seed_rank
from lablib.process.settings.torch_modules import World
from lablib.process.torchrun import worker_environment
from lablib.record.passes import UNNAMED, Passes
from lablib.record.phase_path import split, within
from lablib.record.timeline import WAIT
from lablib.run import COMPUTE, Span
from lablib.sim.communication.pending import Pending
from lablib.torch_compat import graph_task_id

if TYPE_CHECKING:
    from lablib.sim.communication.in_flight import InFlight
    from lablib.sim.communication.work import IssuedWork, SimWork
    from lablib.sim.memory.memory_tracker import MemoryTracker
    from lablib.sim.source import ProgramLine


class PerRankState(Protocol):
    """Per-process state: `put` it in place when the rank's turn begins, `take` it away when it ends."""

    def put(self) -> None: ...

    def take(self) -> None: ...


class Rank(RankClock):
    """One simulated rank: its clock, and the state of its process.

    Attributes:
        stream: the current stream: compute, except in callbacks of a future (future.py).
        host_s: time reached by the host, which launches kernels ahead of the streams (`Device.launch_s`).
        callbacks_s: time reached by the stream of callbacks.
        is_on_side_stream: whether the current stream is one of the program's own streams (streams.py).
        is_priced: whether the current operator runs on the device; work of the host takes no virtual time.
        spans: tuples in the order of `Span`'s fields, with the path of phases as the phase.
        phases: path to each open `record_function` block (lablib/record/phase_path.py), outermost first.
        host_bandwidths: for each open block, bytes per second of the host's own work; None: it is free.
        per_rank_state: state swapped with the rank's turn, each with `put()` and `take()`.
        begins_with: settings (lablib/process/settings) that differ from the process at the start: state by name.
        memory_tracker: its storages, while it runs with a clock (memory_tracker.py).
        counts: selects the storages that the memory tracker counts; None: all. (Host memory is not the device's.)
        world: torch's registry of its process groups.
        pending: unfinished results with a future that the program holds.
        unwaited: communications issued on this rank and not waited for, in that order.
        in_flight: their tensors, while it runs with a clock (in_flight.py).
        chosen_kernels: settings of cuDNN that were on at its end (kernel_choices.py).
        memory_fraction: share of its device that it may use (`torch.cuda.set_per_process_memory_fraction`).
        overlaps: calls with an invalid overlap of output and input: name, valid overlap, line of the program.
    """

    def __init__(
        self, rank: int, num_ranks: int, local_rank: int, local_size: int, node: int = 0, is_traced: bool = True
    ):
        super().__init__(rank)
        self.stream = COMPUTE
        self.host_s = 0.0
        self.callbacks_s = 0.0
        self.is_traced = is_traced
        self.is_on_side_stream = False
        self.is_priced = True
        self.spans: list[tuple] = []
        self.phases: list[str] = []
        self.host_bandwidths: list[float | None] = []
        self.pending = Pending()
        self.unwaited: dict[IssuedWork, SimWork] = {}
        self.in_flight: InFlight | None = None
        self.overlaps: list[tuple[str, str, ProgramLine]] = []
        self.chosen_kernels: tuple[str, ...] = ()
        self.memory_fraction = 1.0
        self.memory_tracker: MemoryTracker | None = None
        self.counts: Callable[[torch.UntypedStorage], bool] | None = None
        self.stdout = io.StringIO()
        self.stderr: TextIO = sys.stderr
        self.value: Any = None
        self.world = World()
        self.begins_with: dict[str, Any] = {"process groups": (self.world,)}
        self._has_begun = False
        self.environ = dict(os.environ._data)  # type: ignore[attr-defined]
        per_node = (rank - local_rank) // node if node else local_size
        torchrun = worker_environment(
            *(rank, num_ranks, local_rank, local_size, node, -(-num_ranks // per_node)),
            port=29500,
            run_id="none",
            role="default",
        )
        for key, value in torchrun.items():
            self.environ[os.environ.encodekey(key)] = os.environ.encodevalue(value)  # type: ignore[attr-defined]

        self.per_rank_state: list[PerRankState] = []

    def enter(self) -> None:
        """Begin the rank's turn."""
        for state in self.per_rank_state:
            state.put()
        if not self._has_begun:
            # Set the initial state in the rank's first turn, independent of the process.
            self._has_begun = True
            seed_rank(self.rank)
            compute_with_one_thread()

    def leave(self) -> None:
        """End the rank's turn."""
        for state in self.per_rank_state:
            state.take()

    def phase(self) -> str:
        """The path of the program's named blocks, or backward, or unnamed (named at the end:
        lablib/record/passes.py).
        """
        if self.phases and self.phases[-1]:
            return self.phases[-1]
        return "backward" if graph_task_id() != -1 else UNNAMED

    def enter_block(self, label: str) -> None:
        """Open a `record_function` block. Blocks of libraries ("A.b", "A::b") do not name a phase."""
        outer = self.phases[-1] if self.phases else ""
        name, _, bandwidth = label.partition(" ")
        self.host_bandwidths.append(
            float(bandwidth) if name == HOST_WORK else self.host_bandwidths[-1] if self.host_bandwidths else None
        )
        if label.startswith("Optimizer."):
            self.phases.append(outer or "optimizer")
        else:
            self.phases.append(outer if any(mark in label for mark in (".", "::", "#")) else within(outer, label))

    def leave_block(self) -> None:
        if self.phases:
            self.phases.pop()
            self.host_bandwidths.pop()

    def compute(
        self,
        name: str,
        time_s: float,
        flops: float,
        size_bytes: float,
        phase: str | None = None,
        dtype: str = "",
        source: str = "",
        is_recompute: bool = False,
        launch_s: float = 0.0,
    ) -> None:
        """Launch for `launch_s` on the host; then the current stream, once free, works for the rest of `time_s`."""
        self.host_s += launch_s
        start_s, work_s = max(self.clock_s, self.host_s), time_s - launch_s
        self.clock_s = end_s = start_s + work_s if self.cores is None else self.cores.work(start_s, work_s)
        if self.is_traced and time_s > 0:
            phase = self.phase() if phase is None else phase
            what = (flops, size_bytes, dtype, source, is_recompute, None, 0)
            self.spans.append((self.rank, self.stream, name, phase, start_s, end_s, *what))

    def join(self, end_s: float) -> None:
        """Make the current stream wait until `end_s`."""
        self.clock_s = max(self.clock_s, end_s)

    def host_waits(self) -> None:
        """Make the host wait for the current stream (`item`, a barrier): it launches nothing earlier."""
        self.host_s = max(self.host_s, self.clock_s)

    def communicate(
        self,
        stream: str,
        name: str,
        phase: str,
        start_s: float,
        end_s: float,
        size_bytes: float,
        source: Any,
        transfer_id: int | None,
        place: int,
    ) -> None:
        """Record a communication, or a wait for one, on a stream from `start_s` to `end_s`."""
        if self.is_traced and (start_s < end_s or not stream.startswith(WAIT)):
            what = (0.0, size_bytes, "", source, False, transfer_id, place)
            self.spans.append((self.rank, stream, name, phase, start_s, end_s, *what))

    def named_spans(self) -> tuple[list[Span], Passes]:
        """The spans so far with all phases named, and the passes that name them."""
        texts = {source: str(source) for source in {span[9] for span in self.spans}}  # each line is formatted once
        parts = {path: split(path) for path in {span[3] for span in self.spans}}
        passes = Passes([(span[4], parts[span[3]][0]) for span in self.spans if span[1] == COMPUTE])
        phases = passes.phases([parts[span[3]][0] for span in self.spans], [span[4] for span in self.spans])
        spans = [
            Span(
                *(rank, stream, name, phase, start_s, end_s, flops, size_bytes, dtype, texts[source], *others),
                outer_phases=parts[path][1],
            )
            for phase, (rank, stream, name, path, start_s, end_s, flops, size_bytes, dtype, source, *others) in zip(
                phases, self.spans, strict=True
            )
        ]
        return spans, passes
