"""Communication calls of one rank in a Chrome trace of torch.profiler.

A call is a `c10d::` operation. NCCL writes group, sizes and peer into the event `record_param_comms` inside it. gloo
writes none: a call then belongs to the group of all ranks, or to no known group if the job has others; its peer and its
bytes are known only with `record_shapes=True`, the bytes of all-reduces, all-gathers and messages.

Source: torch 2.13, torch/csrc/profiler/util.cpp (saveNcclMeta).
Simplified: the calls of a batch (`batch_isend_irecv`) have no times, as their kernel belongs to none of them; it is
drawn on the stream "comm:unknown".
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any

from lablib.real.measurement.calls import NAMES, Call
from lablib.real.measurement.events import ProfilerEvent
from lablib.real.measurement.volume import sent_of
from lablib.record.rank_text import numbered, short_ranks
from lablib.signature import shown

_MAX_RANKS, _COMMS = 2**20, "record_param_comms"
# Bytes of an element, by the names of NCCL's events and of gloo's; other types have 1.
_ITEM = {"double": 8, "long int": 8, "long": 8, "float": 4, "int": 4, "c10::half": 2, "half": 2, "short": 2}
_ITEM_BYTES = MappingProxyType(_ITEM | {"c10::bfloat16": 2, "bfloat16": 2, "complexfloat": 8})
AGAIN = "write it with profiler.export_chrome_trace(path)"


@dataclass(frozen=True)
class Job:
    """Rank, size and groups of a job: name of a group -> its description and its global ranks."""

    rank: int
    world_size: int
    groups: Mapping[str, tuple[str, tuple[int, ...]]]

    @staticmethod
    def of(info: Mapping[str, Any], path: str) -> "Job":
        rank, world_size = whole(info, "rank"), whole(info, "world_size", 1)
        if not 0 <= rank < world_size <= _MAX_RANKS:
            got = {key: info.get(key) for key in ("rank", "world_size")}
            rule = f"distributedInfo of {path} must have a rank below its world_size"
            raise ValueError(f"{rule}: got {shown(got)}; {AGAIN}")
        config = info.get("pg_config")
        groups = {}
        for one in config if isinstance(config, list) else ():
            ranks = one.get("ranks") if isinstance(one, dict) else None
            if isinstance(ranks, list) and all(type(r) is int and 0 <= r < world_size for r in ranks):
                groups[str(one.get("pg_name"))] = (str(one.get("pg_desc", "")), tuple(ranks))
        return Job(rank, world_size, groups)

    def members(self, comms: Mapping[str, Any]) -> tuple[int, ...]:
        """The ranks of the group of a call; this rank alone if they are unknown."""
        everyone, alone = tuple(range(self.world_size)), (self.rank,)
        if not comms:
            return everyone if all(len(ranks) == self.world_size for _, ranks in self.groups.values()) else alone
        _, listed = self.groups.get(str(comms.get("Process Group Name")), ("", ()))
        text = str(comms.get("Process Group Ranks"))
        if not listed and re.fullmatch(r"\[\d{1,7}(, *\d{1,7})*\]", text):
            listed = tuple(map(int, text[1:-1].split(",")))
        if not listed and whole(comms, "Group size") == self.world_size:
            listed = everyone
        return listed if self.rank in listed and max(listed) < self.world_size else alone

    def label(self, comms: Mapping[str, Any], members: tuple[int, ...]) -> str:
        """The name of the group in timelines: "world", its description, or its ranks."""
        if len(members) == self.world_size and str(comms.get("Process Group Name", "0")) == "0":
            return "world"
        described = str(comms.get("Process Group Description") or "undefined")
        return short_ranks(members) if described in ("undefined", "default_pg") else described


def calls_of(found: Sequence[tuple[ProfilerEvent, Mapping[str, Any]]], job: Job) -> list[Call]:
    comms: dict[int, list[tuple[int, Mapping[str, Any]]]] = {}
    for event, args in found:
        if event.name == _COMMS:
            comms.setdefault(event.thread, []).append((event.start_ns, args))
    calls, counts, labels = list[Call](), Counter[tuple](), dict[str, str]()
    for event, args in found:
        op = event.name.removeprefix("c10d::")
        if not event.is_operation or op == event.name or op not in NAMES:
            continue
        inside = comms.get(event.thread, [])
        place = bisect_left(inside, event.start_ns, key=lambda one: one[0])
        of_nccl = inside[place][1] if place < len(inside) and inside[place][0] < event.end_ns else {}
        call = _call(event, op, args, of_nccl, job)
        if call is None:
            continue
        if call.group_id not in labels:
            labels[call.group_id] = numbered(call.group, set(labels.values()).__contains__)
        call.group = labels[call.group_id]
        call.number(counts)
        calls.append(call)
    return calls


def _call(event: ProfilerEvent, op: str, args: Mapping[str, Any], comms: Mapping[str, Any], job: Job) -> Call | None:
    """The call of an operation; None for a message with an unknown peer."""
    members, name = job.members(comms), NAMES[op]
    source, target, tag = -1, -1, 0
    if name in ("send", "recv"):
        peer, tag = _peer(name, args, comms, members, job)
        if not 0 <= peer < job.world_size:
            return None
        source, target = (job.rank, peer) if name == "send" else (peer, job.rank)
    item = _ITEM_BYTES.get(str(comms.get("dtype")).lower(), 1)
    sizes = [max(0, whole(comms, f"{way} msg nelems")) * item for way in ("In", "Out")]
    n, place = len(members), members.index(job.rank)
    size = float(n * sizes[name == "scatter"] if name in ("gather", "scatter") else max(sizes))
    root = whole(comms, "Rank") if name in ("broadcast", "reduce", "gather", "scatter") else 0
    return Call(
        op=op,
        name=name,
        group=job.label(comms, members),
        group_id=f"{comms.get('Process Group Name', 0)} {members}",
        members=members,
        sequence=-1,
        source=source,
        target=target,
        tag=tag,
        size_bytes=size,
        sent_bytes=sent_of(name, size, n, (place - root) % n),
        thread=event.thread,
        start_ns=event.start_ns,
    )


def _peer(
    name: str, args: Mapping[str, Any], comms: Mapping[str, Any], members: tuple[int, ...], job: Job
) -> tuple[int, int]:
    """Global rank of the other end of a message, and its tag; -1 if unknown."""
    if comms:
        return whole(comms, "Dst Rank" if name == "send" else "Src Rank", -1), 0
    inputs = args.get("Concrete Inputs")  # tensors, group, rank in the group, tag
    if isinstance(inputs, list) and len(inputs) == 4:
        place = whole({"rank": inputs[2]}, "rank", -1)
        return members[place] if 0 <= place < len(members) else -1, whole({"tag": inputs[3]}, "tag")
    return (1 - job.rank if job.world_size == 2 else -1), 0


def whole(values: Mapping[str, Any], name: str, missing: int = 0) -> int:
    """A whole number of 64 bits, also as text; `missing` for any other value."""
    value = values.get(name)
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        return int(value)
    return value if type(value) is int and abs(value) < 2**63 else missing


def payload(args: Mapping[str, Any]) -> float:
    """Bytes of the tensor of an event of gloo; 0 if its shape was not recorded."""
    try:
        return float(prod(args["Input Dims"][0])) * _ITEM_BYTES.get(args["Input type"][0].lower(), 1)
    except (KeyError, IndexError, TypeError, AttributeError, OverflowError, ValueError):
        return 0.0
