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

Meeting = dict[int, Call]  # rank -> its call, ~rank -> its receive
_NEVER_NS = 2**63


def traffic_of(measured: Sequence[Measurement], zero_ns: int, backend: str) -> Traffic:
    """The communications of a run that began at `zero_ns` of the host, from the measurements in rank order.

    The backend is used as the algorithm's name: the library does not report its choice.
    """
    found = (_transfer(calls, zero_ns, backend, number) for number, calls in enumerate(_meetings(measured)))
    return Traffic(tuple(sorted((t for t in found if t is not None), key=lambda t: (t.start_s, t.end_s))))


def communications(measured: Sequence[Measurement], zero_ns: int) -> Iterator[Span]:
    """The spans of communication, and of waiting for the last rank before each, as recorded by the profiler."""
    for number, calls in enumerate(_meetings(measured)):
        last_ns, over_ns = _last_ns(calls), _over_ns(calls)
        for place, call in calls.items():
            if call.end_ns:
                end_ns, name = min(call.end_ns, over_ns), (call.span_name, call.phase)
                rank, met_ns = max(place, ~place), min(last_ns, end_ns)
                among = int(call.name == "recv") if call.is_point_to_point else call.members.index(rank)
                spans = [RawSpan(call.stream, *name, met_ns, end_ns, 0.0, call.size_bytes)]
                if call.start_ns < met_ns:
                    spans.insert(0, RawSpan(f"{WAIT}{call.group}", *name, call.start_ns, met_ns))
                yield from (replace(span.at(rank, zero_ns), transfer_id=number, place=among) for span in spans)


def _meetings(measured: Sequence[Measurement]) -> list[Meeting]:
    meetings: dict[tuple, Meeting] = {}
    for rank, one in enumerate(measured):
        for call in one.calls:
            pair = (call.source, call.target, call.tag) if call.is_point_to_point else ()
            # The key of a receive is the complement of its rank, as a rank may send to itself.
            place = ~rank if call.name == "recv" else rank
            meetings.setdefault((call.group_id, call.sequence, *pair), {})[place] = call
    return list(meetings.values())


def _last_ns(calls: Meeting) -> int:
    """The latest known begin of a rank."""
    return max((call.start_ns for call in calls.values() if call.end_ns), default=0)


def _over_ns(calls: Meeting) -> int:
    """The end of a message, if the time at its receiver is known; no limit otherwise, or for a collective."""
    return next((call.end_ns for call in calls.values() if call.name == "recv" and call.end_ns), _NEVER_NS)


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
