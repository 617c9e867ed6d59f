"""The simulator's `torch.distributed.ProcessGroup`: its methods submit collectives and messages.

torch 2.13 calls `all_gather_single` and `reduce_scatter_single` where 2.11 calls `_allgather_base` and
`_reduce_scatter_base`; the class has both names. tests/sim/test_torch_contract.py lists the methods that torch calls.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.join import Join

from lablib.cost.collectives import CALLS
from lablib.engine.communication import ANY_SOURCE, Agreement, Communication, Joined, Message
from lablib.engine.group import FindMismatch, Group
from lablib.errors import CollectiveMismatchError, DeadlockError, LaunchError, Wait
from lablib.record.rank_text import ranks_in_words
from lablib.sim.communication import exchange
from lablib.sim.communication.delivery import RECEIVER, SENDER, Delivery, Move, PerMember, Tensors
from lablib.sim.communication.group_labels import GroupLabels
from lablib.sim.communication.in_flight import Place
from lablib.sim.communication.nccl_limits import NcclLimits
from lablib.sim.communication.nccl_order import NcclOrder
from lablib.sim.communication.reduce import Op, RedOp, op_of_dtype, reduce_op
from lablib.sim.communication.work import Issued, SimWork
from lablib.sim.ranks.rank import Rank
from lablib.sim.ranks.turns import Turns
from lablib.sim.source import Source, handling, is_called_by_program, program_line
from lablib.text.messages import safe_repr
from lablib.text.units import plural
from lablib.torch_compat import (
    DisableTorchDispatch,
    DisableTorchFunction,
    default_group,
    ensure_same_dtype,
    keep_join_work,
    rank_not_in_group,
    set_group_desc,
    storage_id,
    warn_not_in_group,
)

_data, _num_bytes, _type = attrgetter("data"), attrgetter("nbytes"), attrgetter("dtype")
_HIGHEST_TAG = 2**31 - 1
_FROM_ROOT = ("broadcast", "scatter")  # the root sends the data; in others every member
_SEVERAL = ("ranks", "give", "they", "are")
_CPU = torch.device("cpu")


class Acceptance(Protocol):
    """Check of the device of a group's tensors (NCCL takes those on a GPU only); raises for any other."""

    devices: list[torch.device]

    def __call__(self, tensors: Sequence[Tensor]) -> None: ...


class SimProcessGroup(dist.ProcessGroup):
    """One rank's end of a group.

    Args:
        group: the state shared by the members.
        member: this rank's place in it.
        rank: this rank.
        turns: to wait.
        name: torch's internal name of the group.
        labels: the labels of groups.

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
        self._note: Callable[[str], None] = _says_nothing
        self._phantoms_are_alike = False

    def limit_to_nccl(self, limits: NcclLimits, is_eager: bool, note: Callable[[str], None]) -> None:
        """Reject calls that NCCL would reject, here and on all other members with this limit.

        Args:
            limits: the checks.
            is_eager: whether NCCL's group would have its device, as by `init_process_group(device_id=...)`.
            note: receives warnings.
        """
        self._nccl, self._note = limits, note
        if self._group.payload is None:
            self._group.payload = NcclOrder(self._group.simulated_ranks, self._group.label, is_eager)

    # ---- identity ----

    def size(self) -> int:
        return self._group.size

    def getBackendName(self) -> str:
        return "sim"

    @property
    def pg_name(self) -> str:
        return self._name

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def _device_types(self) -> list[torch.device]:
        return self.accepts.devices if self.accepts else [_CPU]

    def __repr__(self) -> str:
        return f"SimProcessGroup({self._group.label}, rank {self._member} of {self.size()})"

    def _set_group_desc(self, desc: str) -> None:
        """Set the label from the description that torch takes from `new_group` or a mesh."""
        set_group_desc(self, desc)
        if desc not in ("", "undefined", "default_pg"):
            self._labels.describe(self._group, desc)

    def shutdown(self) -> None:
        self._labels.give_back(self._group)

    def abort(self) -> None:
        pass

    # ---- collectives ----

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> SimWork:
        op = _reduction(opts, tensors)
        return self._collective(
            "all_reduce",
            sent=tensors,
            received=tensors,
            agree=_alike("all_reduce", tensors, reduction=op[0]),
            move=lambda sent, received: exchange.all_reduce(sent, received, op),
            opts=opts,
        )

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> SimWork:
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: list[Tensor], opts: Any) -> SimWork:
        root = opts.rootRank
        return self._collective(
            "broadcast",
            sent=tensors,
            received=[] if self._member == root else tensors,
            agree=_alike("broadcast", tensors, root=self._global(root)),
            move=lambda sent, received: exchange.broadcast(sent, received, root),
            opts=opts,
            root=root,
            results=tensors,
        )

    def reduce(self, tensors: list[Tensor], opts: Any) -> SimWork:
        root, op = opts.rootRank, _reduction(opts, tensors)
        return self._collective(
            "reduce",
            sent=tensors,
            received=tensors if self._member == root else [],
            agree=_alike("reduce", tensors, root=self._global(root), reduction=op[0]),
            move=lambda sent, received: exchange.reduce(sent, received, op, root),
            opts=opts,
            root=root,
            results=tensors,
        )

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> SimWork:
        self._count("all_gather", outputs[0])
        return self._collective(
            "all_gather",
            sent=inputs,
            received=outputs[0],
            agree=_alike("all_gather", inputs, **{"output shapes": tuple(tuple(o.shape) for o in outputs[0])}),
            move=exchange.all_gather,
            opts=opts,
            own=("input shape", tuple(inputs[0].shape), tuple(outputs[0][self._member].shape)),
        )

    def allgather_coalesced(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> SimWork:
        """outputs[r][k] receives the k-th tensor of rank r."""
        if self._nccl:
            self._nccl.check_coalesced_lists(inputs)
        self._count("all_gather_coalesced", outputs)
        works = [self.allgather([[of_rank[k] for of_rank in outputs]], [x], opts) for k, x in enumerate(inputs)]
        return self._together(works)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> SimWork:
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> SimWork:
        for output, tensor in zip(outputs, inputs, strict=True):
            self._divides("all_gather_into_tensor", "output", output, "input", tensor)
            self._in_place("all_gather_into_tensor", "the input may be piece {} of the output", output, tensor)
        return self._collective(
            "all_gather_into_tensor",
            sent=inputs,
            received=outputs,
            agree=_alike("all_gather_into_tensor", inputs),
            move=exchange.all_gather_single,
            opts=opts,
        )

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced  # pyright: ignore[reportAssignmentType]

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> SimWork:
        root = opts.rootRank
        received = outputs[0] if outputs else []
        if self._member == root:
            self._count("gather", received)
        return self._collective(
            "gather",
            sent=inputs,
            received=received,
            agree=_alike("gather", inputs, root=self._global(root)),
            move=lambda sent, received: exchange.gather(sent, received, root),
            opts=opts,
            find_mismatch=lambda joined: _parts_mismatch("gather", joined, root, "receives", "sends"),
            root=root,
        )

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> SimWork:
        root = opts.rootRank
        sent = inputs[0] if inputs else []
        if self._member == root:
            self._count("scatter", sent)
        return self._collective(
            "scatter",
            sent=sent,
            received=outputs,
            agree=_alike("scatter", outputs, root=self._global(root)),
            move=lambda sent, received: exchange.scatter(sent, received, root),
            opts=opts,
            find_mismatch=lambda joined: _parts_mismatch("scatter", joined, root, "sends", "receives"),
            root=root,
        )

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> SimWork:
        op = _reduction(opts, inputs[0])
        self._count("reduce_scatter", inputs[0])
        return self._collective(
            "reduce_scatter",
            sent=inputs[0],
            received=outputs,
            agree=_alike("reduce_scatter", inputs[0], reduction=op[0]),
            move=lambda sent, received: exchange.reduce_scatter(sent, received, op),
            opts=opts,
            own=("output shape", tuple(outputs[0].shape), tuple(inputs[0][self._member].shape)),
        )

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> SimWork:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> SimWork:
        op = _reduction(opts, inputs)
        for output, tensor in zip(outputs, inputs, strict=True):
            self._divides("reduce_scatter_tensor", "input", tensor, "output", output)
            self._in_place("reduce_scatter_tensor", "the output may be piece {} of the input", tensor, output)
        return self._collective(
            "reduce_scatter_tensor",
            sent=inputs,
            received=outputs,
            agree=_alike("reduce_scatter_tensor", inputs, reduction=op[0]),
            move=lambda sent, received: exchange.reduce_scatter_single(sent, received, op),
            opts=opts,
        )

    _reduce_scatter_base = reduce_scatter_single  # pyright: ignore[reportAssignmentType]
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced  # pyright: ignore[reportAssignmentType]

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> SimWork:
        self._count("all_to_all", inputs)
        self._count("all_to_all", outputs)
        return self._all_to_all("all_to_all", outputs, inputs, opts)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int] | None,
        input_split_sizes: Sequence[int] | None,
        opts: Any = None,
    ) -> SimWork:
        inputs = self._split("input", input, input_split_sizes)
        outputs = self._split("output", output, output_split_sizes)
        work = self._all_to_all("all_to_all_single", outputs, inputs, opts)
        work.results = [output]
        return work

    alltoall_base = all_to_all_single  # pyright: ignore[reportAssignmentType]

    def _all_to_all(self, name: str, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any) -> SimWork:
        def mismatch(joined: Mapping[int, Joined]) -> CollectiveMismatchError | None:
            for i, receiver in joined.items():
                for r, sender in joined.items():
                    given, wanted = sender.tensors.sent[i].numel(), receiver.tensors.received[r].numel()
                    if given != wanted:
                        return _mismatch(
                            f"{name}: rank {sender.rank} sends {plural(given, 'elements')} to rank "
                            f"{receiver.rank}, which expects "
                            f"{wanted}; make input split {i} of rank {sender.rank} equal output split {r} of rank "
                            f"{receiver.rank}.",
                            sender,
                            receiver,
                        )
            return None

        return self._collective(
            name,
            sent=inputs,
            received=outputs,
            agree=_alike(name, inputs),
            move=exchange.all_to_all,
            opts=opts,
            find_mismatch=mismatch,
            uneven=_sizes_if_uneven(inputs),
        )

    def barrier(self, opts: Any = None) -> SimWork:
        work = self._collective("barrier", sent=[], received=[], agree=(), move=_moves_nothing, opts=opts)
        work.is_barrier = True
        return work

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """A barrier that names the missing ranks after a timeout on gloo; here a missing rank is a deadlock error."""
        self._collective("monitored_barrier", sent=[], received=[], agree=(), move=_moves_nothing).wait()

    # ---- point to point ----

    def send(self, tensors: list[Tensor], dst: int, tag: int) -> SimWork:
        self._meets(dst, "sends to")
        raw = _raw(tensors)
        message = self._message("send", raw[0], dst, tag)
        self._post(self._group.post_send, message)
        return self._work(message, SENDER, message.source, raw, [], [])

    def recv(self, tensors: list[Tensor], src: int, tag: int) -> SimWork:
        self._meets(src, "receives from")
        return self._receive(tensors, src, tag)

    def _receive(self, tensors: list[Tensor], src: int, tag: int) -> SimWork:
        raw = _raw(tensors)
        message = self._message("recv", raw[0], src, tag)
        if src == ANY_SOURCE:
            self._let_earlier_senders_come(message)
        self._post(self._group.post_receive, message)
        return self._work(message, RECEIVER, message.source, [], raw, tensors)

    def _post(self, post: Callable[[Message], None], message: Message) -> None:
        try:
            if message.is_in_order:
                me, peer = (self._group.global_ranks[place] for place in (self._member, message.peer))
                self._note_if(self._group.payload.message(message.kind, me, peer, str(message.source)))
            post(message)
        except (CollectiveMismatchError, DeadlockError) as error:
            self._turns.fail(error)

    def _note_if(self, warning: str) -> None:
        if warning:
            self._note(warning)

    def _let_earlier_senders_come(self, receive: Message) -> None:
        """Give up the turn until no rank can issue a send before the earliest matching one."""
        at_s = receive.issue_s
        while True:
            self._turns.yield_turn(at_s)
            if (first_s := self._group.first_send_s(receive)) <= at_s:
                return
            at_s = first_s

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> SimWork:
        return self._receive(tensors, ANY_SOURCE, tag)

    # ---- coalescing: all calls in between give one work ----

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: torch.device) -> SimWork:
        works, self._coalesced = self._coalesced or [], None
        return self._together(works)

    # ---- internals ----

    def _collective(
        self,
        name: str,
        *,
        sent: Sequence[Tensor],
        received: Sequence[Tensor],
        agree: Agreement,
        move: Move,
        opts: Any = None,
        find_mismatch: FindMismatch | None = None,
        root: int = 0,
        own: tuple[str, Any, Any] | None = None,
        results: Sequence[Tensor] | None = None,
        uneven: Sequence[float] | None = None,
    ) -> SimWork:
        self._turns.check(self._rank_state.rank)
        if self.accepts:
            self.accepts((*sent, *received))
        if self._nccl:
            self._nccl.check_collective(name, sent, received, dict(agree).get("reduction"))
        if own and own[1] != own[2]:
            raise ValueError(
                f"{name}: the {own[0]} must equal the shape of this rank's shard: got {own[1]} and {own[2]}"
            )
        source = program_line()
        rank = self._rank_state
        raw_sent = _raw(sent)
        raw_received = raw_sent if received is sent else _raw(received)
        if rank.memory_tracker is not None:
            rank.memory_tracker.communicates(raw_sent if received is sent else (*raw_sent, *raw_received))
        joined = Joined(
            rank.rank,
            name,
            agree,
            sum(map(_num_bytes, raw_sent)),
            sum(map(_num_bytes, raw_received)),
            rank.clock_s,
            rank.phase(),
            source,
            handling(),
            _dtype(raw_sent or raw_received),
            Tensors(raw_sent, raw_received, move, self._phantoms_are_alike),
            uneven,
        )
        if self._group.has_phantoms and not self._phantoms_are_alike:
            self._knows_values(name, root, raw_received)
        try:
            if self._nccl and all(map(self._nccl.is_own, (*sent, *received))):
                self._note_if(self._group.payload.collective(rank.rank, name, str(source)))
            meeting = self._group.join(self._member, joined, CALLS[name][0], root, find_mismatch)
        except (CollectiveMismatchError, DeadlockError) as error:
            self._turns.fail(error)
        if meeting.payload is None:
            meeting.payload = Delivery()
        results = received if results is None else results
        if self._coalesced is None and not rank.unwaited and not getattr(opts, "asyncOp", True):
            # torch waits before it returns: the program cannot forget to, or use a tensor before.
            return SimWork(rank, self._turns, [Issued(meeting, self._member, source, False, blocks=True)], results)
        return self._work(meeting, self._member, source, raw_sent, raw_received, results, order=self._group)

    def _work(
        self,
        event: Communication,
        member: int,
        source: Source,
        sent: Sequence[Tensor],
        received: Sequence[Tensor],
        results: Sequence[Tensor],
        order: object | None = None,
    ) -> SimWork:
        issued = Issued(event, member, source, is_called_by_program())
        work = SimWork(self._rank_state, self._turns, [issued], results)
        self._rank_state.unwaited[issued] = work
        if issued.is_own and self._rank_state.in_flight is not None:
            self._rank_state.in_flight.add(issued, sent, received, order)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _together(self, works: list[SimWork]) -> SimWork:
        issued = [each for work in works for each in work.issued]
        return SimWork(self._rank_state, self._turns, issued, [t for work in works for t in work.results])

    def _message(self, kind: str, tensor: Tensor, peer: int, tag: int) -> Message:
        self._turns.check(self._rank_state.rank)
        if self.accepts:
            self.accepts((tensor,))
        if self._nccl:
            self._nccl.check_message(tensor, from_anyone=peer == ANY_SOURCE)
        _check_tag(tag)
        rank = self._rank_state
        if rank.memory_tracker is not None:
            rank.memory_tracker.communicates([tensor])
        return Message(
            kind,
            rank,
            self._member,
            peer,
            tag,
            tensor.nbytes,
            _dtype([tensor]),
            tuple(tensor.shape),
            rank.clock_s,
            rank.phase(),
            program_line(),
            None if peer == ANY_SOURCE else self._global(peer),
            self._group.label,
            tensor,
            is_in_order=self._nccl is not None and self._nccl.is_own(tensor),
            payload=Delivery(),
        )

    def _global(self, member: int) -> int:
        if not isinstance(member, int):
            raise TypeError(f"a group rank must be a whole number: got {safe_repr(member)}")
        if not 0 <= member < self.size():
            label = self._group.label
            rank = "rank" if label == "world" else "group rank"
            raise ValueError(f"{rank} {member} does not exist: group {label} has {rank}s 0 to {self.size() - 1}")
        return self._group.global_ranks[member]

    def _meets(self, member: int, verb: str) -> None:
        """Check that the other side of a message is simulated."""
        rank = self._global(member)
        if self._group.is_phantom(member):
            self._turns.fail(
                LaunchError(
                    f"rank {self._rank_state.rank} {verb} rank {rank}, which is not simulated ({program_line()}): a "
                    f"collective of phantoms can be priced, a message has nobody at its other end; add rank {rank} to "
                    f"simulate="
                )
            )

    def _knows_values(self, name: str, root: int, received: Sequence[Tensor]) -> None:
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

    @contextmanager
    def phantoms_alike(self) -> Iterator[None]:
        """Assume within this context that phantoms give the same values as simulated members, for equality checks."""
        self._phantoms_are_alike = True
        try:
            yield
        finally:
            self._phantoms_are_alike = False

    def _count(self, name: str, tensors: Sequence[Tensor | list[Tensor]]) -> None:
        if len(tensors) != self.size():
            raise ValueError(
                f"{name}: the list must hold one tensor a rank: got {len(tensors)} for {plural(self.size(), 'ranks')}"
            )

    def _divides(self, name: str, large: str, whole: Tensor, small: str, part: Tensor) -> None:
        if whole.numel() != part.numel() * self.size():
            raise ValueError(
                f"{name}: the {large} must hold {self.size()} times the elements of the {small} (one part a rank): "
                f"got {whole.numel()} and {part.numel()}"
            )
        ensure_one_dtype(whole, part)

    def _in_place(self, name: str, allowed: str, whole: Tensor, part: Tensor) -> None:
        """Report an overlap of part and whole, unless the part is at this rank's own position.

        Source: NVIDIA, "NCCL user guide", in-place operations.
        """
        with DisableTorchFunction():
            if not part.numel() or storage_id(whole.untyped_storage()) != storage_id(part.untyped_storage()):
                return
            own = int(whole.storage_offset()) + self._member * part.numel()
            if part.storage_offset() != own and Place.of(whole).overlaps(Place.of(part)):
                self._rank_state.overlaps.append((name, allowed.format(self._member), program_line()))

    def _split(self, what: str, tensor: Tensor, sizes: Sequence[int] | None) -> list[Tensor]:
        """The parts of a tensor along dim 0: of equal size, or of the given sizes."""
        if sizes:
            if len(sizes) != self.size() or sum(sizes) != tensor.shape[0]:
                raise ValueError(
                    f"all_to_all_single: {what}_split_sizes must hold one size a rank and add up to dim 0: "
                    f"got {list(sizes)} for {plural(self.size(), 'ranks')} and {plural(tensor.shape[0], 'rows')}"
                )
            return list(tensor.split(list(sizes)))
        if tensor.shape[0] % self.size():
            raise ValueError(
                f"all_to_all_single: without split sizes, dim 0 of the {what} must be a multiple of the ranks: "
                f"got {plural(tensor.shape[0], 'rows')} for {plural(self.size(), 'ranks')}; give {what}_split_sizes"
            )
        return list(tensor.split([tensor.shape[0] // self.size()] * self.size()))


def _sizes_if_uneven(parts: Sequence[Tensor]) -> list[int] | None:
    """The bytes of each part of an all-to-all; None if all are equal."""
    sizes = [part.nbytes for part in parts]
    return sizes if any(size != sizes[0] for size in sizes) else None


def _check_tag(tag: Any) -> None:
    """Reject a tag as gloo does, with the same types of error."""
    if not isinstance(tag, int) or tag > _HIGHEST_TAG:
        raise TypeError(f"a tag must be a whole number below 2**31: got {safe_repr(tag)}")
    if tag < 0:
        raise RuntimeError(f"Tag must be nonnegative: got {safe_repr(tag)}; number messages from 0")


def _alike(call: str, tensors: Sequence[Tensor], **others: Any) -> Agreement:
    """The arguments that must be equal on all ranks, by the table of collectives: from the tensors, or given here."""
    agreement = []
    for what in CALLS[call][1]:
        if what == "dtype":
            value = tensors[0].dtype if tensors else None
        elif what == "shape":
            value = tuple(tensors[0].shape) if len(tensors) == 1 else tuple([tuple(t.shape) for t in tensors])
        else:
            value = others[what]
        agreement.append((what, value))
    return tuple(agreement)


def _reduction(opts: Any, tensors: Sequence[Tensor]) -> Op:
    op = opts.reduceOp if opts else dist.ReduceOp.SUM
    if len(tensors) == 1 and op != RedOp.PREMUL_SUM:  # equal PREMUL_SUM operations may have different factors
        return op_of_dtype(op, tensors[0].dtype)
    return reduce_op(op, [tensor.dtype for tensor in tensors])


def _says_nothing(text: str) -> None:
    """The default `note`: ignore it."""


def _moves_nothing(sent: PerMember, received: PerMember) -> None:
    """The data movement of a barrier: none."""


def _mismatch(headline: str, *calls: Joined) -> CollectiveMismatchError:
    return CollectiveMismatchError(headline, [Wait(j.rank, j.text(), str(j.source)) for j in calls])


def _parts_mismatch(
    name: str, joined: Mapping[int, Joined], root: int, root_verb: str, verb: str
) -> CollectiveMismatchError | None:
    """The error for a part of the root that differs from the tensor of its rank; None if all match."""
    if root not in joined:  # a phantom
        return None
    root_sends = verb == "receives"
    parts = joined[root].tensors.sent if root_sends else joined[root].tensors.received
    for place, other in joined.items():
        part = parts[place]
        given = (other.tensors.received if root_sends else other.tensors.sent)[0]
        if part.shape != given.shape or part.dtype != given.dtype:
            return _mismatch(
                f"{name}: the root, rank {joined[root].rank}, {root_verb} {_describe(part)} for rank {other.rank}, "
                f"which {verb} {_describe(given)}; make them the same.",
                *([joined[root]] if other is joined[root] else [joined[root], other]),
            )
    return None


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _raw(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same memory without autograd history or version counter."""
    for t in tensors:
        if t.layout != torch.strided:
            raise ValueError(f"communication takes dense tensors: got one of layout {t.layout}; use to_dense()")
    with DisableTorchDispatch():  # the program ran no operator here
        return list(map(_data, tensors))


def _dtype(tensors: Sequence[Tensor]) -> str:
    """The common dtype; "" for several or none."""
    found = set(map(_type, tensors))
    return str(found.pop()).removeprefix("torch.") if len(found) == 1 else ""


_notify_join_context = Join.notify_join_context


def notify_join_context(joinable: Any) -> Any:
    """torch's own, but keeps the work: DDP's reducer holds only its C++ side, which cannot wait by itself."""
    work = _notify_join_context(joinable)
    keep_join_work(joinable, work)
    return work


def ensure_one_dtype(*tensors: Any) -> None:
    """torch's check that the tensors, and lists of tensors, of one call have one dtype, with a clearer message.

    Raises:
        ValueError: they have more than one dtype.
    """
    try:
        ensure_same_dtype(*tensors)
    except ValueError:
        flat = [one for some in tensors for one in ([some] if isinstance(some, Tensor) else some)]
        found = " and ".join(dict.fromkeys(str(one.dtype).removeprefix("torch.") for one in flat))
        raise ValueError(
            f"the tensors of one call must have one type: got {found}; "
            "make them of the same, as torch.zeros(1, dtype=x.dtype) is of that of x."
        ) from None


def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
    """`monitored_barrier` for the simulator; torch accepts it on gloo only."""
    if rank_not_in_group(group):
        warn_not_in_group("monitored_barrier")
        return
    group = group or default_group()
    assert isinstance(group, SimProcessGroup)
    group.monitored_barrier(timeout, wait_all_ranks)
