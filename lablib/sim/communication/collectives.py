"""Collectives of a simulated process group: each names its inputs, outputs, movement of data and checks."""

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from lablib.cost.collectives import CALLS
from lablib.engine.communication import Agreement, Communication, Joined
from lablib.engine.group import FindMismatch, Group
from lablib.errors import CollectiveMismatchError, DeadlockError, LaunchError
from lablib.record.rank_text import ranks_in_words
from lablib.sim.communication import exchange
from lablib.sim.communication.agreement import (
    check_one_per_rank,
    check_own_part,
    check_parts,
    root_mismatch,
    split,
    split_mismatch,
)
from lablib.sim.communication.delivery import Delivery, Move, Tensors
from lablib.sim.communication.group_labels import GroupLabels
from lablib.sim.communication.in_flight import MemoryRange
from lablib.sim.communication.nccl_limits import NcclLimits
from lablib.sim.communication.reduce import Op, RedOp, op_of_dtype, reduce_op
from lablib.sim.communication.work import IssuedWork, SimWork
from lablib.sim.ranks.rank import Rank
from lablib.sim.ranks.turns import Turns
from lablib.sim.source import ProgramLine, handling, is_called_by_program, program_line
from lablib.text.messages import safe_repr
from lablib.torch_compat import DisableTorchDispatch, DisableTorchFunction, storage_id

_data, _num_bytes, _type = attrgetter("data"), attrgetter("nbytes"), attrgetter("dtype")
_FROM_ROOT = ("broadcast", "scatter")  # the root sends the data; in others every member
_SEVERAL = ("ranks", "give", "they", "are")


class Acceptance(Protocol):
    """Check of the device of a group's tensors (NCCL takes those on a GPU only); raises for any other."""

    devices: list[torch.device]

    def __call__(self, tensors: Sequence[Tensor]) -> None: ...


class Collectives(dist.ProcessGroup):
    """One rank's end of a group, with its collectives.

    Args:
        group: the state shared by the members.
        member: this rank's place in it.
        name: torch's internal name of the group.

    `accepts` may be set to check the tensors of every call (script mode: the device that NCCL requires).
    """

    def __init__(self, group: Group, member: int, rank: Rank, turns: Turns, name: str, labels: GroupLabels):
        super().__init__(member, group.size)  # pyright: ignore[reportCallIssue] - an overload the stubs lack
        self._group = group
        self._member = member
        self._rank_state = rank
        self._turns = turns
        self._name = name
        self._labels = labels
        self._coalesced: list[SimWork] | None = None
        self.accepts: Acceptance | None = None
        self._nccl: NcclLimits | None = None
        self._note: Callable[[str], None] = lambda warning: None
        self._phantoms_are_alike = False

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> SimWork:
        op = _reduction(opts, tensors)
        return self._collective("all_reduce", tensors, tensors, partial(exchange.all_reduce, op=op), opts, op=op)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> SimWork:
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: list[Tensor], opts: Any) -> SimWork:
        root = opts.rootRank
        received = [] if self._member == root else tensors
        move = partial(exchange.broadcast, root=root)
        return self._collective("broadcast", tensors, received, move, opts, root=root, results=tensors)

    def reduce(self, tensors: list[Tensor], opts: Any) -> SimWork:
        root, op = opts.rootRank, _reduction(opts, tensors)
        received = tensors if self._member == root else []
        move = partial(exchange.reduce, op=op, root=root)
        return self._collective("reduce", tensors, received, move, opts, root=root, op=op, results=tensors)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> SimWork:
        received = outputs[0]
        check_one_per_rank("all_gather", received, self.size())
        check_own_part("all_gather", "input", inputs[0], received[self._member])
        shapes = tuple(tuple(output.shape) for output in received)
        return self._collective("all_gather", inputs, received, exchange.all_gather, opts, output_shapes=shapes)

    def allgather_coalesced(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> SimWork:
        """outputs[r][k] receives the k-th tensor of rank r."""
        if self._nccl:
            self._nccl.check_coalesced_lists(inputs)
        check_one_per_rank("all_gather_coalesced", outputs, self.size())
        works = [self.allgather([[of_rank[k] for of_rank in outputs]], [x], opts) for k, x in enumerate(inputs)]
        return self._together(works)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> SimWork:
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> SimWork:
        name = "all_gather_into_tensor"
        for output, tensor in zip(outputs, inputs, strict=True):
            check_parts(name, "output", output, "input", tensor, self.size())
            self._in_place(name, "the input may be piece {} of the output", output, tensor)
        return self._collective(name, inputs, outputs, exchange.all_gather_single, opts)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced  # pyright: ignore[reportAssignmentType]

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> SimWork:
        root, received = opts.rootRank, outputs[0] if outputs else []
        if self._member == root:
            check_one_per_rank("gather", received, self.size())
        move = partial(exchange.gather, root=root)
        find = partial(root_mismatch, "gather", root, "receives", "sends")
        return self._collective("gather", inputs, received, move, opts, root=root, find_mismatch=find)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> SimWork:
        root, sent = opts.rootRank, inputs[0] if inputs else []
        if self._member == root:
            check_one_per_rank("scatter", sent, self.size())
        move = partial(exchange.scatter, root=root)
        find = partial(root_mismatch, "scatter", root, "sends", "receives")
        return self._collective("scatter", sent, outputs, move, opts, alike=outputs, root=root, find_mismatch=find)

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> SimWork:
        sent, op = inputs[0], _reduction(opts, inputs[0])
        check_one_per_rank("reduce_scatter", sent, self.size())
        check_own_part("reduce_scatter", "output", outputs[0], sent[self._member])
        return self._collective("reduce_scatter", sent, outputs, partial(exchange.reduce_scatter, op=op), opts, op=op)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> SimWork:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> SimWork:
        name, op = "reduce_scatter_tensor", _reduction(opts, inputs)
        for output, tensor in zip(outputs, inputs, strict=True):
            check_parts(name, "input", tensor, "output", output, self.size())
            self._in_place(name, "the output may be piece {} of the input", tensor, output)
        return self._collective(name, inputs, outputs, partial(exchange.reduce_scatter_single, op=op), opts, op=op)

    _reduce_scatter_base = reduce_scatter_single  # pyright: ignore[reportAssignmentType]
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced  # pyright: ignore[reportAssignmentType]

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> SimWork:
        check_one_per_rank("all_to_all", inputs, self.size())
        check_one_per_rank("all_to_all", outputs, self.size())
        return self._all_to_all("all_to_all", outputs, inputs, opts)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int] | None,
        input_split_sizes: Sequence[int] | None,
        opts: Any = None,
    ) -> SimWork:
        inputs = split("input", input, input_split_sizes, self.size())
        outputs = split("output", output, output_split_sizes, self.size())
        work = self._all_to_all("all_to_all_single", outputs, inputs, opts)
        work.results = [output]
        return work

    alltoall_base = all_to_all_single  # pyright: ignore[reportAssignmentType]

    def _all_to_all(self, name: str, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any) -> SimWork:
        sizes = [part.nbytes for part in inputs]
        is_even = all(size == sizes[0] for size in sizes)
        find, uneven = partial(split_mismatch, name), None if is_even else sizes
        return self._collective(name, inputs, outputs, exchange.all_to_all, opts, find_mismatch=find, uneven=uneven)

    def barrier(self, opts: Any = None) -> SimWork:
        work = self._collective("barrier", [], [], exchange.nothing, opts)
        work.is_barrier = True
        return work

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """A barrier that names the missing ranks after a timeout on gloo; here a missing rank is a deadlock error."""
        self._collective("monitored_barrier", [], [], exchange.nothing).wait()

    # ---- what all have in common ----

    def _collective(
        self,
        name: str,
        sent: Sequence[Tensor],
        received: Sequence[Tensor],
        move: Move,
        opts: Any = None,
        *,
        root: int = 0,
        op: Op | None = None,
        alike: Sequence[Tensor] | None = None,
        output_shapes: tuple = (),
        find_mismatch: FindMismatch | None = None,
        results: Sequence[Tensor] | None = None,
        uneven: Sequence[float] | None = None,
    ) -> SimWork:
        """Join a collective.

        Args:
            name: its name in the table of collectives (lablib/cost/collectives.py).
            sent, received: this rank's inputs, and the buffers to fill.
            move: fills the buffers of all ranks.
            opts: torch's options: whether the call is asynchronous.
            root, op: root in the group, and reduction, of collectives that have one.
            alike: tensors that must have equal dtypes and shapes on all ranks; None: `sent`.
            output_shapes: of an all_gather into a list: equal on all ranks.
            find_mismatch: finds ranks with arguments that do not fit.
            results: result of the work; None: `received`.
            uneven: bytes of each part of an all-to-all with parts of several sizes.
        """
        rank = self._rank_state
        agreement = self._agreement(name, sent if alike is None else alike, op, root, output_shapes)
        self._turns.check(rank.rank)
        if self.accepts:
            self.accepts((*sent, *received))
        if self._nccl:
            self._nccl.check_collective(name, sent, received, op[0] if op else None)
        source = program_line()
        raw_sent = raw(sent)
        raw_received = raw_sent if received is sent else raw(received)
        if rank.memory_tracker is not None:
            rank.memory_tracker.communicates(raw_sent if received is sent else (*raw_sent, *raw_received))
        joined = Joined(
            *(rank.rank, name, agreement, sum(map(_num_bytes, raw_sent)), sum(map(_num_bytes, raw_received))),
            *(rank.clock_s, rank.phase(), source, handling(), dtype_of(raw_sent or raw_received)),
            *(Tensors(raw_sent, raw_received, move, self._phantoms_are_alike), uneven),
        )
        if self._group.has_phantoms and not self._phantoms_are_alike:
            self._check_values_are_known(name, root, raw_received)
        try:
            if self._nccl and all(map(self._nccl.is_own, (*sent, *received))):
                self._note(self._group.payload.collective(rank.rank, name, str(source)))
            meeting = self._group.join(self._member, joined, CALLS[name][0], root, find_mismatch)
        except (CollectiveMismatchError, DeadlockError) as error:
            self._turns.fail(error)
        if meeting.payload is None:
            meeting.payload = Delivery()
        results = received if results is None else results
        if self._coalesced is None and not rank.unwaited and not getattr(opts, "asyncOp", True):
            # torch waits before it returns: the program cannot forget to, or use a tensor before.
            return SimWork(rank, self._turns, [IssuedWork(meeting, self._member, source, False, blocks=True)], results)
        return self._work(meeting, self._member, source, raw_sent, raw_received, results, order=self._group)

    def _agreement(
        self, name: str, tensors: Sequence[Tensor], op: Op | None, root: int, output_shapes: tuple
    ) -> Agreement:
        """The arguments that must be equal on all ranks, by the table of collectives."""
        agreement = []
        for what in CALLS[name][1]:
            if what == "dtype":
                value = tensors[0].dtype if tensors else None
            elif what == "shape":
                value = tuple(tensors[0].shape) if len(tensors) == 1 else tuple([tuple(t.shape) for t in tensors])
            elif what == "reduction":
                value = op and op[0]
            else:
                value = self._global(root) if what == "root" else output_shapes
            agreement.append((what, value))
        return tuple(agreement)

    def _work(
        self,
        event: Communication,
        member: int,
        source: ProgramLine,
        sent: Sequence[Tensor],
        received: Sequence[Tensor],
        results: Sequence[Tensor],
        order: object | None = None,
    ) -> SimWork:
        issued = IssuedWork(event, member, source, is_called_by_program())
        work = SimWork(self._rank_state, self._turns, [issued], results)
        self._rank_state.unwaited[issued] = work
        if issued.is_own and self._rank_state.in_flight is not None:
            self._rank_state.in_flight.add(issued, sent, received, order)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _together(self, works: list[SimWork]) -> SimWork:
        """One work of several."""
        issued = [each for work in works for each in work.issued]
        return SimWork(self._rank_state, self._turns, issued, [t for work in works for t in work.results])

    def _global(self, member: int) -> int:
        if not isinstance(member, int):
            raise TypeError(f"a group rank must be a whole number: got {safe_repr(member)}")
        if not 0 <= member < self.size():
            label = self._group.label
            rank = "rank" if label == "world" else "group rank"
            raise ValueError(f"{rank} {member} does not exist: group {label} has {rank}s 0 to {self.size() - 1}")
        return self._group.global_ranks[member]

    def _check_values_are_known(self, name: str, root: int, received: Sequence[Tensor]) -> None:
        """Check that no values of phantoms are needed: their inputs have shapes only."""
        if not any(tensor.numel() and not tensor.is_meta for tensor in received):
            return
        givers = [root] if CALLS[name][0] in _FROM_ROOT else range(self.size())
        if unknown := sorted(self._global(place) for place in givers if self._group.is_phantom(place)):
            who, gives, they, are = ("rank", "gives", "it", "is") if len(unknown) == 1 else _SEVERAL
            self._turns.fail(
                LaunchError(
                    f"rank {self._rank_state.rank} needs the values that {who} {ranks_in_words(unknown)} {gives} in "
                    f"{name} of group {self._group.label}, and {they} {are} not simulated ({program_line()}): of what "
                    f"is not simulated only shapes are known; add {who} {ranks_in_words(unknown)} to simulate="
                )
            )

    def _in_place(self, name: str, allowed: str, whole: Tensor, part: Tensor) -> None:
        """Report an overlap of part and whole, unless the part is at this rank's own position.

        Source: NVIDIA, "NCCL user guide", in-place operations.
        """
        with DisableTorchFunction():
            if not part.numel() or storage_id(whole.untyped_storage()) != storage_id(part.untyped_storage()):
                return
            own = int(whole.storage_offset()) + self._member * part.numel()
            if part.storage_offset() != own and MemoryRange.of(whole).overlaps(MemoryRange.of(part)):
                self._rank_state.overlaps.append((name, allowed.format(self._member), program_line()))


def _reduction(opts: Any, tensors: Sequence[Tensor]) -> Op:
    op = opts.reduceOp if opts else dist.ReduceOp.SUM
    if len(tensors) == 1 and op != RedOp.PREMUL_SUM:  # equal PREMUL_SUM operations may have different factors
        return op_of_dtype(op, tensors[0].dtype)
    return reduce_op(op, [tensor.dtype for tensor in tensors])


def raw(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same memory without autograd history or version counter."""
    for t in tensors:
        if t.layout != torch.strided:
            raise ValueError(f"communication takes dense tensors: got one of layout {t.layout}; use to_dense()")
    with DisableTorchDispatch():  # the program ran no operator here
        return list(map(_data, tensors))


def dtype_of(tensors: Sequence[Tensor]) -> str:
    """The common dtype of tensors; "" for several or none."""
    found = set(map(_type, tensors))
    return str(found.pop()).removeprefix("torch.") if len(found) == 1 else ""
