"""`launch` refuses what cannot work in one clear sentence, before anything starts, and places ranks on nodes."""

import os
import re
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from lablib import LaunchError, launch
from lablib.hardware import CLUSTERS, find_cluster


def rank() -> int:
    return dist.get_rank()


@pytest.fixture
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch that gets past the checks fails the test."""

    def started(*args: Any, **options: Any) -> None:
        raise AssertionError("the program was started")

    monkeypatch.setattr("lablib.sim.run_sim", started)
    monkeypatch.setattr("lablib.real.run_real", started)


# ---- refused ----


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize("ranks", [0, -1, 2.5, 4.0, True, False, "4", None])
@pytest.mark.parametrize("backend", ["sim", "gloo"])
def test_ranks_must_be_a_whole_number_of_one_or_more(ranks, backend):
    with pytest.raises(ValueError) as caught:
        launch(rank, ranks=ranks, backend=backend)
    assert str(caught.value) == f"ranks must be a whole number, 1 or more: got {ranks!r}; try ranks=4"


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize("timeout_s", [0, -1, -0.5, float("nan"), True, "10"])
def test_a_time_limit_must_be_positive(timeout_s):
    with pytest.raises(ValueError) as caught:
        launch(rank, timeout_s=timeout_s)
    assert str(caught.value) == f"timeout_s must be positive seconds, or None for the default: got {timeout_s!r}"


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize(("wrong", "nearest"), [("dgx-h10", "dgx-h100"), ("DGX-H100", "dgx-h100"), ("latop", "laptop")])
def test_an_unknown_cluster_is_answered_with_the_nearest_name(wrong, nearest):
    with pytest.raises(ValueError, match=f"^unknown cluster '{wrong}': did you mean '{nearest}'") as caught:
        launch(rank, cluster=wrong)
    assert str(caught.value).endswith(f"Valid: {', '.join(CLUSTERS)}, this-machine.") and "\n" not in str(caught.value)


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize("wrong", [None, 8, ["dgx-h100"]])
def test_a_cluster_that_is_no_name_is_answered_with_every_name(wrong):
    with pytest.raises(ValueError, match=re.escape(f"unknown cluster {wrong!r}:")):
        launch(rank, cluster=wrong)


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize(
    ("wrong", "hint"), [("glo", " did you mean 'gloo'?"), ("NCCL", " did you mean 'nccl'?"), ("mpi", ""), (None, "")]
)
def test_an_unknown_backend_is_answered_with_the_nearest_name(wrong, hint):
    with pytest.raises(ValueError) as caught:
        launch(rank, backend=wrong)
    assert str(caught.value) == f"unknown backend {wrong!r}:{hint} Valid: sim, gloo, nccl."


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize("fn", [3, None, "rank", [rank]])
def test_what_cannot_be_called_is_refused(fn):
    with pytest.raises(TypeError) as caught:
        launch(fn)
    assert str(caught.value) == (
        f"launch needs a function to run on every rank: got {fn!r}; pass the function, not its result"
    )


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize(
    ("fn", "args", "reason"),
    [
        (rank, (1,), "rank cannot be called with the 1 arguments given to launch: too many positional arguments"),
        (
            lambda x: x,
            (),
            "<lambda> cannot be called with the 0 arguments given to launch: missing a required argument: 'x'",
        ),
        (lambda *, step: step, (), "missing a required .*argument: 'step'"),
        (partial(lambda x, y: x, 1), (), "missing a required argument: 'y'"),
    ],
)
def test_arguments_that_do_not_fit_the_function_are_refused(fn, args, reason):
    with pytest.raises(TypeError, match=reason) as caught:
        launch(fn, *args)
    assert "\n" not in str(caught.value) and caught.value.__suppress_context__


@pytest.mark.parametrize("backend", ["sim", "gloo"])
def test_a_launch_inside_a_rank_is_refused(backend):
    with pytest.raises(LaunchError, match="^this is inside a rank of a launch: call launch from the notebook"):
        launch(lambda: launch(rank, ranks=1, backend=backend), ranks=1)


# ---- what works ----


def test_one_rank_is_a_world_of_its_own():
    def program(x: torch.Tensor) -> tuple[int, int, float]:
        dist.all_reduce(x)
        dist.barrier()
        return dist.get_rank(), dist.get_world_size(), x.item()

    run = launch(program, torch.tensor(7.0), ranks=1)
    assert run.values == [(0, 1, 7.0)] and run.ranks == 1
    assert run.traffic.sent_bytes() == 0 and (run.backend, run.cluster) == ("sim", "dgx-h100")


def test_four_ranks_of_a_dgx_h100_are_what_a_launch_takes_when_nothing_is_said():
    run = launch(rank)
    assert run.values == [0, 1, 2, 3] and (run.backend, run.cluster) == ("sim", "dgx-h100")


def test_arguments_are_passed_on_and_output_is_kept_by_rank():
    def program(a: int, b: int) -> int:
        print(f"rank {rank()} adds")
        return a + b + rank()

    run = launch(program, 10, 20, ranks=3)
    assert run.values == [30, 31, 32] and run.stdout == [f"rank {r} adds\n" for r in range(3)]


def test_keyword_arguments_come_with_a_partial_and_builtins_may_lack_a_signature():
    assert launch(partial(lambda x, *, step: x + step, step=5), 1, ranks=2).values == [6, 6]
    assert launch(dict, ranks=1).values == [{}]


def environment() -> dict[str, str]:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE")
    return {name: os.environ[name] for name in names}


def test_twelve_ranks_fill_one_node_of_eight_and_half_of_another():
    run = launch(environment, ranks=12, cluster="dgx-h100")
    for r, where in enumerate(run.values):
        assert where == {
            "RANK": str(r),
            "WORLD_SIZE": "12",
            "LOCAL_RANK": str(r % 8),
            "GROUP_RANK": str(r // 8),
            "LOCAL_WORLD_SIZE": "8" if r < 8 else "4",
        }
    assert "LOCAL_RANK" not in os.environ


@pytest.mark.parametrize("ranks", [1, 3, 4, 5, 9])
def test_a_record_of_a_cluster_decides_how_many_ranks_a_node_holds(ranks):
    cluster = find_cluster("dgx-a100").replace(name="fours", devices_per_node=4)
    run = launch(environment, ranks=ranks, cluster=cluster)
    nodes = [r // 4 for r in range(ranks)]
    assert run.cluster == "fours"
    assert [int(where["GROUP_RANK"]) for where in run.values] == nodes
    assert [int(where["LOCAL_RANK"]) for where in run.values] == [r % 4 for r in range(ranks)]
    assert [int(where["LOCAL_WORLD_SIZE"]) for where in run.values] == [nodes.count(node) for node in nodes]
