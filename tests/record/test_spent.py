"""Where time went, against every second of every rank one by one, whatever overlaps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib import Run, Span, Timeline, Traffic, Transfer
from lablib.record.spent import TimePart, parts_of

Call = tuple[tuple[int, ...], int]  # when each rank calls, when it is over

calls = st.tuples(st.tuples(st.integers(0, 12), st.integers(0, 12)), st.integers(1, 5)).map(
    lambda call: (call[0], max(call[0]) + call[1])
)
work = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 15), st.integers(1, 5)), max_size=6)


@given(work, st.lists(calls, max_size=3))
def test_every_second_of_a_rank_is_compute_exposed_waiting_or_idle(work, calls: list[Call]):
    spans = [Span(rank, "compute", "mm", "forward", start, start + took) for rank, start, took in work]
    for number, (starts, end) in enumerate(calls):  # each of its own size, so that they meet in any order
        spans += [
            Span(
                rank,
                "comm:world",
                "all_reduce",
                "forward",
                start,
                end,
                0.0,
                number + 1.0,
                transfer_id=number,
                place=rank,
            )
            for rank, start in enumerate(starts)
        ]
    found = parts_of(Run([None] * 2, Timeline.of(spans, 2), Traffic(), [""] * 2, "gloo", "somewhere"))

    first, last = min((s.start_s for s in spans), default=0), max((s.end_s for s in spans), default=0)
    expected = dict.fromkeys(("busy", "exposed", "waiting", "idle"), 0.0)
    for rank in range(2):
        for t in range(int(first), int(last)):
            is_busy = any(at == rank and start <= t < start + took for at, start, took in work)
            is_talking = any(max(starts) <= t < end for starts, end in calls)
            is_waiting = any(starts[rank] <= t < max(starts) for starts, _ in calls)
            state = "busy" if is_busy else "exposed" if is_talking else "waiting" if is_waiting else "idle"
            expected[state] += 1 / 2  # of a mean rank
    assert found[TimePart("makespan", "makespan")].time_s == last - first
    busy = found.get(TimePart("compute", "forward"))
    assert (busy.time_s if busy else 0.0) == pytest.approx(expected.pop("busy"))
    assert {kind: found[TimePart(kind, kind)].time_s for kind in expected} == pytest.approx(expected)
    for number, (starts, end) in enumerate(calls):
        assert found[TimePart("communication", "all_reduce", "world", number + 1.0)].time_s == end - max(starts)


def test_a_message_begins_when_its_sender_has_come_where_the_receiver_was_first():
    send = Span(0, "comm:world:send", "send to 1", "forward", 3.0, 4.0, 0.0, 8.0, transfer_id=5)
    receive = Span(1, "comm:world:recv", "recv from 0", "forward", 1.0, 4.0, 0.0, 8.0, transfer_id=5, place=1)
    traffic = Traffic((Transfer("world", "send", (0, 1), "gloo", 8.0, (8.0, 0.0), 3.0, 4.0, id=5),))
    found = parts_of(Run([None] * 2, Timeline.of([send, receive], 2), traffic, [""] * 2, "gloo", "somewhere"))
    # Time begins with the receiver's call, at 1; the mean of two ranks, one of which receives for a second.
    assert found[TimePart("communication", "send", "world", 8.0)].time_s == 1 / 2
    assert found[TimePart("waiting", "waiting")].time_s == 2 / 2 and found[TimePart("makespan", "makespan")].time_s == 3
