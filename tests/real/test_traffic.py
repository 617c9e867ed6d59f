"""From the calls of ranks to communications: when a message begins, and when it is over."""

from dataclasses import replace

import pytest

from lablib.real.measurement.calls import Call
from lablib.real.measurement.events import ProfilerEvent
from lablib.real.measurement.measure import Measurement
from lablib.real.measurement.spans import spans_of
from lablib.real.measurement.traffic import communications, traffic_of
from lablib.record.timeline import WAIT

MS = 1_000_000
SEND = Call("send", "send", "world", "0", (0, 1), 0, 0, 1, 0, 1024.0, 1024.0, 7, start_ns=10 * MS, end_ns=200 * MS)
RECEIVE = replace(SEND, op="recv_", name="recv", sent_bytes=0.0, start_ns=30 * MS, end_ns=40 * MS)


def measured(send: Call, receive: Call) -> list[Measurement]:
    return [Measurement(0, calls=[send]), Measurement(0, calls=[receive])]


def test_a_message_is_over_when_its_receiver_has_it_however_late_the_sender_waits():
    ranks = measured(SEND, RECEIVE)
    spans = [span for span in communications(ranks, 0) if not span.stream.startswith(WAIT)]
    assert [(span.rank, span.start_s, span.end_s) for span in spans] == [(0, 0.03, 0.04), (1, 0.03, 0.04)]
    (transfer,) = traffic_of(ranks, 0, "gloo").transfers
    assert (transfer.start_s, transfer.end_s) == (0.03, 0.04)


def test_a_sender_that_has_waited_before_ends_then():
    ranks = measured(replace(SEND, end_ns=35 * MS), RECEIVE)
    spans = {span.rank: span for span in communications(ranks, 0) if not span.stream.startswith(WAIT)}
    assert (spans[0].end_s, spans[1].end_s) == (0.035, 0.04)
    assert traffic_of(ranks, 0, "gloo").transfers[0].end_s == 0.04


@pytest.mark.parametrize("send_ends_ns", [0, 200 * MS])
def test_a_receive_whose_time_nobody_saw_sets_no_end(send_ends_ns):
    ranks = measured(replace(SEND, end_ns=send_ends_ns), replace(RECEIVE, end_ns=0))
    assert [span.end_s for span in communications(ranks, 0) if span.stream == "comm:world:send"] == (
        [0.2] if send_ends_ns else []
    )
    assert traffic_of(ranks, 0, "gloo").transfers[0].end_s == (0.2 if send_ends_ns else 0.03)


def test_a_collective_ends_when_its_last_member_does():
    call = replace(SEND, op="allreduce_", name="all_reduce", source=-1, target=-1)
    ranks = measured(call, replace(call, start_ns=30 * MS, end_ns=50 * MS))
    assert traffic_of(ranks, 0, "gloo").transfers[0].end_s == 0.2


def call_and_work(one: Call, issued_us: tuple[int, int], worked_us: tuple[int, int]) -> list[ProfilerEvent]:
    """What the profiler sees of a message on gloo: the call, and below its name with "gloo:" what carries it out."""
    (issued, returned), (began, ended) = issued_us, worked_us
    return [
        ProfilerEvent(f"c10d::{one.op}", issued * 1000, returned * 1000, 7, id=1, is_operation=True),
        ProfilerEvent(f"gloo:{one.name}", began * 1000, ended * 1000, 7, id=2),
    ]


def test_a_message_that_arrives_before_gloo_says_that_it_is_sent_began_with_its_call():
    send, receive = replace(SEND, end_ns=0), replace(RECEIVE, end_ns=0)
    spans_of(call_and_work(send, (50, 95), (90, 99)), [send], 7, on_gpu=False)
    spans_of(call_and_work(receive, (10, 30), (20, 80)), [receive], 7, on_gpu=False)
    assert (send.start_ns, send.end_ns) == (50_000, 99_000) and (receive.start_ns, receive.end_ns) == (10_000, 80_000)
    (transfer,) = traffic_of(measured(send, receive), 0, "gloo").transfers
    assert (transfer.start_s, transfer.end_s) == (50e-6, 80e-6)
