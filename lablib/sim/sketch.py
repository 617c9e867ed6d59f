# pyright: reportPrivateImportUsage=false, reportAssignmentType=false, reportAttributeAccessIssue=false
"""A minimal simulator in one file: threads, a baton and a clock. Read it before the engine.

A rank is a thread, and only the one that has the baton runs. It runs until it must wait for others. Then the baton goes
to the runnable rank with the smallest virtual clock, ties to the lowest rank. Consequences: a program runs the same
every time, no lock is needed, and if no rank is runnable, there is a deadlock.

Calls are matched by count: the third call of a rank on a group matches the others' third. When the last one joins, the
data moves; ranks go on at the largest of their clocks + LATENCY_S + largest bytes sent / BANDWIDTH_BYTES_PER_S.

`lablib.launch` gives the same values and finds the same deadlocks. It adds costs of operators and calls, shared wires,
memory, faults, the line of an error, checks (here: of a call's name), and the full state of a process per rank.
"""

import copy
import functools
import sys
import threading
from collections import Counter, namedtuple
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from lablib.errors import CollectiveMismatchError, DeadlockError, RankError, Wait
from lablib.torch_compat import World, current, place, set_thread_isolation_mode

LATENCY_S, BANDWIDTH_BYTES_PER_S = 10e-6, 10e9
SketchRun = namedtuple("SketchRun", ["values", "clocks_s"])  # return value and final clock of each rank
_COMBINE = {"SUM": torch.add, "AVG": torch.add, "PRODUCT": torch.mul, "MIN": torch.fmin, "MAX": torch.fmax}


def run_sketch(fn: Callable[..., Any], ranks: int, args: Sequence[Any] = ()) -> SketchRun:
    """Run `fn(*args)` on every rank. Raises DeadlockError, CollectiveMismatchError, or RankError if a rank raised."""
    dist.Backend.register_backend("sketch", _ProcessGroup, extended_api=True, devices=["cpu"])
    run = SimpleNamespace(size=ranks, store=dist.HashStore(), baton=threading.Semaphore(0), meetings={}, errors=[])
    all_ranks = [_Rank(number, run, lambda: fn(*copy.deepcopy(args))) for number in range(ranks)]
    set_thread_isolation_mode(True)  # keeps torch's process-wide C++ state per thread
    try:
        with torch.random.fork_rng(devices=[]), patch.dict("os.environ"), patch.object(sys, "excepthook"):
            with patch.object(*place("process_world")):
                _take_turns(all_ranks, run.baton, run.errors)
    finally:
        set_thread_isolation_mode(False)
    if run.errors:
        raise run.errors[0]
    return SketchRun([rank.value for rank in all_ranks], [rank.clock_s for rank in all_ranks])


def _take_turns(ranks: "Sequence[_Rank]", baton: threading.Semaphore, errors: list[Exception]) -> None:
    """Give the baton to one rank after another until all have finished; after an error, once to each, to unwind it."""
    while left := [rank for rank in ranks if not rank.has_finished]:
        runnable = [rank for rank in left if rank.waits_for is None]
        if not runnable and not errors:
            waits = [rank.waits_for.told() if rank.waits_for else Wait(rank.number, "has finished") for rank in ranks]
            errors.append(DeadlockError(f"deadlock: {len(left)} of {len(ranks)} ranks wait and none can go on.", waits))
        rank = min(left if errors else runnable, key=lambda rank: (rank.clock_s, rank.number))
        setattr(*place("process_world"), rank)
        rank.turn.release()
        baton.acquire()
    for rank in ranks:
        rank.thread.join()


class _Rank(World):
    """A thread, its clock, the call that it waits for (None: runnable), and torch's registry of its groups."""

    pg_map = pg_names = pg_group_ranks = pg_backend_config = tags_to_pg = pg_to_tag = group_count = None  # its own:

    def __init__(self, number: int, run: SimpleNamespace, program: Callable[[], Any]):
        super().__init__()
        vars(self).update(pg_map={}, pg_names={}, pg_group_ranks={}, pg_backend_config={}, tags_to_pg={}, pg_to_tag={})
        self.number, self.run, self.turn, self.group_count = number, run, threading.Semaphore(0), 0
        self.clock_s, self.value, self.waits_for, self.has_finished = 0.0, None, None, False
        self.thread = threading.Thread(target=self.live, args=[program], name=f"sketch rank {number}", daemon=True)
        self.thread.start()

    def live(self, program: Callable[[], Any]) -> None:
        self.turn.acquire()
        try:
            dist.init_process_group("sketch", rank=self.number, world_size=self.run.size, store=self.run.store)
            self.value = None if self.run.errors else program()
        except BaseException as error:
            self.run.errors.append(RankError(self.number, error))
            self.run.errors[-1].__cause__ = error
        if dist.is_initialized():
            dist.destroy_process_group()
        self.has_finished = True
        self.run.baton.release()


class _Call(dist.Work):
    """One rank's call and its handle. `meeting` maps each participant to its call; None: not joined."""

    def __init__(self, rank: _Rank, name: str, sent, received, meeting):
        super().__init__()
        self.rank, self.name, self.meeting, self.clock_s, self.end_s = rank, name, meeting, rank.clock_s, 0.0
        self.sent, self.received = [t.data for t in sent], [t.data for t in received]  # without autograd's history

    def wait(self, timeout: Any = None) -> bool:
        if not self.end_s:  # not all have joined, or they mismatch
            self.rank.waits_for = self
            self.rank.run.baton.release()
            self.rank.turn.acquire()
            if self.rank.run.errors:
                raise SystemExit  # unwinds this rank; not an Exception, which a program might catch
        self.rank.clock_s = max(self.rank.clock_s, self.end_s)
        return True

    is_completed = wait  # a poll waits, too

    def get_future(self) -> torch.futures.Future:
        self.wait()
        future = torch.futures.Future()
        future.set_result(self.received)
        return future

    def told(self) -> Wait:
        missing = tuple(number for number, call in self.meeting.items() if not call)
        return Wait(self.rank.number, f"waits in {self.name} for {missing}", for_ranks=missing, operation=self.name)


class _ProcessGroup(dist.ProcessGroup):
    """One rank's end of a group. Each call gives the result of member i as a function of all members' inputs."""

    group_name, _device_types = "", [torch.device("cpu")]

    def __init__(self, options: Any, _: Any):
        super().__init__(options.group_rank, options.group_size)  # pyright: ignore[reportCallIssue]
        self.group_name, self._rank, self._num_calls = options.group_id, current("process_world"), Counter()
        self._members = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))

    def allreduce(self, tensors, opts):
        return self._call("all_reduce", tensors, tensors, lambda sent, i: [_reduced(opts, [s[0] for s in sent])])

    def broadcast(self, tensors, opts):
        return self._call("broadcast", tensors, tensors, lambda sent, i: sent[opts.rootRank])

    def allgather(self, outputs, inputs, opts=None, name="all_gather"):
        return self._call(name, inputs, outputs[0], lambda sent, i: [s[0] for s in sent])

    def all_gather_single(self, output, input, opts=None):
        return self.allgather([output.view(self.size(), -1)], [input], opts, "all_gather_into_tensor")

    def reduce_scatter(self, outputs, inputs, opts, name="reduce_scatter"):
        return self._call(name, inputs[0], outputs, lambda sent, i: [_reduced(opts, [s[i] for s in sent])])

    def reduce_scatter_single(self, output, input, opts):
        return self.reduce_scatter([output], [input.view(self.size(), -1)], opts, "reduce_scatter_tensor")

    def alltoall(self, outputs, inputs, opts=None):
        return self._call("all_to_all", inputs, outputs, lambda sent, i: [s[i] for s in sent])

    def barrier(self, opts=None):
        return self._call("barrier", [], [], lambda sent, i: [])

    def send(self, tensors, dst, tag):
        return self._call("send", tensors, [], lambda sent, i: sent[0], (self.rank(), dst), tag)

    def recv(self, tensors, src, tag):
        return self._call("recv", [], tensors, lambda sent, i: sent[0], (src, self.rank()), tag)

    _allgather_base, _reduce_scatter_base = all_gather_single, reduce_scatter_single  # as torch calls them before 2.13

    def _call(self, name, sent, received, gets, places=None, tag=None) -> _Call:
        """Match the rank's next call with these others (a send with a recv, too). The last one moves the data."""
        rank, members = self._rank, tuple(self._members[i] for i in places) if places else self._members
        self._num_calls[members, tag] += 1
        key = (self.group_name, members, tag, self._num_calls[members, tag])
        meeting = rank.run.meetings.setdefault(key, dict.fromkeys(members))
        meeting[rank.number] = call = _Call(rank, name, sent, received, meeting)
        if tag is None and len({call.name for call in meeting.values() if call}) > 1:
            waits = [Wait(call.rank.number, f"called {call.name}") for call in meeting.values() if call]
            rank.run.errors.append(CollectiveMismatchError("all ranks of a group must make the same calls.", waits))
        elif all(meeting.values()):
            _move([*rank.run.meetings.pop(key).values()], gets)
        return call


def _move(calls: Sequence[_Call], gets) -> None:
    """Move the data once all have joined, and release the waiting ranks."""
    sent = [call.sent for call in calls]
    size_bytes = max(sum(tensor.nbytes for tensor in tensors) for tensors in sent)
    end_s = max(call.clock_s for call in calls) + LATENCY_S + size_bytes / BANDWIDTH_BYTES_PER_S
    for call, tensors in zip(calls, [gets(sent, i) for i in range(len(calls))], strict=True):  # compute all, then write
        for buffer, tensor in zip(call.received, tensors, strict=False):
            buffer.copy_(tensor.reshape(buffer.shape))
        call.end_s = end_s
        if call.rank.waits_for is call:
            call.rank.waits_for, call.rank.clock_s = None, end_s


def _reduced(opts: Any, parts: list[torch.Tensor]) -> torch.Tensor:
    """Combine in rank order; 16-bit floats in float32, rounded once."""
    kind, is_narrow = opts.reduceOp.op.name, parts[0].is_floating_point() and parts[0].itemsize < 4
    total = functools.reduce(_COMBINE[kind], torch.stack(parts).float() if is_narrow else torch.stack(parts))
    return (total / len(parts) if kind == "AVG" else total).to(parts[0].dtype)
