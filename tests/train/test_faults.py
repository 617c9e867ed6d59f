"""Ranks that die at drawn moments, on the simulator and by SIGKILL under torchrun: the final weights are the same."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lablib import DropLink, KillRank, LinkDownError, RankKilledError, SlowRank, launch
from tests.train import resumable_run
from tests.train.resumable_run import MOST_STEPS, train

ROOT = Path(__file__).parents[2]
STEPS, RANKS, SAVED_EVERY = 8, 2, 2


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> list[torch.Tensor]:
    """The weights of the uninterrupted run, on the simulator: a sum of two ranks is the same on gloo."""
    return launch(train, str(tmp_path_factory.mktemp("straight")), MOST_STEPS, ranks=RANKS).values[0]


def assert_same(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    assert len(found) == len(wanted) and all(map(torch.equal, found, wanted))


# ---- the simulator ----


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(2, 12))])
def test_runs_whose_ranks_die_end_with_the_weights_of_the_uninterrupted_one(tmp_path, seed):
    uninterrupted = launch(train, str(tmp_path / "straight"), STEPS, ranks=RANKS)
    draw, folder = random.Random(seed), str(tmp_path / "killed")
    for most in (0.5, 0.4, 0.2):  # resumed runs are shorter
        kill = KillRank(draw.randrange(RANKS), draw.uniform(0.05, most) * uninterrupted.timeline.makespan_s)
        with pytest.raises(RankKilledError):
            launch(train, folder, STEPS, ranks=RANKS, faults=[kill])
    assert_same(launch(train, folder, STEPS, ranks=RANKS).values[0], uninterrupted.values[0])


def test_a_run_ended_by_a_dropped_link_resumes_and_a_slow_rank_changes_no_weight(tmp_path):
    uninterrupted = launch(train, str(tmp_path / "straight"), STEPS, ranks=RANKS)
    folder = str(tmp_path / "dropped")
    with pytest.raises(LinkDownError):
        launch(train, folder, STEPS, ranks=RANKS, faults=[DropLink(0, 1, 0.6 * uninterrupted.timeline.makespan_s)])
    resumed = launch(train, folder, STEPS, ranks=RANKS, faults=[SlowRank(1, 3.0)])
    assert_same(resumed.values[0], uninterrupted.values[0])


# ---- real processes ----


def torchrun(folder: Path, kills: list[str]) -> None:
    """Run the script until it ends, with a restart after each kill."""
    script = str(Path(resumable_run.__file__))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    command += ["--nproc-per-node=2", f"--max-restarts={len(kills)}", "--monitor-interval=0.05", script]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    # A store for each restart: in one store, ranks find addresses of dead processes (pytorch issue 135712).
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    ended = subprocess.run(
        [*command, str(folder), *kills], env=environment, capture_output=True, text=True, timeout=200
    )
    assert ended.returncode == 0, ended.stderr[-3000:]


def drawn_kills(seed: int, number: int) -> list[str]:
    """Kills at growing steps, every third in a save."""
    draw = random.Random(seed)
    in_saves = ["0:file:3", "1:file:1", "any:publish:1", "any:flush:1", "any:flush:2"]
    steps = sorted(draw.sample(range(4, MOST_STEPS - 8), number))
    return [
        draw.choice(in_saves) if place % 3 == 1 else f"{draw.randrange(RANKS)}:step:{step}"
        for place, step in enumerate(steps)
    ]


def assert_survives(folder: Path, kills: list[str], straight: list[torch.Tensor]) -> None:
    torchrun(folder, kills)
    assert len(list(folder.glob("killed-*"))) == len(kills)
    assert_same(torch.load(folder / "weights.pt"), straight)
    attempts = sorted(folder.glob("attempt-*"))
    steps = [[int(line) for line in attempt.read_text().split()] for attempt in attempts]
    assert len(steps) == len(kills) + 1
    for before, after in zip(steps, steps[1:], strict=False):
        # The last save may have been in progress, and is waited for by the next.
        assert before[-1] - after[0] <= 2 * SAVED_EVERY


def test_killed_at_a_step_and_in_a_save_nothing_is_lost_but_steps_since_the_last_checkpoint(tmp_path, straight):
    assert_survives(tmp_path, drawn_kills(0, 3), straight)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(1, 21))  # 100 kills
def test_more_kills(tmp_path, straight, seed):
    assert_survives(tmp_path, drawn_kills(seed, 5), straight)
