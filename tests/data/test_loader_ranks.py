"""Loaders as ranks on the simulator: the same steps and the same idle share as the simulated loop."""

import pytest
import torch

from lablib import launch
from lablib.data.loading.loader import Jitter, Loader, draw_times
from lablib.data.loading.loader_ranks import train_with_loader_ranks, work
from lablib.data.loading.loader_timeline import run_loop
from lablib.errors import RankError
from lablib.faults import SlowRank

CLUSTER = "dgx-h100"
SLOWER = 1000.0  # a unit lasts milliseconds: beside it, the microseconds of a message are nothing


def unit_s():
    """Seconds of a unit on a rank that is slowed."""
    one, slow = torch.ones(1), [SlowRank(0, SLOWER)]
    runs = [launch(work, units, one, ranks=1, cluster=CLUSTER, faults=slow).timeline.makespan_s for units in (1, 2)]
    return runs[1] - runs[0]


@pytest.mark.parametrize("loaders, prefetch", [(1, 1), (1, 3), (2, 1), (3, 2)])
def test_loader_ranks_wait_as_the_simulated_loop_does(loaders, prefetch):
    load_units = [max(1, round(time)) for time in draw_times(40.0 * loaders, 60, Jitter.EXPONENTIAL, seed=3)]
    faults = [SlowRank(rank, SLOWER) for rank in range(loaders + 1)]
    run = launch(train_with_loader_ranks, load_units, 40, prefetch, ranks=loaders + 1, cluster=CLUSTER, faults=faults)
    assert run.values[0] == list(range(60))
    assert sorted(sum(run.values[1:], [])) == list(range(60))
    unit = unit_s()
    predicted = run_loop(Loader(loaders, prefetch), [units * unit for units in load_units], [40 * unit] * 60)
    idle_share = run.timeline.compute_idle_s(0) / run.timeline.makespan_s
    assert idle_share == pytest.approx(predicted.idle_share, abs=0.01)
    assert run.timeline.makespan_s == pytest.approx(predicted.makespan_s, rel=0.01)


@pytest.mark.slow
def test_it_is_a_real_program_too():
    run = launch(train_with_loader_ranks, [3] * 7, 2, ranks=3, backend="gloo", timeout_s=120)
    assert run.values == [[0, 1, 2, 3, 4, 5, 6], [0, 2, 4, 6], [1, 3, 5]]


def test_a_loader_rank_has_no_more_than_its_prefetch_ready():
    faults = [SlowRank(0, SLOWER)]
    ends_s = {}
    for prefetch in (1, 3):
        run = launch(train_with_loader_ranks, [1] * 8, 40, prefetch, ranks=2, cluster=CLUSTER, faults=faults)
        spans = run.timeline.select(rank=1, stream="compute")
        ends_s[prefetch] = [span.end_s for span in spans if span.name == "aten.add"]
    step_s = 40 * unit_s()
    # With P = 1, batch 2 is loaded when batch 1 is taken: after the first step. With P = 3, batch 3 is.
    assert ends_s[1][1] < 0.1 * step_s < ends_s[1][2] and ends_s[3][3] < 0.1 * step_s < ends_s[3][4]


def test_one_rank_alone_is_one_clear_error():
    with pytest.raises(RankError, match="at least one loads: got 1 rank; try ranks=3"):
        launch(train_with_loader_ranks, [1], 1, ranks=1)
