"""Streams and events in virtual time: what overlaps, what waits, in closed form."""

import pytest

from lablib import find_cluster

pytestmark = pytest.mark.usefixtures("everything_is_given_back")
SETUP = """
import torch
def event():
    return torch.cuda.Event(enable_timing=True)
x = torch.ones(1 << 24, device="cuda")  # larger than the cache, so that a kernel is longer than its launch
def work(times):
    for _ in range(times):
        x.add_(1.0)
begin, end = event(), event()
begin.record()
work(1)
end.record()
one = begin.elapsed_time(end)
def ms(start, stop):
    return round(start.elapsed_time(stop) / one, 6)
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
a, b, c = event(), event(), event()
"""


def printed(run):
    return [float(word) for word in run.stdout[0].split()]


def test_an_events_time_is_the_virtual_time_of_its_stream(simulated):
    run = simulated(SETUP + "a.record(); work(3); b.record(); torch.cuda.synchronize()\nprint(one, ms(a, b))", ranks=1)
    one_ms, three = printed(run)
    adds = [span for span in run.timeline if span.name == "aten.add_"]
    assert three == 3 and one_ms * 1e-3 == pytest.approx(adds[0].duration_s, rel=1e-9)
    device = find_cluster("dgx-h100").device
    assert one_ms * 1e-3 >= 2 * 4 * 2**24 / device.memory_bandwidth_bytes_per_s  # reads and writes 64 MiB


OVERLAP = """
a.record()
with torch.cuda.stream(side):
    work(5)
    b.record()
work(3)
c.record()
"""
WAIT_FOR_AN_EVENT = """
a.record()
work(4)
ready = torch.cuda.current_stream().record_event()
with torch.cuda.stream(side):
    work(1)
    side.wait_event(ready)
    work(2)
    b.record()
torch.cuda.current_stream().wait_stream(side)
work(1)
c.record()
"""
SYNCHRONIZE = """
a.record()
with torch.cuda.stream(side):
    work(5)
torch.cuda.synchronize()
work(1)
b.record()
other = torch.cuda.Stream()
with torch.cuda.stream(other):
    work(1)
    c.record()
"""
READ_A_VALUE = """
a.record()
work(4)
x[0].item()
with torch.cuda.stream(side):
    work(1)
    b.record()
c.record()
"""


@pytest.mark.parametrize(
    ("program", "to_b_and_c", "within"),
    [
        (OVERLAP, [5, 3], 0),
        (WAIT_FOR_AN_EVENT, [6, 7], 0),
        (SYNCHRONIZE, [6, 6], 0.25),  # after the wait each launch takes its time, 0.1 of a kernel
        (READ_A_VALUE, [5, 4], 0.15),  # one launch after the wait
    ],
    ids=["overlap", "event", "synchronize", "item"],
)
def test_streams_overlap_unless_one_waits(simulated, program: str, to_b_and_c: list[int], within: float):
    run = simulated(SETUP + program + "print(ms(a, b), ms(a, c))", ranks=1)
    assert printed(run) == pytest.approx(to_b_and_c, abs=within, rel=0)


def test_a_communication_issued_on_a_side_stream_is_hidden_behind_compute(simulated):
    text = """
import os, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
x = x.cpu().cuda()
dist.init_process_group("nccl")
a.record()
with torch.cuda.stream({stream}):
    dist.all_reduce(torch.ones(1 << 22, device="cuda"))
work(30)
b.record()
"""
    hidden = simulated(SETUP + text.format(stream="side"))
    exposed = simulated(SETUP + text.format(stream="torch.cuda.current_stream()"))
    assert hidden.timeline.exposed_s(0) < 0.1 * exposed.timeline.exposed_s(0)
    assert hidden.timeline.busy_s(0, "comm") == pytest.approx(exposed.timeline.busy_s(0, "comm"), rel=1e-9)


def test_events_refuse_to_measure_what_was_not_recorded(simulated):
    run = simulated(
        SETUP
        + """
for first, second in ((a, event()), (torch.cuda.Event(), torch.cuda.Event())):
    try:
        first.elapsed_time(second)
    except ValueError as error:
        print(error)
""",
        ranks=1,
    )
    assert "must be recorded" in run.stdout[0] and "enable_timing=True" in run.stdout[0]


def test_a_host_that_waits_for_the_device_has_waited_for_all_communication(simulated):
    run = simulated(
        """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
x = torch.ones(4, device="cuda")
dist.all_reduce(x, async_op=True)
early = x.tolist()[0]
torch.cuda.synchronize()
print(early, x[0].item())
""",
        ranks=2,
    )
    assert printed(run) == [1, 2]
    assert not [note for note in run.notes if "never waited" in note]


def test_a_tensor_is_recorded_on_a_stream(simulated):
    """torch's C++ looks at the stream before any mode is asked, and refused the stand-in."""
    run = simulated(
        SETUP
        + """
for stream in (side, torch.cuda.current_stream(), torch.cuda.default_stream()):
    x.record_stream(stream)
print(int(x.is_cuda))
""",
        ranks=1,
    )
    assert printed(run) == [1]
