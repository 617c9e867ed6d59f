"""Communications of a run: match the calls of all ranks.

Collectives are matched by group and sequence number: the third collective of a group on one rank is the third on each.
A send is matched to the receive with the same group, pair and tag, in order.

A library begins when its rank calls, and then waits for the last one inside. Here, as on the simulator, the time before
the last call is waiting, and the communication begins with that call. A message ends when its receiver has it: the
sender may wait for it much later, at the end of a pipeline's step, and gloo's record of a send ends only then.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from lablib.real.measurement.calls import Call
from lablib.real.measurement.events import RawSpan
from lablib.real.measurement.measure import Measurement
from lablib.record.timeline import WAIT
from lablib.run import Span, Traffic, Transfer

Meeting = dict[int, Call]  # rank -> its call
_NEVER_NS = 2**63


def traffic_of(measured: Sequence[Measurement], zero_ns: int, backend: str) -> Traffic:
    """The communications of a run that began at `zero_ns` of the host, from the measurements in rank order.

    The backend is used as the algorithm's name: the library does not report its choice.
    """
    transfers = [
        transfer
        for number, calls in enumerate(_meetings(measured))
        if (transfer := _transfer(calls, zero_ns, backend, number)) is not None
    ]
    return Traffic(tuple(sorted(transfers, key=lambda t: (t.start_s, t.end_s))))


def communications(measured: Sequence[Measurement], zero_ns: int) -> Iterator[Span]:
    """The spans of communication, and of waiting for the last rank before each, as recorded by the profiler."""
    for number, calls in enumerate(_meetings(measured)):
        last_ns, over_ns = _last_ns(calls), _over_ns(calls)
        for place, call in calls.items():
            if call.end_ns:
                end_ns = min(call.end_ns, over_ns)
                rank, met_ns = max(place, ~place), min(last_ns, end_ns)
                among = int(call.name == "recv") if call.is_point_to_point else call.members.index(rank)
                tie = {"transfer_id": number, "place": among}
                if call.start_ns < met_ns:
                    stream = f"{WAIT}{call.group}"
                    waited = RawSpan(stream, call.span_name, call.phase, call.start_ns, met_ns)
                    yield replace(waited.at(rank, zero_ns), **tie)
                times = (met_ns, end_ns, 0.0, call.size_bytes)
                yield replace(RawSpan(call.stream, call.span_name, call.phase, *times).at(rank, zero_ns), **tie)


def _meetings(measured: Sequence[Measurement]) -> list[Meeting]:
    meetings: dict[tuple, Meeting] = {}
    for rank, one in enumerate(measured):
        for call in one.calls:
            pair = (call.source, call.target, call.tag) if call.is_point_to_point else ()
            meetings.setdefault((call.group_id, call.sequence, *pair), {})[_place(call, rank)] = call
    return list(meetings.values())


def _last_ns(calls: Meeting) -> int:
    """The latest known begin of a rank."""
    return max((call.start_ns for call in calls.values() if call.end_ns), default=0)


def _over_ns(calls: Meeting) -> int:
    """The end of a message, if the time at its receiver is known; no limit otherwise, or for a collective."""
    return next((call.end_ns for call in calls.values() if call.name == "recv" and call.end_ns), _NEVER_NS)


def _place(call: Call, rank: int) -> int:
    """The key of a call: for a receive the complement of its rank, as a rank may send to itself."""
    return ~rank if call.name == "recv" else rank


def _transfer(calls: Meeting, zero_ns: int, backend: str, number: int) -> Transfer | None:
    first = next(iter(calls.values()))
    if first.is_point_to_point:
        send = calls.get(first.source)
        if send is None:  # an unmatched receive
            return None
        ranks: tuple[int, ...] = (first.source, first.target)
        name, sent = "send", (send.sent_bytes, 0.0)
    else:
        ranks, name = first.members, first.name
        sent = tuple(calls[rank].sent_bytes if rank in calls else 0.0 for rank in ranks)
    places = (first.source, ~first.target) if first.is_point_to_point else ranks
    called_ns = [calls[place].start_ns for place in places if place in calls and calls[place].end_ns]
    end_ns = min(max(c.end_ns or c.start_ns for c in calls.values()), _over_ns(calls))
    start_ns = min(_last_ns(calls) or min(c.start_ns for c in calls.values()), end_ns)
    return Transfer(
        group=first.group,
        name=name,
        ranks=ranks,
        algorithm=backend,
        tensor_bytes=max(c.size_bytes for c in calls.values()),
        sent_bytes=sent,
        start_s=(start_ns - zero_ns) / 1e9,
        end_s=(end_ns - zero_ns) / 1e9,
        issued_s=tuple((ns - zero_ns) / 1e9 for ns in called_ns) if len(called_ns) == len(ranks) else (),
        id=number,
    )
