"""Lab 17: simulated failures next to formulas, alerts by their definition."""

from math import inf, nan
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from lablib import KillRank, launch
from lablib.labs import lab17
from lablib.parallel import average_gradients
from lablib.train import young_interval_s


@pytest.mark.parametrize("interval_s", [300, 1200, 5400])
def test_simulated_runs_lose_the_expected_share(interval_s: float):
    """Some 500 failures in each of four runs: the share varies by a few percent of itself."""
    found = lab17.lost_share(interval_s, 60, 600, lab17.MEAN_S, range(4))
    assert found == pytest.approx(lab17.exact_lost_share(interval_s, 60, 600, lab17.MEAN_S), rel=0.06)


@given(save_s=st.floats(1, 120), mean_s=st.floats(2e4, 1e6))
def test_youngs_interval_is_the_best_of_first_order_and_nearly_of_all(save_s: float, mean_s: float):
    best_s = young_interval_s(save_s, mean_s)
    for share, room in ((lab17.first_order_share, 0.01), (lab17.exact_lost_share, 0.002)):
        least = min(share(best_s * 1.02**k, save_s, 60.0, mean_s) for k in range(-60, 61))
        assert share(best_s, save_s, 60.0, mean_s) <= least + room


def test_least_losses_are_those_of_a_separate_computation():
    found = [lab17.best_interval(*each) for each in ((60, 600), (6, 600), (60, 600, 2 * lab17.MEAN_S))]
    assert [lost for _, lost in found] == pytest.approx([14.8, 8.3, 9.6], abs=0.05)
    assert found[0][0] == pytest.approx(19.3, abs=0.05)  # sqrt(2 * 60 s * 11,135 s)


def test_failures_have_their_mean_and_the_same_seed_the_same_times():
    times_s = lab17.failures_of(3 * lab17.HOUR_S, 3e7, seed=5)
    assert len(times_s) == pytest.approx(3e7 / (3 * lab17.HOUR_S), rel=0.05)
    assert times_s == lab17.failures_of(3 * lab17.HOUR_S, 3e7, seed=5) == sorted(times_s)


def test_an_alert_rings_once_and_after_a_recovery_again():
    values = [1.0, 9.0, 9.0, 9.0, 9.0, 1.0, 9.0, 9.0, 9.0, 1.0, 1.0, 1.0, 9.0, 9.0, 9.0]
    assert lab17.alerts(enumerate(values), 5.0, 2, 2) == [3, 14]


@pytest.mark.parametrize("bad", [None, nan, inf, 6.0])
def test_no_value_and_no_number_are_bad(bad: float | None):
    assert lab17.alerts([(0.0, 1.0), (1.0, bad), (2.0, bad)], 5.0, 1, 0) == [2.0]


class Training:
    def __init__(self, seed: int):
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(64, 256))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)

    def step(self) -> float:
        self.optimizer.zero_grad()
        loss = (self.model(torch.ones(8, 64)) - 1).square().mean()
        loss.backward()
        average_gradients(self.model)
        self.optimizer.step()
        return loss.item()


def test_each_fault_shows_in_its_monitors():
    healthy = launch(lab17.watched, Training, False, ranks=2, cluster="dgx-h100")
    table = lab17.first_signs(lab17.with_faults(Training, 2, "dgx-h100", 0.55 * healthy.timeline.makespan_s), 20)
    shown = {fault: set(table.columns[table.loc[fault] != "no sign"]) for fault in table.index}
    assert "gradient norm" in shown["bit flip"] and not {"hash", "step time"} & shown["bit flip"]
    assert {"loss", "gradient norm"} <= shown["NaN"] and "step time" not in shown["NaN"]
    assert shown["slow"] == {"step time"} and "hash" in shown["drift"]
    assert table.loc["drift", "hash"] == "in step 11"


def test_the_night_rings_for_the_hot_gpu_and_for_the_hang():
    rings = lab17.alerts(lab17.night(), 12.0, 300, 600)
    assert [each // lab17.HOUR_S for each in rings] == [3, 5]


def test_a_step_is_complete_when_all_ranks_have_written_it(tmp_path):
    for name in ("10-0", "10-1", "20-0", "9-1"):
        (tmp_path / f"{name}.pt").touch()
    assert lab17.newest_complete(tmp_path, 2) == 10
    assert lab17.newest_complete(tmp_path, 3) is None


def test_a_killed_training_is_launched_again_and_its_steps_are_logged(capsys):
    def train(folder, log):
        done = lab17.newest_complete(folder, 2) or 0
        while done < 4:
            dist.all_reduce(torch.zeros(2**18))
            done += 1
            (folder / f"{done}-{dist.get_rank()}.pt").touch()
            if dist.get_rank() == 0:
                log.append((done, 0.0))

    alone = lab17.train_to_the_end(train, [], 2, "dgx-h100")
    assert alone == [(step, 0.0) for step in (1, 2, 3, 4)]
    killed = lab17.train_to_the_end(train, [KillRank(1, 3e-5)], 2, "dgx-h100")
    assert "rank 1 died, rank 0 had reached step" in capsys.readouterr().out
    assert dict(killed) == dict(alone)
    assert killed[0] == (1, 0.0) and len(killed) < 8  # it went on from a checkpoint


def test_random_runs_count_with_the_learners_function(capsys):
    assert lab17.random_runs(lambda work_s, *_: 2 * work_s, 1200, 60, 600) == "50.0% lost on average"
    assert capsys.readouterr().out.count("108.0 days") == 3
    assert lab17.random_runs(lambda work_s, *_: 21 * work_s, 1200, 60, 600) == "not done after 1,080 days"
    with pytest.raises(ValueError, match="must return seconds above 0: got -1.0"):
        lab17.random_runs(lambda *_: -1.0, 1200, 60, 600)


def test_the_picture_of_the_script_has_its_losses_and_who_writes_the_log():
    figure: Any = lab17.figure_evidence({})
    names = [trace.name for trace in figure.data]
    assert {"forward", "backward", "optimizer", "communication", "activations"} <= set(names)
    (log,) = [trace for trace in figure.data if trace.name == "writes the log"]
    assert {round(y + 0.35) for y in log.y} == {0, 2} and len(log.x) == 4  # two ranks, two steps
    losses = [tuple(trace.y) for trace in figure.data if trace.name.startswith("loss of rank")]
    assert len(losses) == 4 and len(set(losses)) == 1 and len(losses[0]) == 4
    # A loss of another call has no points, and the picture remains.
    other: Any = lab17.figure_evidence(
        {42: "loss = nn.functional.cross_entropy(logits_BTV.float().flatten(0, 1), labels)"}
    )
    assert [len(trace.y) for trace in other.data if trace.name.startswith("loss of rank")] == [0] * 4
