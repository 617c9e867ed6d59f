"""`simulate=`: some ranks run, and what they do is to the bit what they do among all."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from lablib import LaunchError, Run, SlowRank, launch
from lablib.parallel import DataParallel, Zero

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


@settings(deadline=None, max_examples=12)
@given(st.integers(1, 4), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), sizes, st.data())
def test_one_replica_of_a_grid_takes_the_time_memory_and_traffic_it_takes_among_all(data, stages, width, work, draws):
    grid, one = (data, stages, width), stages * width
    whole = run(grid, *work)
    replica = draws.draw(st.integers(0, data - 1), label="replica")
    same_for_the_simulated(run(grid, *work, simulate=range(replica * one, (replica + 1) * one)), whole)


@settings(deadline=None, max_examples=8)
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


# ---- every collective, and any of its members ----


def parts(n: int, size: int, uneven: bool = False) -> list[Tensor]:
    """A tensor for each rank."""
    return [torch.zeros(size + place * uneven, 2) for place in range(n)]


def coalesced(n: int, root: int, size: int) -> None:
    with dist._coalescing_manager(async_ops=True) as manager:  # pyright: ignore[reportPrivateImportUsage]
        for part in parts(3, size, uneven=True):
            dist.all_reduce(part)
    manager.wait()


def all_gather_uneven(n: int, root: int, size: int) -> None:
    pieces = parts(n, size, uneven=True)
    dist.all_gather(pieces, pieces[dist.get_rank()])


def reduce_scatter_uneven(n: int, root: int, size: int) -> None:
    pieces = parts(n, size, uneven=True)
    dist.reduce_scatter(pieces[dist.get_rank()], pieces)


def scatter(n: int, root: int, size: int) -> None:
    pieces = parts(n, size)
    dist.scatter(torch.zeros(size, 2), pieces if dist.get_rank() == root else None, src=root)


def gather(n: int, root: int, size: int) -> None:
    pieces = parts(n, size)
    dist.gather(torch.zeros(size, 2), pieces if dist.get_rank() == root else None, dst=root)


def all_to_all_uneven_here(n: int, root: int, size: int) -> None:
    """Every rank sends one row more to one member, and to all the same: the fullest message is the same for all."""
    rows = [size + (place == root) for place in range(n)]
    wanted = [size + (dist.get_rank() == root)] * n
    dist.all_to_all_single(torch.zeros(sum(wanted), 2), torch.zeros(sum(rows), 2), wanted, rows)


COLLECTIVES: dict[str, Callable[[int, int, int], object]] = {
    "all_reduce": lambda n, root, size: dist.all_reduce(torch.zeros(size)),
    "broadcast": lambda n, root, size: dist.broadcast(torch.zeros(size), src=root),
    "reduce": lambda n, root, size: dist.reduce(torch.zeros(size), dst=root),
    "all_gather": lambda n, root, size: dist.all_gather(parts(n, size), torch.zeros(size, 2)),
    "all_gather, uneven": all_gather_uneven,
    "all_gather_into_tensor": lambda n, root, size: dist.all_gather_into_tensor(
        torch.zeros(n * size), torch.zeros(size)
    ),
    "reduce_scatter": lambda n, root, size: dist.reduce_scatter(torch.zeros(size, 2), parts(n, size)),
    "reduce_scatter, uneven": reduce_scatter_uneven,
    "reduce_scatter_tensor": lambda n, root, size: dist.reduce_scatter_tensor(torch.zeros(size), torch.zeros(n * size)),
    "scatter": scatter,
    "gather": gather,
    "all_to_all": lambda n, root, size: dist.all_to_all(parts(n, size), parts(n, size)),
    "all_to_all_single": lambda n, root, size: dist.all_to_all_single(torch.zeros(n * size), torch.zeros(n * size)),
    "coalesced": coalesced,
    "barrier": lambda n, root, size: dist.barrier(),
}
some_ranks = st.integers(1, 9).flatmap(
    lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1).map(sorted), st.integers(0, n - 1))
)


@settings(deadline=None, max_examples=25)
@given(
    some_ranks, st.lists(st.tuples(st.sampled_from(sorted(COLLECTIVES)), st.integers(1, 10**5)), min_size=1, max_size=6)
)
def test_any_members_of_any_collective_take_the_time_memory_and_traffic_they_take_among_all(ranks, calls):
    n, simulate, root = ranks

    def program() -> None:
        for name, size in calls:
            COLLECTIVES[name](n, root, size)

    whole, some = (launch(program, ranks=n, fidelity="shapes", simulate=which) for which in (None, simulate))
    same_for_the_simulated(some, whole)


@pytest.mark.parametrize("simulate", [[0], [2], [0, 3]])
def test_parts_of_an_all_to_all_that_do_not_fit_are_refused_with_the_ranks_of_these_parts(simulate):
    def program() -> None:
        rows = [1, 2, 3, 4]
        wanted = [rows[dist.get_rank()]] * 4
        wanted[simulate[-1]] += dist.get_rank() == simulate[0]
        dist.all_to_all_single(torch.zeros(sum(wanted)), torch.zeros(10), wanted, rows)

    me, other, given_rows = simulate[0], simulate[-1], simulate[0] + 1
    message = f"rank {other} sends {given_rows} elements? to rank {me}, which expects {given_rows + 1}"
    with pytest.raises(LaunchError, match=message):
        launch(program, ranks=4, fidelity="shapes", simulate=simulate)


# ---- a model on replicas ----


def ddp(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model)


def zero(stage: int) -> Callable[[nn.Module], nn.Module]:
    return lambda model: Zero(model, lambda params: torch.optim.SGD(params, lr=0.1), stage=stage)


WRAPPERS: dict[str, Callable[[nn.Module], Any]] = {
    "DistributedDataParallel": ddp,
    "fully_shard": lambda model: fully_shard(model),
    "DataParallel": DataParallel,
    "ZeRO 1": zero(1),
    "ZeRO 3": zero(3),
}


def train(wrap: Callable[[nn.Module], Any], width: int) -> None:
    model = wrap(nn.Sequential(nn.Linear(width, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, width)))
    optimizer = model if isinstance(model, Zero) else torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.zeros(4, width)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("name", sorted(WRAPPERS))
@settings(deadline=None, max_examples=3)
@given(some_ranks, st.integers(1, 40))
def test_any_replicas_of_a_model_train_as_they_do_among_all(name, ranks, width):
    n, simulate, _ = ranks
    work = (train, WRAPPERS[name], width)
    whole, some = (launch(*work, ranks=n, fidelity="shapes", simulate=which) for which in (None, simulate))
    same_for_the_simulated(some, whole)


def test_ddp_still_finds_that_two_simulated_ranks_hold_different_models():
    def program() -> None:
        DistributedDataParallel(nn.Linear(4, 4, bias=dist.get_rank() < 3))

    with pytest.raises(LaunchError, match="rank [13] has .*, rank [13] has"):
        launch(program, ranks=4, fidelity="shapes", simulate=[1, 3])


# ---- true values (objects, arrays) under shapes ----


def real(rank: int, size: int = 1) -> Tensor:
    return torch.from_numpy(np.full(size, rank))


def told(rank: int, n: int, root: int) -> dict[str, Any]:
    """What a rank learns from a root."""
    numbers, objects, mine, pieces = (
        real(rank, 2),
        [f"of {rank}"],
        [None],
        [real(10 * rank + place) for place in range(n)],
    )
    dist.broadcast(numbers, src=root)
    dist.broadcast_object_list(objects, src=root)
    dist.scatter_object_list(mine, [f"of {rank} for {place}" for place in range(n)], src=root)
    piece = real(-1)
    dist.scatter(piece, pieces if rank == root else None, src=root)
    return {"numbers": numbers.tolist(), "objects": objects, "mine": mine, "piece": piece.tolist()}


@settings(deadline=None, max_examples=15)
@given(some_ranks, st.data())
def test_what_a_simulated_root_gives_is_what_it_gives_among_all(ranks, draws):
    n, simulate, _ = ranks
    root = draws.draw(st.sampled_from(simulate), label="root")

    def program() -> dict[str, Any]:
        return told(dist.get_rank(), n, root)

    whole, some = (launch(program, ranks=n, fidelity="shapes", simulate=which).values for which in (None, simulate))
    assert [some[rank] for rank in simulate] == [whole[rank] for rank in simulate]
    assert whole[n - 1]["piece"] == [10 * root + n - 1] and whole[n - 1]["objects"] == [f"of {root}"]


FROM_ALL: dict[str, Callable[[int], object]] = {
    "all_reduce": lambda n: dist.all_reduce(real(1)),
    "reduce": lambda n: dist.reduce(real(1), dst=1),
    "gather": lambda n: dist.gather(real(1), [real(0) for _ in range(n)] if dist.get_rank() == 1 else None, dst=1),
    "all_gather": lambda n: dist.all_gather([real(0) for _ in range(n)], real(1)),
    "all_gather_into_tensor": lambda n: dist.all_gather_into_tensor(real(0, n), real(1)),
    "reduce_scatter": lambda n: dist.reduce_scatter(real(1), [real(0) for _ in range(n)]),
    "reduce_scatter_tensor": lambda n: dist.reduce_scatter_tensor(real(1), real(0, n)),
    "all_to_all": lambda n: dist.all_to_all([real(0) for _ in range(n)], [real(0) for _ in range(n)]),
    "all_to_all_single": lambda n: dist.all_to_all_single(real(0, n), real(0, n)),
    "all_gather (object)": lambda n: dist.all_gather_object([None] * n, dist.get_rank()),
}


@pytest.mark.parametrize("name", sorted(FROM_ALL))
def test_values_that_phantoms_would_give_are_refused_by_name(name):
    call = name.removesuffix(" (object)")
    message = (
        rf"rank [13] needs the values that ranks 0, 2, 4 give in {call} of group world, and they are not simulated "
        rf"\(test_phantoms.py:\d+: .*add ranks 0, 2, 4 to simulate="
    )
    with pytest.raises(LaunchError, match=message):
        launch(FROM_ALL[name], 5, ranks=5, fidelity="shapes", simulate=[1, 3])


@pytest.mark.parametrize(
    "tell",
    [
        lambda: dist.broadcast(real(1), src=2),
        lambda: dist.scatter(real(1), None, src=2),
        lambda: dist.broadcast_object_list([None], src=2),
    ],
)
def test_values_that_a_phantom_root_would_give_are_refused_by_name(tell):
    with pytest.raises(
        LaunchError, match="needs the values that rank 2 gives in (broadcast|scatter) .* add rank 2 to simulate="
    ):
        launch(tell, ranks=5, fidelity="shapes", simulate=[1, 3])


def test_values_for_a_phantom_root_are_not_asked_for():
    def program() -> None:
        dist.reduce(real(1), dst=2)
        dist.gather(real(1), None, dst=2)
        dist.all_reduce(real(0, 0))

    launch(program, ranks=5, fidelity="shapes", simulate=[1, 3])
