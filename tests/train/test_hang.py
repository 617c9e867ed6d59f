"""A rank that sleeps for ever ends the run, with the line of each rank: gloo, torchrun, the simulator."""

import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from traceback import extract_stack

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lablib import LaunchTimeoutError, WorkerError, launch
from lablib.train import HangWatch
from lablib.train.hang import explanation, extract_main, where
from lablib.train.run import load, run
from tests.train.hanging_run import sleep_on_rank_1

ROOT = Path(__file__).parents[2]
EXAMPLE = str(ROOT / "examples" / "train.toml")
WORDS = ["model.d_model=16", "data.batch_size=4", "num_steps=5", "optimizer.num_warmup=1", "monitor.every=1"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_DATA", str(tmp_path / "data"))


def test_on_real_processes_the_error_has_the_line_of_each_rank():
    config, _ = load(EXAMPLE, [*WORDS, "health.hang_s=12"], 2)
    with pytest.raises(WorkerError) as caught:
        launch(run, config, [sleep_on_rank_1], ranks=2, backend="gloo")
    told = str(caught.value)
    assert "no step has ended for 12 s (health.hang_s=12), and the run is ended:" in told
    assert "rank 1 is at tests/train/hanging_run.py:17: time.sleep(1e6), in step 3" in told
    assert "rank 0 waits in all_reduce at lablib/train/steps.py:" in told


@pytest.mark.thorough
def test_under_torchrun_too():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    command += ["--nproc-per-node=2", str(ROOT / "tests" / "train" / "hanging_run.py"), EXAMPLE, *WORDS]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, "health.hang_s=12"], env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode == 1 and "step     2" in done.stdout
    assert done.stderr.count("no step has ended for 12 s") == 1
    assert "rank 1 is at tests/train/hanging_run.py:17: time.sleep(1e6), in step 3" in done.stderr


def test_on_the_simulator_the_limit_names_the_sleeper_and_the_waits_of_the_others():
    config, _ = load(EXAMPLE, WORDS, 2)
    with pytest.raises(LaunchTimeoutError, match=r"rank 1 was at hanging_run.py:17: time.sleep\(1e6\)") as caught:
        launch(run, config, [sleep_on_rank_1], ranks=2, timeout_s=12)
    assert "rank 0 waits in all_reduce" in str(caught.value)


def test_without_ranks_or_a_limit_nothing_is_watched():
    for limit_s in (0.0, 0.05):
        with HangWatch(limit_s) as watch:
            watch.step_ended({"step": 1})


@given(st.integers(1, 40), st.sets(st.integers(0, 39)), st.integers(1, 40))
def test_each_rank_is_in_the_explanation_once(num_ranks: int, silent: set[int], num_places: int):
    places = {rank: f"waits in all_reduce at a.py:{rank % num_places}" for rank in range(num_ranks)}
    places |= {0: "is at b.py:7"}
    told = explanation(5, {rank: place for rank, place in places.items() if rank not in silent}, num_ranks)
    lines = told.splitlines()
    assert len(lines) <= 18 and lines[0].startswith("no step has ended for 5 s")
    named = [int(word) for line in lines[1:-1] if "more place" not in line for word in _numbers(line)]
    assert len(named) == len(set(named))
    assert len(named) == num_ranks or "more place" in told
    assert (0 in named) and not (silent & set(range(num_ranks)) - set(named))


def _numbers(line: str) -> list[str]:
    words = re.split(" wait| is at| are at| did not", line)[0]
    return words.replace("ranks", "").replace("rank", "").split(",")


def test_a_line_is_of_the_program_and_not_of_torch_or_python():
    found = list[str]()
    thread = threading.Thread(target=lambda: found.append(where(extract_main())))
    thread.start()
    thread.join()
    assert found[0].startswith("is at tests/train/test_hang.py:") and ": thread." in found[0]
    half = torch.nn.Linear(1, 1)
    half.register_forward_hook(lambda *_: found.append(where(extract_stack())))
    half(torch.ones(1, 1))
    assert "tests/train/test_hang.py" in found[1]
    assert where([]) == "is outside Python"
