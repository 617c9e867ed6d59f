"""`lab train` on simulated ranks, and the same program under torchrun's variables; errors in one sentence."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lablib.cli.main import main

ROOT = Path(__file__).parents[2]
SMALL = ["num_steps=3", "optimizer.num_warmup=1", "model.d_model=16", "data.batch_size=4", "monitor.every=1"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads the machine's own corpora."""
    monkeypatch.setenv("LAB_DATA", str(tmp_path / "data"))


def losses(text: str) -> list[str]:
    return [line.split("loss ")[1].split()[0] for line in text.splitlines() if line.startswith("step ")]


def test_the_example_trains_the_same_on_one_rank_on_four_and_under_torchrun(capsys: pytest.CaptureFixture[str]):
    example = str(ROOT / "examples" / "train.toml")
    assert main(["train", example, *SMALL]) == 0
    one = capsys.readouterr().out
    assert main(["train", example, "--ranks", "4", *SMALL, "parallel.tensor=2"]) == 0
    four = capsys.readouterr().out
    assert len(losses(one)) == 3 and losses(one) == losses(four)
    assert "3 steps on 4 ranks, simulated on dgx-h100" in four
    ranks = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    command = [sys.executable, ROOT / "examples" / "train.py", example, *SMALL]
    done = subprocess.run(
        command, env={**os.environ, **ranks, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120
    )
    assert losses(done.stdout) == losses(one), done.stderr


def test_a_deepspeed_file_is_read_alone_or_with_a_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    values = {"train_batch_size": 4, "zero_optimization": {"stage": 2, "cpu_offload": True}, "steps_per_print": 1}
    values |= {"optimizer": {"type": "AdamW", "params": {"lr": 3e-3}}, "wrong": 1}
    (tmp_path / "ds.json").write_text(json.dumps(values))
    small = ["num_steps=2", "model.d_model=16"]
    assert main(["train", str(tmp_path / "ds.json"), "--ranks", "2", *small]) == 0
    alone = capsys.readouterr().out
    assert "Without effect: offload_optimizer: the optimizer state stays on the device." in alone
    assert "Fields not understood: wrong." in alone and "lr 3.00e-03" in alone
    (tmp_path / "a.yaml").write_text("num_steps: 2\nmodel: {d_model: 16}\noptimizer: {lr: 1.0}\n")
    assert main(["train", str(tmp_path / "a.yaml"), "--ranks", "2", "--deepspeed", str(tmp_path / "ds.json")]) == 0
    assert losses(capsys.readouterr().out) == losses(alone)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["examples/train.toml", "optimizer.lrr=1"], "unknown field 'optimizer.lrr': did you mean optimizer.lr"),
        (["examples/train.toml", "optimizer.lr=-1"], "optimizer.lr must be a finite number, 0 or more: got -1"),
        (["examples/train.toml", "--ranks", "3"], "data.batch_size must be a multiple of 3 data and expert ranks"),
        (["examples/train.toml", "--backend", "glo"], "unknown backend 'glo': did you mean 'gloo'?"),
        (["examples/trian.toml"], "examples/trian.toml cannot be read: No such file or directory; did you mean train"),
        (["examples/train.toml", "data.corpus=wiki"], "data.corpus must be one of python-stdlib"),
    ],
)
def test_errors_are_one_sentence(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(ROOT)
    assert main(["train", *arguments]) == 2
    assert message in capsys.readouterr().err
