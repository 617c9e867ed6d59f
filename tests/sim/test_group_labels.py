"""No two groups of a rank are called alike: each has a stream of its own, and errors tell them apart."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib import DeadlockError, launch
from lablib.run import Run

RANKS = 3
_members = st.lists(st.integers(0, RANKS - 1), unique=True, min_size=1).map(sorted)
_groups = st.lists(st.tuples(_members, st.sampled_from([None, "tp", "0,1", "world"])), min_size=1, max_size=5)


def communicate(made: list[tuple[list[int], str | None]], destroys: bool = False) -> None:
    """An all_reduce in each group, all under way at the same time."""
    groups = [dist.new_group(members, group_desc=desc) for members, desc in made]
    mine: list[Any] = [group for group, (members, _) in zip(groups, made, strict=True) if dist.get_rank() in members]
    tensors = [torch.ones(1 << 16) for _ in mine]
    for work in [dist.all_reduce(x, group=group, async_op=True) for x, group in zip(tensors, mine, strict=True)]:
        assert work is not None
        work.wait()
    if destroys:
        dist.barrier()
        for group in mine:
            dist.destroy_process_group(group)


def streams(run: Run, rank: int) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {}
    for span in run.timeline.spans:
        if span.rank == rank and span.stream.startswith("comm:"):
            found.setdefault(span.stream, []).append((span.start_s, span.end_s))
    return found


@settings(max_examples=30, deadline=None)
@given(_groups)
def test_each_group_of_a_rank_has_a_stream_of_its_own(made):
    run = launch(communicate, made, ranks=RANKS)
    for rank in range(RANKS):
        found = streams(run, rank)
        assert [len(spans) for spans in found.values()] == [1] * sum(rank in members for members, _ in made)
    names = {transfer.group for transfer in run.traffic.transfers}
    assert all(desc in names for _, desc in made if desc not in (None, "world"))  # the first has its name


def test_a_group_may_have_the_name_of_one_that_is_destroyed():
    def program() -> None:
        for _ in range(3):
            communicate([([0, 1], None), ([0, 1], "tp")], destroys=True)

    run = launch(program, ranks=2)
    assert {transfer.group for transfer in run.traffic.transfers} == {"world", "0,1", "tp"}


def test_groups_of_several_ranks_with_one_description_share_it():
    made: list[tuple[list[int], str | None]] = [([0, 1], "tp"), ([2], "tp"), ([0, 2], "dp")]
    run = launch(communicate, made, ranks=3)
    assert {transfer.group for transfer in run.traffic.transfers} == {"tp", "dp"}


def test_gloo_calls_them_the_same():
    made: list[tuple[list[int], str | None]] = [([0, 1], None), ([0, 1], None), ([0, 1], "tp"), ([0, 1], "tp")]
    runs = [launch(communicate, made, ranks=2, backend=backend) for backend in ("sim", "gloo")]
    simulated, real = ([transfer.group for transfer in run.traffic.transfers] for run in runs)
    assert sorted(simulated) == sorted(real) == ["0,1", "0,1 (2)", "tp", "tp (2)"]


def test_a_deadlock_tells_two_groups_of_the_same_ranks_apart():
    def program() -> None:
        groups = [dist.new_group([0, 1]) for _ in range(2)]
        for group in groups if dist.get_rank() == 0 else reversed(groups):
            dist.all_reduce(torch.ones(1), group=group)

    with pytest.raises(DeadlockError) as caught:
        launch(program, ranks=2)
    assert "rank 0 waits in all_reduce #0 of group 0,1;" in str(caught.value)
    assert "rank 1 waits in all_reduce #0 of group 0,1 (2);" in str(caught.value)
