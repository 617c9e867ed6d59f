"""Record every communication call of a rank: operation, group, bytes.

The profiler alone lacks information: gloo's events have no group and no sequence number, and point-to-point calls have
no peer. So each `c10d::` operation gets one more kernel before its own (on the dispatch key BackendSelect, which every
call passes), which records a `Call` and redispatches. Unlike a wrapper of `torch.distributed` functions it also sees
the calls of DDP's C++ reducer, DTensor and functional collectives. The times come from the profiler.

On GPUs batches of calls have numbers (batches.py), and the work of a call is kept until it is complete (under_way.py).
"""

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from lablib.real.frames import program_line
from lablib.real.gpu.batches import Batches
from lablib.real.gpu.under_way import CallsUnderWay
from lablib.real.measurement.events import ProfilerEvent
from lablib.real.measurement.volume import CALLS, volume
from lablib.record.rank_text import numbered, short_ranks
from lablib.torch_compat import DispatchKey, current, default_group, destroy_library, keys_after, schema, source_rank

# Operations of the dispatcher -> functions of torch.distributed.
NAMES = {op_name: name for op_name, (name, _) in CALLS.items()}
_LATEST = 4  # per group; two threads of gloo may work on two
_SETTLE_S = 0.05


@dataclass(slots=True)
class Call:
    """One communication call of one rank."""

    op: str  # op, name: the dispatcher's name ("allreduce_") and torch.distributed's ("all_reduce")
    name: str
    group: str  # group, group_id: the label ("world", "dp"), and the unique id, equal on all members
    group_id: str
    members: tuple[int, ...]  # global ranks of the group, in group order
    sequence: int  # 0, 1, ... for collectives, counted per group; for point-to-point calls per group, pair and tag
    source: int  # source, target: global ranks of a point-to-point call; -1 otherwise
    target: int
    tag: int  # tag of a point-to-point call
    size_bytes: float  # size_bytes, sent_bytes: S, and the bytes sent by this rank, by the table of volume.py
    sent_bytes: float
    thread: int  # system id of the thread that made the call
    phase: str = ""
    # start_ns, end_ns: initially the time of the call, and 0; later its times from the profiler. So is `phase`.
    start_ns: int = 0
    end_ns: int = 0
    batch: int = 0  # number of its batch, from 1; 0: none
    line: str = ""  # the line of the program that made it, on GPUs; "" if unknown

    def ran(self, events: Sequence[ProfilerEvent]) -> None:
        """Set its times from these profiler events: first start, last end. Unchanged if there are none."""
        if events:
            self.start_ns, self.end_ns = min(e.start_ns for e in events), max(e.end_ns for e in events)

    @property
    def is_point_to_point(self) -> bool:
        return self.name in ("send", "recv")

    def number(self, counts: Counter[tuple]) -> None:
        pair = (self.name, self.source, self.target, self.tag) if self.is_point_to_point else ()
        self.sequence = counts[self.group_id, *pair]
        counts[self.group_id, *pair] += 1

    @property
    def stream(self) -> str:
        """Its lane in the timeline: sends and receives of a rank may overlap, so each kind has a separate lane."""
        return f"comm:{self.group}:{self.name}" if self.is_point_to_point else f"comm:{self.group}"

    @property
    def span_name(self) -> str:
        """The name of its span, with the peer of a message."""
        if not self.is_point_to_point:
            return self.name
        return f"send to {self.target}" if self.name == "send" else f"recv from {self.source}"


class CallRecorder:
    """Collects the calls of this process while `recording`. `on_gpu`: of NCCL, which batches calls."""

    def __init__(self, on_gpu: bool = False) -> None:
        self.calls: list[Call] = []
        self.under_way = CallsUnderWay()
        self._on_gpu = on_gpu
        self._batches = Batches(self._batch_ended)
        self._counts: Counter[tuple] = Counter()
        self._open_receives: list[tuple[Call, Any]] = []
        self._latest: dict[str, deque[Any]] = defaultdict(lambda: deque(maxlen=_LATEST))
        self._labels: dict[str, str] = {}  # by group id

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record every communication call within this context. The calls themselves are unchanged."""
        library = torch.library.Library("c10d", "IMPL")
        below = keys_after(DispatchKey.BackendSelect)
        try:
            for op_name in NAMES:
                if hasattr(torch.ops.c10d, op_name):
                    op = getattr(torch.ops.c10d, op_name).default
                    library.impl(op_name, self._kernel(op_name, op, below), "BackendSelect", with_keyset=True)
            with self._batches.numbering() if self._on_gpu else nullcontext():
                yield
        finally:
            destroy_library(library)
            self.under_way.clear()
            self._close_receives()

    def _kernel(self, op_name: str, op: Any, below: Any) -> Callable[..., Any]:
        argument_names = [argument.name for argument in schema(op).arguments]

        def record_and_go_on(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            call = self._record(op_name, dict(zip(argument_names, args, strict=False)) | kwargs)
            result = op.redispatch(keyset & below, *args, **kwargs)
            if op_name == "recv_any_source_":
                self._open_receives.append((call, result))
            elif self._on_gpu:
                self.under_way.add(call, result[-1] if isinstance(result, tuple) else result)
            elif not call.is_point_to_point and op_name != "monitored_barrier_":
                self._latest[call.group_id].append(result[-1] if isinstance(result, tuple) else result)
            return result

        return record_and_go_on

    def _batch_ended(self, batch: int, work: Any) -> None:
        for call in reversed(self.calls):
            if call.batch == batch:
                self.under_way.add(call, work)
            elif 0 < call.batch < batch:
                break

    def _record(self, op_name: str, arguments: dict[str, Any]) -> Call:
        group = dist.ProcessGroup.unbox(arguments["process_group"])
        members, me = tuple(_members(group)), group.rank()
        size_bytes, sent_bytes = volume(op_name, arguments, me, len(members))
        source, target = -1, -1
        if op_name == "send":
            source, target = members[me], members[arguments["dst"]]
        elif op_name == "recv_":
            source, target = members[arguments["src"]], members[me]
        elif op_name == "recv_any_source_":
            target = members[me]
        call = Call(
            op=op_name,
            name=NAMES[op_name],
            group=self._label(group),
            group_id=group.group_name,
            members=members,
            sequence=-1,
            source=source,
            target=target,
            tag=arguments.get("tag", 0),
            size_bytes=size_bytes,
            sent_bytes=sent_bytes,
            thread=threading.get_native_id(),
            start_ns=time.time_ns(),
            batch=self._batches.number(group),
            line=program_line() if self._on_gpu else "",
        )
        if op_name != "recv_any_source_":
            call.number(self._counts)
        self.calls.append(call)
        return call

    def _label(self, group: dist.ProcessGroup) -> str:
        """The label of a group: its name, numbered if this rank has an older one of that name."""
        if group.group_name not in self._labels:
            groups = {one.group_name: one for one in [*current("process_world").pg_map, group]}
            self._labels = {id_: label for id_, label in self._labels.items() if id_ in groups}
            for id_ in (id_ for id_ in groups if id_ not in self._labels):
                self._labels[id_] = numbered(_display_name(groups[id_]), set(self._labels.values()).__contains__)
        return self._labels[group.group_name]

    def settle(self) -> None:
        """Wait briefly until the library has finished the calls that the program has waited for.

        gloo releases the program just before it closes the profiler's event; without its end an event is lost.
        """
        deadline = time.monotonic() + _SETTLE_S
        latest = [dist.Work.unbox(work) for works in self._latest.values() for work in works]
        while not all(work.is_completed() for work in latest) and time.monotonic() < deadline:
            time.sleep(0.0002)
        self._latest.clear()

    def _close_receives(self) -> None:
        """Set the senders of `recv(src=None)`, which are known only afterwards."""
        for call, work in self._open_receives:
            try:
                call.source = call.members[source_rank(dist.Work.unbox(work))]
            except (RuntimeError, IndexError):  # never completed
                continue
            call.number(self._counts)
        self._open_receives.clear()


def _members(group: dist.ProcessGroup) -> list[int]:
    try:
        return dist.get_process_group_ranks(group)
    except (KeyError, ValueError):  # a group that torch.distributed does not list
        return list(range(group.size()))


def _display_name(group: dist.ProcessGroup) -> str:
    """ "world", the description given to `new_group`, or otherwise the ranks: "0,2", "4-7"."""
    if group.group_name == default_group().group_name:
        return "world"
    if group.group_desc and group.group_desc != "undefined":
        return group.group_desc
    return short_ranks(_members(group))


class UnmatchedCalls:
    """The calls of one rank not yet matched to a profiler event."""

    def __init__(self, calls: Iterable[Call]):
        self._queues: dict[tuple[int, str], deque[Call]] = defaultdict(deque)
        for call in calls:
            self._queues[call.thread, "c10d::" + call.op].append(call)

    def next(self, event: ProfilerEvent, phase: str) -> Call | None:
        """The call of a `c10d::` event, with its phase and issue time filled in; None if it was not recorded."""
        if not (queue := self._queues.get((event.thread, event.name))):
            return None
        call = queue.popleft()
        call.phase, call.start_ns = phase, event.start_ns
        return call
