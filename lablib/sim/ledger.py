"""What one rank holds: every storage from its allocation to its death, seen from the operators it runs.

A storage is the memory behind one or more tensors. Views share it, in-place operators keep it, and Python, autograd and
torch's C++ hold it together: it dies when the last of them lets go. The ledger keeps a weak reference to it, whose
callback is called at that moment, before the address can be used again.

    allocated    a storage that was not known before is in the result of an operator
    first read   ... or among its arguments: made before the launch, or where no dispatcher looks (from_numpy)
    resized      `untyped_storage().resize_` (FSDP2 frees and restores memory so), `resize_`, `out=`: one block ends,
                 another begins

A storage made by one rank and read by another (ranks share closures here) is counted for its maker alone; one made
before the launch for every rank that reads it, as every process would have its own.

What a block is becomes known as the program runs (`Memory` lists the categories): a parameter when an operator gets an
nn.Parameter, a gradient when autograd puts it into `.grad`, or when it is found there after backward, optimizer state
when `Optimizer.step` ends and it is still alive.

Simplified: tensors in reference cycles live until Python's collector runs, as in any program.
"""

from __future__ import annotations

import itertools
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from lablib.blocks import CATEGORIES, NEVER, Blocks
from lablib.cost.op import tensors_in
from lablib.cost.pricer import Pricer
from lablib.hardware.device import Device
from lablib.sim.lines import Lines

if TYPE_CHECKING:
    from lablib.sim.clock import Clock, Facts
    from lablib.sim.rank import Rank

PARAMETER, GRADIENT, OPTIMIZER, ACTIVATION, COMMUNICATION, OTHER = range(len(CATEGORIES))
_storage_of = Tensor.untyped_storage
_task_id = torch._C._current_graph_task_id


class Books:
    """What the ledgers of one run share.

    Attributes:
        lines: the lines of the program.
        labels: (op, phase, line) -> its number.
        makers: storage -> the ledger of the rank that allocated it, while it lives.
        facts: what is known of each operator, by its identity (clock.py).
    """

    def __init__(self) -> None:
        self.lines = Lines()
        self.labels: dict[tuple[str, str, str], int] = {}
        self.makers: dict[int, Ledger] = {}
        self.facts: dict[int, Facts] = {}
        self._pricer: Pricer | None = None

    def pricer(self, device: Device) -> Pricer:
        """Prices on the run's device, asked for once for all its ranks."""
        self._pricer = self._pricer or Pricer(device)
        assert self._pricer.device is device, "the ranks of a run have one kind of device"
        return self._pricer


class _Watch(weakref.ref):
    """A weak reference to a storage that knows its address and its block."""

    __slots__ = ("key", "block")
    key: int
    block: int


class Ledger:
    """The storages of one rank.

    Args:
        rank: whose.
        books: shared with the other ranks.
    """

    def __init__(self, rank: Rank, books: Books):
        self._rank = rank
        self._books = books
        self._live: dict[int, _Watch] = {}
        self._params: dict[int, weakref.ref[Tensor]] = {}
        self._steps: list[list[_Watch]] = []  # what the Optimizer.step blocks under way have touched
        self._events = itertools.count(1)
        self._held = self._peak = 0
        self._closed_s: float | None = None
        self._callback: Callable[[Any], None] = self._died
        self._category, self._label = array("B"), array("i")
        self._size, self._start_event, self._end_event = array("q"), array("q"), array("q")
        self._start_s, self._end_s = array("d"), array("d")

    # ---- what a program may ask ----

    def allocated_bytes(self) -> int:
        """What the rank holds now."""
        return self._held

    def peak_bytes(self) -> int:
        """The most it held since the start, or since `reset_peak`."""
        return self._peak

    def reset_peak(self) -> None:
        """Forget the peak so far: the next one is at least what is held now."""
        self._peak = self._held

    # ---- what the clock tells ----

    def saw(self, facts: Facts, args: tuple, kwargs: dict, out: Any, clock: Clock) -> None:
        """An operator ran: meet its arguments, and note what it allocated."""
        live, category = self._live, self._category
        requires_grad = False
        given: Iterable[Any] = args if not (kwargs or facts.takes_lists) else tensors_in((*args, *kwargs.values()))
        for tensor in given:
            if not isinstance(tensor, Tensor):
                continue
            try:
                key = _storage_of(tensor)._cdata
            except (NotImplementedError, RuntimeError):  # sparse: its parts are tensors
                self._meet_parts(tensor, facts, clock)
                continue
            watch = live.get(key) or self._meet(tensor, facts.first_name, clock)
            if watch is None:
                continue
            if type(tensor) is not Tensor:
                self._know(tensor, watch)
            if tensor.requires_grad:
                requires_grad = True
                # A result of checkpointed forward, which runs without autograd, becomes part of the graph afterwards.
                if category[watch.block] == OTHER and not tensor.is_leaf:
                    category[watch.block] = ACTIVATION
            if self._steps:
                self._step_touches(tensor, watch)
            if facts.is_collective and category[watch.block] == OTHER:
                category[watch.block] = COMMUNICATION
            if facts.resizes:
                self.resized(_storage_of(tensor), clock)
            if facts.gives_gradient and _task_id() != -1:
                self._perhaps_gradient(watch)
        if facts.allocates:
            self._note(facts, out, clock, requires_grad)

    def _note(self, facts: Facts, out: Any, clock: Clock, requires_grad: bool) -> None:
        """Whatever is new in an operator's result is a block."""
        live = self._live
        for tensor in (out,) if type(out) is Tensor else tensors_in((out,)):
            try:
                storage = _storage_of(tensor)
            except (NotImplementedError, RuntimeError):
                continue  # a sparse result: its parts are met when they are used
            if storage._cdata in live or storage._cdata in self._books.makers:
                continue
            is_recorded = requires_grad and torch.is_grad_enabled() and not clock.is_creating_graph()
            kind = COMMUNICATION if facts.is_collective else ACTIVATION if is_recorded else OTHER
            watch = self._begin(storage, kind, self._label_of(facts.name, clock))
            if watch is None:
                continue
            self._books.makers[watch.key] = self
            if self._steps and not is_recorded:
                self._steps[-1].append(watch)
            if facts.gives_gradient and _task_id() != -1:
                self._perhaps_gradient(watch)

    def resized(self, storage: torch.UntypedStorage, clock: Clock) -> None:
        """A storage may have another size now: then one block ends and another of the same category begins."""
        watch = self._live.get(storage._cdata)
        if watch is None:
            return
        size = storage.nbytes()
        if size == self._size[watch.block] and self._end_event[watch.block] == NEVER:
            return
        self._end(watch.block)
        if size:
            label = self._label_of("resize_", clock)
            watch.block = self._add(size, self._category[watch.block], label)

    def uses(self, wrappers: Iterable[Tensor], clock: Clock) -> None:
        """An operator on a tensor of several parts (DTensor) is about to run on these: parameters among them count."""
        for tensor in wrappers:
            self._know(tensor, None, clock)

    def enter_step(self) -> None:
        """An `Optimizer.step` begins."""
        self.find_gradients()
        self._steps.append([])

    def leave_step(self) -> None:
        """It ends: what it touched, and what is alive and nothing else, is its state."""
        touched = self._steps.pop() if self._steps else []
        for watch in touched:
            if watch() is not None and self._category[watch.block] in (OTHER, ACTIVATION):
                self._category[watch.block] = OPTIMIZER

    def find_gradients(self) -> None:
        """Whatever is in `.grad` of a known parameter is a gradient."""
        for key, ref in list(self._params.items()):
            param = ref()
            if param is None:
                del self._params[key]
            else:
                self._find_gradient(param)

    def forget(self, *tensors: Tensor) -> None:
        """Hold no reference to these: they are known again when an operator gets them."""
        for tensor in tensors:
            self._params.pop(id(tensor), None)

    def close(self) -> None:
        """The rank has ended: no storage is watched any more."""
        self.find_gradients()
        for watch in self._live.values():
            self._books.makers.pop(watch.key, None)
        self._live.clear()
        self._params.clear()
        self._steps.clear()
        self._closed_s = self._rank.clock_s

    def blocks(self) -> Blocks:
        """Everything that was counted; what is alive ends with its rank, or now."""
        end_event, now_s = np.array(self._end_event), self._rank.clock_s if self._closed_s is None else self._closed_s
        columns = {
            "rank": np.full(len(end_event), self._rank.rank),
            "category": self._category,
            "size_bytes": self._size,
            "start_s": self._start_s,
            "end_s": np.where(end_event == NEVER, now_s, np.array(self._end_s)),
            "start_event": self._start_event,
            "end_event": end_event,
            "label": self._label,
        }
        # Copies: an array that is looked at cannot grow, and other ranks may still be running.
        return Blocks({name: np.array(column) for name, column in columns.items()}, list(self._books.labels))

    # ---- how blocks begin and end ----

    def _begin(self, storage: torch.UntypedStorage, category: int, label: int) -> _Watch | None:
        size = storage.nbytes()
        if not size or (self._rank.counts is not None and not self._rank.counts(storage)):
            return None
        watch = _Watch(storage, self._callback)
        watch.key = storage._cdata
        watch.block = self._add(size, category, label)
        self._live[watch.key] = watch
        return watch

    def _add(self, size: int, category: int, label: int) -> int:
        self._size.append(size)
        self._category.append(category)
        self._label.append(label)
        self._start_s.append(self._rank.clock_s)
        self._end_s.append(self._rank.clock_s)
        self._start_event.append(next(self._events))
        self._end_event.append(NEVER)
        self._held += size
        if self._held > self._peak:
            self._peak = self._held
        return len(self._size) - 1

    def _end(self, block: int) -> None:
        if self._end_event[block] == NEVER:
            self._end_event[block] = next(self._events)
            self._end_s[block] = self._rank.clock_s
            self._held -= self._size[block]

    def _died(self, watch: _Watch) -> None:
        self._live.pop(watch.key, None)
        self._books.makers.pop(watch.key, None)
        self._end(watch.block)

    def _label_of(self, name: str, clock: Clock) -> int:
        labels = self._books.labels
        return labels.setdefault((name, *clock.place()), len(labels))

    # ---- what a block is ----

    def _meet(self, tensor: Tensor, name: str, clock: Clock) -> _Watch | None:
        """A storage that nobody saw being made. Another rank's is its own."""
        storage = _storage_of(tensor)
        if self._books.makers.get(storage._cdata) is not None:
            return None
        return self._begin(storage, OTHER, self._label_of(name, clock))

    def _meet_parts(self, tensor: Tensor, facts: Facts, clock: Clock) -> None:
        for part in _parts(tensor):
            if _storage_of(part)._cdata not in self._live:
                self._meet(part, facts.name, clock)

    def _know(self, tensor: Tensor, watch: _Watch | None, clock: Clock | None = None) -> None:
        """If this is an nn.Parameter, its storages are parameters, and its `.grad` is worth looking at."""
        known = self._params.get(id(tensor))
        if known is not None and known() is tensor:
            if watch is not None:
                self._category[watch.block] = PARAMETER
            return
        if not is_parameter(tensor):
            return
        self._params[id(tensor)] = weakref.ref(tensor)
        for part in (tensor,) if watch is not None else _inner(tensor):
            found = watch or self._live.get(_storage_of(part)._cdata) or (clock and self._meet(part, "", clock))
            if found:
                self._category[found.block] = PARAMETER
        self._find_gradient(tensor)

    def _find_gradient(self, param: Tensor) -> None:
        gradient = param.grad if param.is_leaf else None
        if gradient is None:
            return
        for part in _inner(gradient):
            watch = self._live.get(_storage_of(part)._cdata)
            if watch is not None and self._category[watch.block] != PARAMETER:
                self._category[watch.block] = GRADIENT

    def _perhaps_gradient(self, watch: _Watch) -> None:
        """AccumulateGrad keeps the gradient that comes first: as it is, or a copy in the parameter's layout."""
        node = torch._C._current_autograd_node()
        if type(node).__name__ == "AccumulateGrad" and self._category[watch.block] != PARAMETER:
            self._category[watch.block] = GRADIENT

    def _step_touches(self, tensor: Tensor, watch: _Watch) -> None:
        """Inside `Optimizer.step`: what it updates is a parameter, what else it uses may be its state."""
        if torch.is_grad_enabled():
            return  # the closure that it was given computes the loss
        if tensor.requires_grad and tensor.is_leaf:
            self._category[watch.block] = PARAMETER
        elif self._category[watch.block] == OTHER:
            self._steps[-1].append(watch)


def is_parameter(tensor: Tensor) -> bool:
    """Whether a tensor is an nn.Parameter, of whatever tensor class."""
    return isinstance(tensor, torch.nn.Parameter)


def _inner(tensor: Tensor) -> Iterator[Tensor]:
    """The tensors with memory that a tensor consists of: a DTensor's shard, a sparse one's indices and values."""
    if hasattr(type(tensor), "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:  # type: ignore[attr-defined]
            part = getattr(tensor, name)
            if isinstance(part, Tensor):
                yield from _inner(part)
    else:
        yield from _parts(tensor)


def _parts(tensor: Tensor) -> tuple[Tensor, ...]:
    if tensor.layout == torch.strided:
        return (tensor,)
    if tensor.layout == torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return ()


@contextmanager
def watched_resizes() -> Iterator[None]:
    """`UntypedStorage.resize_` passes no dispatcher: during a run it tells the ledger of the rank that calls.

    So does `torch.utils.swap_tensors` (`Module.to` of DTensors): it refuses a tensor that has weak references.
    """
    from lablib.sim.clock import Clock

    resize = torch.UntypedStorage.resize_

    def resize_(storage: torch.UntypedStorage, size: int) -> Any:
        result = resize(storage, size)
        for mode in _get_current_dispatch_mode_stack():
            if isinstance(mode, Clock):
                mode.resized(storage)
        return result

    swap = torch.utils.swap_tensors

    def swap_tensors(first: Tensor, second: Tensor) -> None:
        for mode in _get_current_dispatch_mode_stack():
            if isinstance(mode, Clock):
                mode.forget(first, second)
        swap(first, second)

    torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign, assignment]
    torch.utils.swap_tensors = swap_tensors
    try:
        yield
    finally:
        torch.utils.swap_tensors = swap
        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]
