"""What one simulated rank has for itself, and how it is put in place when the rank's turn begins.

A process has its own default process group, its own random generators, its own environment, its own output
(lablib/process/settings lists it all). Ranks here are threads of one process, so what torch and Python keep once for
the process is swapped on every turn (own_settings.py), or answers by thread (by_thread.py). Grad mode, autocast,
dispatch modes and the number of threads are per thread already; a rank computes with one thread.

What is swapped is a *belonging* of the rank, with `put` (its turn begins) and `take` (it ends). A script's rank has
more of them (lablib/script/run.py).
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
    from lablib.sim.communication.work import Issued, SimWork
    from lablib.sim.memory.memory_tracker import MemoryTracker
    from lablib.sim.source import Source


class PerRankState(Protocol):
    """Something that a process would have for itself: `put` it in place when the rank's turn begins, `take` it away."""

    def put(self) -> None: ...

    def take(self) -> None: ...


class Rank(RankClock):
    """One simulated rank: its clock, and what its process would have.

    Attributes:
        stream: the name of that stream: compute, but in what is chained to a future (future.py).
        host_s: how far the host has come, which launches kernels ahead of the streams (`Device.launch_s`).
        callbacks_s: how far the stream of such callbacks has come.
        is_on_side_stream: whether that is one of the program's own CUDA streams (lablib/script/streams.py).
        is_priced: whether the operator that just ran was the device's work; the host's takes no virtual time.
        spans: what it did, as tuples in the order of `Span`'s fields; the path of phases stands for the phase.
        phases: of each `record_function` block it is in, the path to it (lablib/record/phase_path.py), outermost first.
        host_bandwidths: for each of these the bytes a second at which the host's own work is priced; None: it is free.
        belongings: what is swapped with the rank's turn, each with `put()` and `take()`.
        begins_with: settings (lablib/process/settings) that the rank does not take over from the process: the state, by
        name.
        memory_tracker: what it holds, while it runs with a clock (memory_tracker.py).
        counts: which storages the memory tracker counts; None: all. (Host memory is not the device's.)
        world: torch's registry of its process groups.
        pending: results under way whose future the program holds.
        unwaited: communications that were issued on this rank and not waited for, in that order.
        in_flight: what they were given, while it runs with a clock (in_flight.py).
        overlaps: of calls whose output overlaps their input where it may not: name, where it may, line of the program.
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
        self.unwaited: dict[Issued, SimWork] = {}
        self.in_flight: InFlight | None = None
        self.overlaps: list[tuple[str, str, Source]] = []
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
        """The rank's turn begins."""
        for belonging in self.per_rank_state:
            belonging.put()
        if not self._has_begun:
            self._begin()

    def _begin(self) -> None:
        """Its first turn: what a rank starts with, whatever the process has."""
        self._has_begun = True
        seed_rank(self.rank)
        compute_with_one_thread()

    def leave(self) -> None:
        """The rank's turn ends."""
        for belonging in self.per_rank_state:
            belonging.take()

    def phase(self) -> str:
        """What the program is doing: the path of the blocks it named itself, else backward; what else it is, the end
        tells (lablib/record/passes.py)."""
        if self.phases and self.phases[-1]:
            return self.phases[-1]
        return "backward" if graph_task_id() != -1 else UNNAMED

    def enter_block(self, label: str) -> None:
        """A `record_function` block opens. Blocks that libraries open ("A.b", "A::b") are not the program's words."""
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
        """The host launches for `launch_s`; then, once free, the current stream works for the rest of `time_s`."""
        self.host_s += launch_s
        start_s, work_s = max(self.clock_s, self.host_s), time_s - launch_s
        self.clock_s = end_s = start_s + work_s if self.cores is None else self.cores.work(start_s, work_s)
        if self.is_traced and time_s > 0:
            phase = self.phase() if phase is None else phase
            what = (flops, size_bytes, dtype, source, is_recompute, None, 0)
            self.spans.append((self.rank, self.stream, name, phase, start_s, end_s, *what))

    def join(self, end_s: float) -> None:
        """The current stream waits for something that ends at `end_s`."""
        self.clock_s = max(self.clock_s, end_s)

    def host_waits(self) -> None:
        """The host waits for the current stream (`item`, a barrier): it launches nothing earlier."""
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
        """A stream was busy with a communication from `start_s` to `end_s`, or waited for one."""
        if self.is_traced and (start_s < end_s or not stream.startswith(WAIT)):
            what = (0.0, size_bytes, "", source, False, transfer_id, place)
            self.spans.append((self.rank, stream, name, phase, start_s, end_s, *what))

    def named_spans(self) -> tuple[list[Span], Passes]:
        """What it did so far, with the phase of what the program did not name, and the passes that tell it."""
        texts = {source: str(source) for source in {span[9] for span in self.spans}}  # a line is put into words once
        parts = {path: split(path) for path in {span[3] for span in self.spans}}
        passes = Passes((span[4], parts[span[3]][0]) for span in self.spans if span[1] == COMPUTE)
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
