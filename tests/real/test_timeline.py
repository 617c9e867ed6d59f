"""What is measured: spans on streams, phases, communication as it ran, and who met whom."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import record_function

from lablib.real import run_real
from lablib.run import Timeline


def overlapping(timeline: Timeline, rank: int, stream: str) -> bool:
    """Whether some span of this stream ran while a compute span did."""
    compute = timeline.select(rank, "compute")
    return any(c.start_s < s.end_s and s.start_s < c.end_s for s in timeline.select(rank, stream) for c in compute)


def test_compute_spans_are_outermost_operations_below_autograd_with_phases_and_flops():
    def program():
        model = nn.Linear(32, 16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.ones(8, 32)
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        with record_function("evaluate"):
            torch.mm(x, x.T)

    run = run_real(program, ranks=2, backend="gloo")
    for rank in range(2):
        spans = run.timeline.select(rank, "compute")
        assert {s.phase for s in spans} == {"forward", "backward", "optimizer", "evaluate"}
        by_name = {(s.name, s.phase): s for s in spans}
        assert by_name["aten.addmm", "forward"].flops == 2 * 8 * 32 * 16
        assert by_name["aten.mm", "evaluate"].flops == 2 * 8 * 32 * 8
        assert ("aten.mm", "backward") in by_name
        assert not {"aten.linear", "aten.matmul"} & {s.name for s in spans}, "a composite op is its parts"
        assert all(a.end_s <= b.start_s for a, b in zip(spans, spans[1:], strict=False)), "nothing is counted twice"
        assert 0 <= spans[0].start_s and spans[-1].end_s <= run.timeline.makespan_s


def test_collectives_of_groups_are_on_streams_of_their_own_and_meet_once():
    def program():
        rank = dist.get_rank()
        row = dist.new_group([0, 1], group_desc="row")
        dist.new_group([2], group_desc="single")
        x = torch.ones(300)
        dist.all_reduce(x)
        if rank < 2:
            assert isinstance(row, dist.ProcessGroup)
            dist.broadcast(x, src=1, group=row)
        out = [torch.empty(300) for _ in range(3)]
        dist.all_gather(out, x)
        dist.all_to_all_single(torch.empty(300), x)
        if rank == 2:
            dist.send(x, dst=0, tag=4)
        if rank == 0:
            dist.recv(x, tag=4)  # from any source
        dist.barrier()

    run = run_real(program, ranks=3, backend="gloo")
    streams = [
        ["comm:row", "comm:world", "comm:world:recv"],
        ["comm:row", "comm:world"],
        ["comm:world", "comm:world:send"],
    ]
    assert [run.timeline.streams(rank)[1:] for rank in range(3)] == streams
    assert [s.name for s in run.timeline.select(0, "comm:world:recv")] == ["recv from 2"]
    assert [s.name for s in run.timeline.select(2, "comm:world:send")] == ["send to 0"]
    names = [[s.name for s in run.timeline.select(rank, "comm:world")] for rank in range(3)]
    expected = ["all_reduce", "all_gather", "all_to_all_single"]
    assert names == [[*expected, "barrier"]] * 3
    meetings = {t.name: t for t in run.traffic.transfers}
    assert len(run.traffic) == 6 and set(meetings) == {*expected, "broadcast", "send", "barrier"}
    size = 4.0 * 300
    assert meetings["all_reduce"].sent_bytes == pytest.approx((4 / 3 * size,) * 3)
    assert meetings["broadcast"].group == "row" and meetings["broadcast"].ranks == (0, 1)
    assert meetings["broadcast"].sent_bytes == (0, size), "the root's neighbour is the end of the ring"
    assert meetings["all_gather"].tensor_bytes == 3 * size and meetings["all_gather"].sent_bytes == (2 * size,) * 3
    assert meetings["all_to_all_single"].sent_bytes == pytest.approx((2 / 3 * size,) * 3)
    assert (meetings["send"].ranks, meetings["send"].sent_bytes) == ((2, 0), (size, 0))
    assert all(t.algorithm == "gloo" and t.end_s > t.start_s for t in run.traffic.transfers)


def test_an_asynchronous_all_reduce_is_seen_to_overlap_with_computing():
    def program():
        gradient, w = torch.ones(8_000_000), torch.ones(256, 256)
        work = dist.all_reduce(gradient, async_op=True)
        assert work is not None
        while not work.is_completed():
            torch.mm(w, w)
        work.wait()

    timeline = run_real(program, ranks=2, backend="gloo").timeline
    for rank in range(2):
        assert overlapping(timeline, rank, "comm:world")
        (reduce,) = timeline.select(rank, "comm:world")
        assert reduce.size_bytes == 32_000_000


def test_the_buckets_of_ddp_travel_during_backward():
    # A busy machine may hold back the first message for a whole backward: each rank gets several to show it in.
    steps = [f"step {number}" for number in range(1, 6)]

    def program():
        model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(6)))
        model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
        for step in steps:  # DDP forms its buckets after it has seen a first backward
            loss = model(torch.ones(4096, 512)).sum()
            with record_function(step):
                loss.backward()
        return model.module[0].weight.grad

    run = run_real(program, ranks=2, backend="gloo")
    assert torch.equal(*run.values)
    for rank in range(2):
        is_early = []
        for step in steps[1:]:
            buckets = run.timeline.select(rank, "comm:world", phase=step)
            assert len(buckets) > 2 and {s.name for s in buckets} == {"all_reduce"}
            assert sum(s.size_bytes for s in buckets) == 4 * 6 * (512 * 512 + 512)
            last = max(s.end_s for s in run.timeline.select(rank, "compute", phase=step) if s.name == "aten.mm")
            is_early.append(buckets[0].start_s < last)
        assert any(is_early), "the first bucket leaves before backward is done"


def test_without_a_trace_bytes_are_counted_and_nothing_is_timed():
    run = run_real(lambda: dist.all_reduce(torch.ones(4)), ranks=2, backend="gloo", trace=False)
    assert len(run.timeline) == 0
    assert run.traffic.count("all_reduce") == 1 and run.traffic.sent_bytes() == 32
