"""`simulate=`: some ranks run, and what they do is to the bit what they do among all."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib import LaunchError, Run, SlowRank, launch

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")  # torch 2.13 has new names for some
Grid = tuple[int, int, int]  # data, pipeline, tensor


def place(rank: int, grid: Grid) -> tuple[int, int, int]:
    """(data, pipeline, tensor) coordinates; tensor changes fastest."""
    _, stages, width = grid
    return rank // (stages * width), rank // width % stages, rank % width


def groups_of(grid: Grid) -> dict[str, dist.ProcessGroup]:
    """This rank's group of each axis. All ranks make all groups, in one order."""
    me, found = place(dist.get_rank(), grid), {}
    for axis, name in enumerate(("dp", "pp", "tp")):
        lines: dict[tuple, list[int]] = {}
        for rank in range(dist.get_world_size()):
            lines.setdefault(tuple(c for i, c in enumerate(place(rank, grid)) if i != axis), []).append(rank)
        for line, ranks in lines.items():
            group = dist.new_group(ranks, group_desc=f"{name}{'.'.join(map(str, line))}")
            if line == tuple(c for i, c in enumerate(me) if i != axis):
                found[name] = group
    return found


def step(grid: Grid, micro_batches: int, rows: int, numbers: int, rails: bool) -> float:
    """One training step in outline: GPipe over stages, tensor-parallel products, gradients over replicas."""
    rank, (_, stage, _), width = dist.get_rank(), place(dist.get_rank(), grid), grid[2]
    groups, weight = groups_of(grid), torch.zeros(64, 64)
    kept = []
    for _ in range(micro_batches):
        x = torch.zeros(rows, 64)
        if stage > 0:
            dist.recv(x, src=rank - width)
        kept.append(x @ weight)
        dist.all_reduce(kept[-1], group=groups["tp"])
        if stage < grid[1] - 1:
            dist.send(x, dst=rank + width)
    gradient = torch.zeros(numbers * grid[0])
    parts = torch.zeros(numbers)
    work = dist.all_reduce(gradient, group=groups["dp"], async_op=True)
    weight = weight @ weight  # hides some of it
    assert work is not None
    work.wait()
    dist.reduce_scatter_tensor(parts, gradient, group=groups["dp"])
    dist.all_gather_into_tensor(gradient, parts, group=groups["dp"])
    if rails:
        dist.all_to_all_single(gradient, gradient.clone(), group=groups["dp"])
    dist.broadcast(parts, src=0)
    dist.barrier()
    return float(len(kept))


def run(grid: Grid, *work: object, simulate: Sequence[int] | None = None, cluster: str = "dgx-h100") -> Run:
    ranks = grid[0] * grid[1] * grid[2]
    return launch(step, grid, *work, ranks=ranks, cluster=cluster, fidelity="shapes", simulate=simulate)


def same_for_the_simulated(some: Run, whole: Run) -> None:
    ranks = some.timeline.ranks
    for rank in ranks:
        mine, theirs = (
            [(s.stream, s.name, s.phase, s.start_s, s.end_s, s.flops, s.size_bytes) for s in one.timeline.select(rank)]
            for one in (some, whole)
        )
        assert mine == theirs
        assert some.memory.peak_bytes(rank) == whole.memory.peak_bytes(rank)
        assert some.memory.at_peak(rank) == whole.memory.at_peak(rank)
        assert some.values[rank] == whole.values[rank]
    assert some.timeline.makespan_s == whole.timeline.makespan_s
    known = set(ranks)
    theirs = [t for t in whole.traffic.transfers if known & set(t.ranks)]
    told = lambda t: (t.group, t.name, t.ranks, t.algorithm, t.tensor_bytes, t.sent_bytes, t.start_s, t.end_s)  # noqa: E731
    assert sorted(map(told, some.traffic.transfers)) == sorted(map(told, theirs))


sizes = st.tuples(st.integers(1, 4), st.integers(1, 64), st.integers(1, 10**6), st.booleans())


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 4), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), sizes, st.data())
def test_one_replica_of_a_grid_takes_the_time_memory_and_traffic_it_takes_among_all(data, stages, width, work, draws):
    grid, one = (data, stages, width), stages * width
    whole = run(grid, *work)
    replica = draws.draw(st.integers(0, data - 1), label="replica")
    same_for_the_simulated(run(grid, *work, simulate=range(replica * one, (replica + 1) * one)), whole)


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 3), st.sampled_from([1, 2, 4]), st.sampled_from([2, 4, 8]), sizes)
def test_one_rank_a_stage_is_enough_where_the_others_do_the_same(data, stages, width, work):
    grid = (data, stages, width)
    same_for_the_simulated(run(grid, *work, simulate=range(0, stages * width, width)), run(grid, *work))


def test_simulating_all_is_what_leaving_it_out_is():
    whole = run((2, 2, 2), 2, 8, 100, True)
    every = run((2, 2, 2), 2, 8, 100, True, simulate=range(8))
    assert every.timeline == whole.timeline and every.notes == whole.notes and every.timeline.simulated is None


def test_a_run_says_who_was_simulated_and_tables_hold_these():
    some = run((4, 2, 2), 2, 8, 100, False, simulate=[5, 7])
    assert some.timeline.ranks == (5, 7) and some.ranks == 16 and some.values[4:8] == [None, 2.0, None, 2.0]
    assert "2 of 16 ranks were simulated" in some.notes[0]
    assert list(some.summary().table().index) == ["5", "7", "all"] and list(some.memory.table().index) == [5, 7]
    assert list(some.timeline.summary().index) == [5, 7]
    with pytest.raises(ValueError, match="rank 4 was not simulated: .* give one of 5, 7"):
        some.timeline.busy_s(4)
    with pytest.raises(ValueError, match="rank 4 was not simulated"):
        some.memory.peak_bytes(4)
    layout: Any = some.timeline.figure().layout
    lanes = layout.yaxis.ticktext
    assert {lane for lane in lanes if "rank" in lane} == {"<b>rank 5</b>", "<b>rank 7</b>"}


def test_the_trace_of_some_ranks_can_be_read(tmp_path):
    import json

    path = run((4, 2, 2), 2, 8, 100, False, simulate=[5, 7]).to_perfetto(tmp_path / "trace.json")
    assert {e["pid"] for e in json.loads(path.read_text())["traceEvents"]} == {6, 8}


@pytest.mark.parametrize(("rank", "call", "verb"), [(0, dist.send, "sends to"), (0, dist.recv, "receives from")])
def test_a_message_to_or_from_a_phantom_is_refused_by_name(rank, call, verb):
    def program() -> None:
        if dist.get_rank() == rank:
            call(torch.zeros(2), 3)

    message = rf"rank 0 {verb} rank 3, which is not simulated \(test_phantoms.py:\d+: .*add rank 3 to simulate="
    with pytest.raises(LaunchError, match=message):
        launch(program, ranks=4, fidelity="shapes", simulate=[0, 1])


def test_a_deadlock_names_simulated_ranks_alone():
    def program() -> None:
        if dist.get_rank() < 2:
            dist.barrier()

    with pytest.raises(LaunchError, match="rank 2 is not there"):
        launch(program, ranks=8, fidelity="shapes", simulate=[0, 1, 2])


@pytest.mark.parametrize(
    ("simulate", "options", "message"),
    [
        ([], {}, "1 or more: got \\[\\]"),
        (3, {}, "must hold the ranks to run"),
        ("01", {}, "must hold the ranks to run"),
        ([0, 4], {}, "ranks 0 to 3, each once: got rank 4"),
        ([1, 1], {}, "got one of them twice"),
        ([True], {}, "must hold the ranks to run"),
        ([0], {"fidelity": "values"}, 'needs fidelity="shapes"'),
        ([0], {"backend": "gloo", "fidelity": "values"}, "is for the simulator"),
        ([0], {"faults": [SlowRank(0, 2.0)]}, "faults happen to single ranks"),
    ],
)
def test_what_cannot_be_simulated_is_refused(simulate, options, message):
    with pytest.raises(ValueError, match=message):
        launch(dist.barrier, **({"ranks": 4, "fidelity": "shapes", "simulate": simulate} | options))
