"""From the calls of each rank to the communications of the run: who met whom.

Collectives meet by group and sequence number: the third collective of a group on one rank is the third on each. A send
meets the receive with the same group, pair and tag, in order.
"""

from collections.abc import Sequence

from lablib.real.calls import Call
from lablib.real.measure import Measurement
from lablib.run import Traffic, Transfer


def traffic_of(measured: Sequence[Measurement], zero_ns: int, backend: str) -> Traffic:
    """The communications of a run.

    Args:
        measured: what each rank measured, in rank order.
        zero_ns: the host's time at which the run began.
        backend: its name stands as the algorithm: the library chooses one and does not tell.
    """
    meetings: dict[tuple, dict[int, Call]] = {}
    for rank, one in enumerate(measured):
        for call in one.calls:
            pair = (call.source, call.target, call.tag) if call.is_point_to_point else ()
            meetings.setdefault((call.group_id, call.sequence, *pair), {})[_place(call, rank)] = call
    transfers = [t for calls in meetings.values() if (t := _transfer(calls, zero_ns, backend)) is not None]
    return Traffic(tuple(sorted(transfers, key=lambda t: (t.start_s, t.end_s))))


def _place(call: Call, rank: int) -> int:
    """A rank that sends to itself calls twice; a receive is filed under the complement of its rank."""
    return ~rank if call.name == "recv" else rank


def _transfer(calls: dict[int, Call], zero_ns: int, backend: str) -> Transfer | None:
    first = next(iter(calls.values()))
    if first.is_point_to_point:
        send = calls.get(first.source)
        if send is None:  # a receive that nobody answered
            return None
        ranks: tuple[int, ...] = (first.source, first.target)
        name, sent = "send", (send.sent_bytes, 0.0)
    else:
        ranks, name = first.members, first.name
        sent = tuple(calls[rank].sent_bytes if rank in calls else 0.0 for rank in ranks)
    start_ns = min(c.start_ns for c in calls.values())
    end_ns = max(c.end_ns or start_ns for c in calls.values())
    return Transfer(
        group=first.group,
        name=name,
        ranks=ranks,
        algorithm=backend,
        tensor_bytes=max(c.size_bytes for c in calls.values()),
        sent_bytes=sent,
        start_s=(start_ns - zero_ns) / 1e9,
        end_s=(end_ns - zero_ns) / 1e9,
    )
