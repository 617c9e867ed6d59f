"""What one rank holds: every storage from its allocation to its death, seen from the operators it runs.

    allocated    a storage that was not known before is in the result of an operator
    first read   ... or among its arguments: made before the launch, or where no dispatcher looks (from_numpy)
    resized      `untyped_storage().resize_` (FSDP2 frees and restores memory so), `resize_`, `out=`: one block ends,
                 another begins
    dead         the last tensor, graph or C++ object that held it has let go (storages.py)

Views share a storage and in-place operators keep it, so they add nothing. A storage made by one rank and read by
another (ranks share closures here) is counted for its maker alone; one made before the launch for every rank that reads
it, as every process would have its own. What a block is: categories.py.

Cost: benchmarks/clock_overhead.py. Simplified: memory that an operator takes and gives back while it runs (a kernel's
workspace) is not seen; tensors in reference cycles live until Python's collector runs, as in any program.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lablib.operators.op import tensors_in
from lablib.record.blocks import Blocks
from lablib.record.ledger import Memory
from lablib.record.passes import Passes, blocks_with_phases
from lablib.sim.account import Account
from lablib.sim.categories import ACTIVATION, COMMUNICATION, OTHER, Categories
from lablib.sim.facts import Facts
from lablib.sim.lines import Lines
from lablib.sim.place import Place
from lablib.sim.storages import Watch, inner
from lablib.torch_compat import graph_task_id, storage_id

if TYPE_CHECKING:
    from lablib.sim.rank import Rank

_storage_of = Tensor.untyped_storage


class Books:
    """What the ledgers of one run share.

    Attributes:
        lines: the lines of the program.
        labels: (op, phase, line) -> its number.
        makers: address of a storage -> the ledger of the rank that allocated it, while it lives.
    """

    def __init__(self) -> None:
        self.lines = Lines()
        self.labels: dict[tuple[str, str, str], int] = {}
        self.makers: dict[int, Ledger] = {}

    def close(self, ranks: Sequence[Rank]) -> None:
        """The run has ended."""
        for rank in ranks:
            if rank.ledger is not None:
                rank.ledger.close()
        self.makers.clear()

    def memory(
        self,
        ranks: Sequence[Rank],
        passes: Mapping[int, Passes],
        num_ranks: int,
        simulated: tuple[int, ...] | None = None,
    ) -> Memory:
        """What these ranks held, now or until they ended; `passes` tells the phase of what the program did not name."""
        labels = list(self.labels)
        parts = [rank.ledger.account.blocks(labels) for rank in ranks if rank.ledger is not None]
        return Memory(blocks_with_phases(Blocks.joined(parts), passes), num_ranks, simulated)


class Ledger:
    """The storages of one rank.

    Args:
        rank: whose.
        books: shared with the other ranks.
        place: where its program is.

    Attributes:
        account: its blocks.
        categories: what they are.
    """

    def __init__(self, rank: Rank, books: Books, place: Place):
        self._rank = rank
        self._books = books
        self._place = place
        self._live: dict[int, Watch] = {}
        self.account = Account(rank)
        self.categories = Categories(self._live, self.account.category)
        self._on_death = self._died

    # ---- what a program may ask ----

    def allocated_bytes(self) -> int:
        """What the rank holds now."""
        return self.account.held_bytes

    def peak_bytes(self) -> int:
        """The most it held since the start, or since `reset_peak`."""
        return self.account.peak_bytes

    def reset_peak(self) -> None:
        """Forget the peak so far: the next one is at least what is held now."""
        self.account.peak_bytes = self.account.held_bytes

    # ---- what clock and process groups tell ----

    def saw(self, facts: Facts, args: tuple, kwargs: dict, out: Any) -> None:
        """An operator ran: look at its arguments, and note what it allocated."""
        live, categories, requires_grad = self._live, self.categories, False
        tells = facts.is_collective or facts.resizes or (facts.gives_gradient and graph_task_id() != -1)
        given: Iterable[Any] = args if not (kwargs or facts.takes_lists) else tensors_in((*args, *kwargs.values()))
        for tensor in given:
            if not isinstance(tensor, Tensor):
                continue
            try:
                watch = live.get(storage_id(_storage_of(tensor)))
            except (NotImplementedError, RuntimeError):  # sparse: its parts have storages
                self._meet_parts(tensor, facts.name)
                continue
            if watch is None and (watch := self._meet(tensor, facts.first_name)) is None:
                continue
            if tensor.requires_grad:
                requires_grad = True
                categories.read(tensor, watch)
            elif categories.is_stepping or type(tensor) is not Tensor:
                categories.read(tensor, watch)
            if tells:
                self._learn(facts, tensor, watch)
        if facts.allocates:
            self._note(facts, out, requires_grad)

    def communicates(self, tensors: Iterable[Tensor]) -> None:
        """A communication sends or fills these."""
        self._place.moved()
        for tensor in tensors:
            watch = self._live.get(storage_id(_storage_of(tensor))) or self._meet(tensor, "")
            if watch is not None:
                self.categories.communicates(watch)

    def uses(self, tensors: Iterable[Tensor]) -> None:
        """An operator on tensors of several parts (DTensor) is about to run on these: they may be parameters."""
        for tensor in tensors:
            if type(tensor) is not Tensor:
                self._meet_parts(tensor, "")
                self.categories.know_parameter(tensor)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """A storage may have another size now: then one block ends, and another of its category begins."""
        watch = self._live.get(storage_id(storage))
        if watch is None:
            return
        size, block = storage.nbytes(), watch.block
        if size == self.account.size_bytes(block):
            return
        self.account.end(block)
        if size:
            self._place.moved()
            watch.block = self.account.begin(size, self.account.category[block], self._label("resize_"))

    def leave(self) -> None:
        """The rank has ended. Its storages are watched on: others must know them as its own as long as they live."""
        self.categories.close()
        self.account.leave()

    def close(self) -> None:
        """The run has ended: no callback will come."""
        self._live.clear()

    # ---- what is seen ----

    def _meet(self, tensor: Tensor, name: str) -> Watch | None:
        """A storage that nobody saw being made. Another rank's is its own."""
        storage = _storage_of(tensor)
        if storage_id(storage) in self._books.makers:
            return None
        return self._begin(storage, OTHER, name)

    def _meet_parts(self, tensor: Tensor, name: str) -> None:
        for part in inner(tensor):
            if storage_id(_storage_of(part)) not in self._live:
                self._meet(part, name)

    def _learn(self, facts: Facts, tensor: Tensor, watch: Watch) -> None:
        if facts.is_collective:
            self.categories.communicates(watch)
        if facts.resizes:
            self.resized(_storage_of(tensor))
        if facts.gives_gradient and graph_task_id() != -1:
            self.categories.perhaps_gradient(tensor, watch)

    def _note(self, facts: Facts, out: Any, requires_grad: bool) -> None:
        """Whatever is new in an operator's result is a block."""
        live, makers = self._live, self._books.makers
        for tensor in (out,) if type(out) is Tensor else tensors_in((out,)):
            try:
                storage = _storage_of(tensor)
            except (NotImplementedError, RuntimeError):
                self._meet_parts(tensor, facts.name)
                continue
            if type(tensor) is not Tensor and hasattr(type(tensor), "__tensor_flatten__"):
                # A functional collective's result under way: what wraps it has a size, but no memory of its own.
                self._meet_parts(tensor, facts.name)
                continue
            key = storage_id(storage)
            if key in live or key in makers:
                continue
            is_recorded = requires_grad and self._place.is_forward()
            kind = COMMUNICATION if facts.is_collective else ACTIVATION if is_recorded else OTHER
            watch = self._begin(storage, kind, facts.name)
            if watch is None:
                continue
            makers[key] = self
            if self.categories.is_stepping and not is_recorded:
                self.categories.made(watch)
            if facts.gives_gradient and graph_task_id() != -1:
                self.categories.perhaps_gradient(tensor, watch)

    # ---- how blocks begin and end ----

    def _begin(self, storage: torch.UntypedStorage, category: int, name: str) -> Watch | None:
        size, counts = storage.nbytes(), self._rank.counts
        if not size or (counts is not None and not counts(storage)):
            return None
        watch = Watch(storage, self._on_death)
        watch.key = storage_id(storage)
        watch.block = self.account.begin(size, category, self._label(name))
        self._live[watch.key] = watch
        return watch

    def _label(self, name: str) -> int:
        labels = self._books.labels
        return labels.setdefault((name, *self._place.now()), len(labels))

    def _died(self, watch: Watch) -> None:
        if self._live.pop(watch.key, None) is not None:
            self._books.makers.pop(watch.key, None)
            self.account.end(watch.block)
