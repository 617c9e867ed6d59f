"""Memory tracker of one rank: every storage from its allocation to its release.

    allocated    an unknown storage is in the result of an operator
    first read   ... or among its arguments: made before the launch, or outside the dispatcher (from_numpy)
    resized      `untyped_storage().resize_` (FSDP2 frees and restores memory so), `resize_`, `out=`: one allocation
                 ends, another begins
    released     the last tensor, graph or C++ object that held it is gone (storages.py)

Views share a storage and in-place operators keep it, so they add nothing. A storage made by one rank and read by
another (ranks share closures here) counts for its maker alone; one made before the launch counts for every rank that
reads it, as every process would have a copy. Categories of allocations: categories.py.

Cost: benchmarks/clock_overhead.py. Simplified: temporary memory of an operator (a kernel's workspace) is not seen;
tensors in reference cycles live until Python's collector runs, as in any program.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lablib.operators.op import tensors_in
from lablib.record.allocations import Allocations
from lablib.record.memory import Memory
from lablib.record.passes import Passes, allocations_with_phases
from lablib.record.phase_path import split
from lablib.sim.lines import Lines
from lablib.sim.memory.allocation_log import AllocationLog
from lablib.sim.memory.categories import ACTIVATION, COMMUNICATION, OTHER, Categories
from lablib.sim.memory.storages import TrackedStorage, inner
from lablib.sim.operators.op_traits import OpTraits
from lablib.sim.ranks.program_position import ProgramPosition
from lablib.torch_compat import graph_task_id, storage_id

if TYPE_CHECKING:
    from lablib.sim.ranks.rank import Rank

_storage_of = Tensor.untyped_storage


class MemoryTrackers:
    """State shared by the trackers of one run.

    Attributes:
        labels: (op, path of phases, line) -> number.
        makers: address of a storage -> the tracker of the rank that allocated it, while it lives.
    """

    def __init__(self) -> None:
        self.lines = Lines()
        self.labels: dict[tuple[str, str, str], int] = {}
        self.makers: dict[int, MemoryTracker] = {}

    def close(self, ranks: Sequence[Rank]) -> None:
        """Close all trackers when the run ends."""
        for rank in ranks:
            if rank.memory_tracker is not None:
                rank.memory_tracker.close()
        self.makers.clear()

    def memory(
        self,
        ranks: Sequence[Rank],
        passes: Mapping[int, Passes],
        num_ranks: int,
        simulated: tuple[int, ...] | None = None,
    ) -> Memory:
        """Memory of these ranks, until now or until their end; `passes` gives phases that the program did not name."""
        labels = [(name, split(path)[0], line) for name, path, line in self.labels]
        parts = [rank.memory_tracker.log.allocations(labels) for rank in ranks if rank.memory_tracker is not None]
        blocks = Allocations.joined(parts).with_labels_once()
        return Memory(allocations_with_phases(blocks, passes), num_ranks, simulated)


class MemoryTracker:
    """The storages of one rank."""

    def __init__(self, rank: Rank, trackers: MemoryTrackers, position: ProgramPosition):
        self._rank = rank
        self._trackers = trackers
        self._position = position
        self._live: dict[int, TrackedStorage] = {}
        self.log = AllocationLog(rank)
        self.categories = Categories(self._live, self.log.category)
        self._on_death = self._died

    # ---- queries of a program ----

    def allocated_bytes(self) -> int:
        """Bytes that the rank holds now."""
        return self.log.held_bytes

    def peak_bytes(self) -> int:
        """Maximum of the allocated bytes since the start, or since `reset_peak`."""
        return self.log.peak_bytes

    def reset_peak(self) -> None:
        """Reset the peak to the bytes held now."""
        self.log.peak_bytes = self.log.held_bytes

    # ---- events from clock and process groups ----

    def saw(self, traits: OpTraits, args: tuple, kwargs: dict, out: Any) -> None:
        """Process an operator that ran: its arguments, and new storages in its result."""
        live, categories, requires_grad = self._live, self.categories, False
        perhaps_gradient = traits.gives_gradient and self._position.graph_task != -1
        tells = perhaps_gradient or traits.resizes or traits.is_collective
        given: Iterable[Any] = args if not (kwargs or traits.takes_lists) else tensors_in((*args, *kwargs.values()))
        if traits.is_view:
            given = args[:1]
        for tensor in given:
            kind = type(tensor)
            if kind is not Tensor and not isinstance(tensor, Tensor):
                continue
            try:
                tracked = live.get(storage_id(_storage_of(tensor)))
            except (NotImplementedError, RuntimeError):  # sparse: its parts have storages
                self._meet_parts(tensor, traits.name)
                continue
            if tracked is None and (tracked := self._meet(tensor, traits.first_name)) is None:
                continue
            is_plain = kind is Tensor and not categories.is_stepping
            if tensor.requires_grad:
                requires_grad = True
                if not is_plain or categories.of[tracked.allocation] == OTHER:
                    categories.read(tensor, tracked)
            elif not is_plain:
                categories.read(tensor, tracked)
            if tells:
                self._learn(traits, tensor, tracked)
        if traits.allocates:
            self._note(traits, out, requires_grad)

    def communicates(self, tensors: Iterable[Tensor]) -> None:
        """Process the tensors that a communication sends or fills."""
        of, position = self.categories.of, self._position
        position.found, position.graph_task = None, graph_task_id()  # position.moves(), inlined
        for tensor in tensors:
            tracked = self._live.get(storage_id(_storage_of(tensor))) or self._meet(tensor, "")
            if tracked is not None and of[tracked.allocation] == OTHER:
                of[tracked.allocation] = COMMUNICATION

    def uses(self, tensors: Iterable[Tensor]) -> None:
        """Register the arguments of an operator on tensors of several parts (DTensor), which may be parameters."""
        self._position.graph_task = graph_task_id()
        for tensor in tensors:
            if type(tensor) is not Tensor:
                self._meet_parts(tensor, "")
                self.categories.know_parameter(tensor)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """End the allocation of a storage that has changed its size, and begin another of the same category."""
        tracked = self._live.get(storage_id(storage))
        if tracked is None:
            return
        size, allocation = storage.nbytes(), tracked.allocation
        if size == self.log.size_bytes(allocation):
            return
        self.log.end(allocation)
        if size:
            self._position.moves()
            tracked.allocation = self.log.begin(size, self.log.category[allocation], self._label("resize_"))

    def leave(self) -> None:
        """End the log with the rank. Its storages stay tracked, so that other ranks recognise them as this rank's."""
        self.categories.close()
        self.log.leave()

    def close(self) -> None:
        """Stop tracking when the run ends."""
        self._live.clear()

    # ---- storages in arguments and results ----

    def _meet(self, tensor: Tensor, name: str) -> TrackedStorage | None:
        """Begin to track an unknown storage, unless another rank made it."""
        storage = _storage_of(tensor)
        if storage_id(storage) in self._trackers.makers:
            return None
        return self._begin(storage, OTHER, name)

    def _meet_parts(self, tensor: Tensor, name: str) -> None:
        for part in inner(tensor):
            if storage_id(_storage_of(part)) not in self._live:
                self._meet(part, name)

    def _learn(self, traits: OpTraits, tensor: Tensor, tracked: TrackedStorage) -> None:
        if traits.is_collective and self.categories.of[tracked.allocation] == OTHER:
            self.categories.of[tracked.allocation] = COMMUNICATION
        if traits.resizes:
            self.resized(_storage_of(tensor))
        if traits.gives_gradient and self._position.graph_task != -1:
            self.categories.perhaps_gradient(tensor, tracked)

    def _note(self, traits: OpTraits, out: Any, requires_grad: bool) -> None:
        """Begin an allocation for each new storage in an operator's result."""
        live, makers = self._live, self._trackers.makers
        for tensor in (out,) if type(out) is Tensor else tensors_in((out,)):
            try:
                storage = _storage_of(tensor)
            except (NotImplementedError, RuntimeError):
                self._meet_parts(tensor, traits.name)
                continue
            if type(tensor) is not Tensor and hasattr(type(tensor), "__tensor_flatten__"):
                # An unfinished result of a functional collective: its wrapper has a size, but no memory.
                self._meet_parts(tensor, traits.name)
                continue
            key = storage_id(storage)
            if key in live or key in makers:
                continue
            is_recorded = requires_grad and self._position.is_forward()
            kind = COMMUNICATION if traits.is_collective else ACTIVATION if is_recorded else OTHER
            tracked = self._begin(storage, kind, traits.name)
            if tracked is None:
                continue
            makers[key] = self
            if self.categories.is_stepping and not is_recorded:
                self.categories.made(tracked)
            if traits.gives_gradient and self._position.graph_task != -1:
                self.categories.perhaps_gradient(tensor, tracked)

    # ---- begin and end of allocations ----

    def _begin(self, storage: torch.UntypedStorage, category: int, name: str) -> TrackedStorage | None:
        size, counts = storage.nbytes(), self._rank.counts
        if not size or (counts is not None and not counts(storage)):
            return None
        tracked = TrackedStorage(storage, self._on_death)
        tracked.key = storage_id(storage)
        tracked.allocation = self.log.begin(size, category, self._label(name))
        self._live[tracked.key] = tracked
        return tracked

    def _label(self, name: str) -> int:
        labels = self._trackers.labels
        return labels.setdefault((name, *self._position.now()), len(labels))

    def _died(self, tracked: TrackedStorage) -> None:
        if self._live.pop(tracked.key, None) is not None:
            self._trackers.makers.pop(tracked.key, None)
            self.log.end(tracked.allocation)
