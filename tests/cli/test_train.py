"""`lab train` on simulated ranks, and the same program under torchrun's variables; errors in one sentence."""

import io
import json
import os
import resource
import signal
import subprocess
import sys
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib.cli.main import main
from lablib.train import torchrun

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


def test_the_script_for_torchrun_needs_a_configuration(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        torchrun.main([])
    assert ended.value.code == 2 and capsys.readouterr().err.startswith("a configuration is needed: got no arguments;")


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


KEEPING = ["num_steps=4", "optimizer.num_warmup=1", "model.d_model=16", "data.batch_size=4", "monitor.every=1"]


@pytest.mark.parametrize(
    "axes", ["parallel.zero_stage=2", pytest.param("parallel.tensor=2", marks=pytest.mark.thorough)]
)
def test_a_run_resumes_from_its_newest_checkpoint(axes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """It has the losses of the uninterrupted run, also on other ranks and with other shards."""
    folder = tmp_path / "run"
    words = ["train", str(ROOT / "examples" / "train.toml"), *KEEPING, axes]
    kept = [f"checkpoint.folder={folder}", "checkpoint.every=2"]
    assert main([*words, "--ranks", "2"]) == 0
    whole = losses(capsys.readouterr().out)
    assert main([*words, *kept, "--ranks", "2", "num_steps=2", "optimizer.schedule_steps=4"]) == 0
    begun = losses(capsys.readouterr().out)
    assert main([*words, *kept, "--ranks", "4"]) == 0
    assert begun + losses(capsys.readouterr().out) == whole
    assert main([*words, *kept, "--ranks", "2", "num_steps=6", "parallel.zero_stage=1"]) == 0
    assert "resumed after step 4\n" in capsys.readouterr().out
    assert main([*words, *kept, "--ranks", "2", "model.d_model=32"]) == 2
    wrong = capsys.readouterr().err
    assert "got model.d_model=32, and it was 16" in wrong
    assert main([*words, *kept, "--ranks", "2", "checkpoint.resume=false"]) == 2
    assert "a new run needs a new folder" in capsys.readouterr().err


def test_the_newest_and_the_one_with_the_lowest_loss_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    # Without updates losses differ by batch alone.
    words = ["train", str(ROOT / "examples" / "train.toml"), *KEEPING, "optimizer.lr=0.0"]
    folder = f"checkpoint.folder={tmp_path / 'run'}"
    assert main([*words, "num_steps=9", folder, "checkpoint.every=1", "checkpoint.keep=2"]) == 0
    found = [float(loss) for loss in losses(capsys.readouterr().out)]
    best = 1 + found.index(min(found))
    kept = {int(path.name.removeprefix("step-")) for path in (tmp_path / "run").iterdir()}
    assert len(found) == 9 and kept == {8, 9, best}


@pytest.mark.parametrize("ranks", [pytest.param("1", marks=pytest.mark.thorough), "2"])
def test_a_full_disk_ends_the_run_in_one_sentence_and_it_resumes_from_the_checkpoint_before(
    ranks: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    words = ["train", str(ROOT / "examples" / "train.toml"), *KEEPING, f"checkpoint.folder={tmp_path / 'run'}"]
    words += ["checkpoint.every=2", "optimizer.schedule_steps=8", "parallel.zero_stage=2", "--ranks", ranks]
    assert main(words) == 0
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        assert main([*words, "num_steps=8"]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    told = capsys.readouterr().err
    assert "step 6 was not written: OSError" in told and "older checkpoints are unchanged; free some disk" in told
    assert len(told.splitlines()) == 1
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["step-0000000002", "step-0000000004"]
    assert main([*words, "num_steps=8"]) == 0
    assert "resumed after step 4\n" in capsys.readouterr().out


@pytest.mark.parametrize("backend", [pytest.param("sim", marks=pytest.mark.thorough), "gloo"])
def test_an_interrupt_while_saving_is_one_line_and_the_run_goes_on_to_the_same_losses(
    backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """A save after each step, in the background: an interrupt right after a step finds one under way."""
    words = ["train", str(ROOT / "examples" / "train.toml"), "--backend", backend, "--ranks", "2"]
    words += [*SMALL, "num_steps=12"]
    keeping = [f"checkpoint.folder={tmp_path / 'run'}", "checkpoint.every=1"]
    environment = os.environ | {"LAB_DATA": str(tmp_path / "data"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "lablib.cli", *words]
    assert main(words) == 0
    whole = capsys.readouterr().out
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen([*command, *keeping], env=environment, start_new_session=True, **pipes) as run:
        assert run.stdout is not None
        first = next(line for line in run.stdout if line.startswith("step     4"))
        os.killpg(run.pid, signal.SIGINT)  # as Ctrl-C at a terminal: to all processes
        rest = run.stdout.read()
    assert run.returncode in (130, 0), first + rest  # 0: it was as fast as its lines
    assert "Traceback" not in rest and ("lab: interrupted." in rest or not run.returncode)
    assert main([*words, *keeping]) == 0
    again = capsys.readouterr().out
    later = losses(again)
    assert "resumed after step" in again and later == losses(whole)[12 - len(later) :]
    assert not list((tmp_path / "run").glob(".saving-*"))


CHANGED: list[tuple[str, Any]] = [  # values that the run of KEEPING does not have
    ("model.num_layers", st.integers(3, 5)),
    ("model.num_heads", st.sampled_from([1, 2, 8])),
    ("model.tied_head", st.just("false")),
    ("model.num_experts", st.integers(2, 4)),
    ("data.val_fraction", st.floats(0.2, 0.8)),
    ("data.seed", st.integers(1, 2**40)),
    ("data.batch_size", st.integers(5, 9)),
    ("optimizer.name", st.sampled_from(["sgd", "lion", "adam", "lamb"])),
    ("optimizer.betas", st.floats(0, 0.8).map(lambda beta: f"[{beta}, 0.99]")),
    ("optimizer.eps", st.floats(1e-7, 1)),
    ("optimizer.weight_decay", st.floats(0.02, 1)),
    ("optimizer.fused", st.just("true")),
    ("precision.products", st.just("float16")),
    ("precision.parameters", st.just("float64")),
]


def test_a_setting_that_a_checkpoint_would_set_back_is_refused(tmp_path: Path):
    """A refused run leaves the checkpoint as it is, so all are refused by the same one."""
    words = ["train", str(ROOT / "examples" / "train.toml"), *KEEPING, f"checkpoint.folder={tmp_path}/a b \u00fc"]
    words += ["checkpoint.every=2", "optimizer.schedule_steps=6"]
    assert main([*words, "num_steps=2"]) == 0

    @given(data=st.data())
    @settings(max_examples=8)
    def is_refused(data: st.DataObject) -> None:
        name, values = data.draw(st.sampled_from(CHANGED))
        told = io.StringIO()
        with redirect_stderr(told):
            assert main([*words, f"{name}={data.draw(values)}"]) == 2
        assert name.partition(".")[2] in told.getvalue() and "set it back" in told.getvalue()

    is_refused()


def test_a_run_says_where_it_resumes_and_how_many_steps_it_took(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["train", str(ROOT / "examples" / "train.toml"), *KEEPING, f"checkpoint.folder={tmp_path}"]
    """Its end is saved, whatever `checkpoint.every` is."""
    assert main([*words, "num_steps=3", "optimizer.schedule_steps=4"]) == 0
    assert "3 steps on 1 rank" in capsys.readouterr().out
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "resumed after step 3\n" in told and "\n1 step on 1 rank" in told
    assert main([*words, "num_steps=2"]) == 0
    assert "resumed after step 4: no step is left of num_steps=2\n0 steps on" in capsys.readouterr().out


@pytest.mark.parametrize("field", ["checkpoint.folder", "monitor.folder"])
@pytest.mark.parametrize("ranks", ["1", "2"])
def test_a_folder_that_cannot_be_written_ends_the_run_before_its_first_step(
    field: str, ranks: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "inner", tmp_path / ("n" * 300)):
        words = ["train", str(ROOT / "examples" / "train.toml"), *KEEPING, "--ranks", ranks, f"{field}={folder}"]
        assert main(words) == 1
        told = capsys.readouterr()
        assert "cannot be written" in told.err and len(told.err.splitlines()) == 1 and "step " not in told.out


def test_rules_are_evaluated_without_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "rules.yaml").write_text("metrics:\n- {name: loss, threshold: 0.5, alert_when: above, duration: 0s}\n")
    words = [*SMALL, f"monitor.rules={tmp_path / 'rules.yaml'}"]
    assert main(["train", str(ROOT / "examples" / "train.toml"), *words]) == 0
    assert capsys.readouterr().out.count("LossAbove is firing") == 1


def test_a_run_records_its_metrics_and_alerts(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "rules.yaml").write_text("metrics:\n- {name: loss, threshold: 0.5, alert_when: above, duration: 0s}\n")
    words = ["--ranks", "2", *SMALL, f"monitor.folder={tmp_path}", f"monitor.rules={tmp_path / 'rules.yaml'}"]
    assert main(["train", str(ROOT / "examples" / "train.toml"), *words]) == 0
    told = capsys.readouterr().out
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3] and told.count("LossAbove is firing") == 1
    assert [f"{row['metrics']['loss']:.4f}" for row in rows] == losses(told)
    assert rows[0]["alerts"][0]["state"] == "firing" and rows[0]["metrics"]["gradient_norm"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["examples/train.toml", "optimizer.lrr=1"], "unknown field 'optimizer.lrr': did you mean optimizer.lr"),
        (["examples/train.toml", "optimizer.lr=-1"], "optimizer.lr must be a finite number, 0 or more: got -1"),
        (["examples/train.toml", "--ranks", "3"], "data.batch_size must be a multiple of 3 data and expert ranks"),
        (["examples/train.toml", "--backend", "glo"], "unknown backend 'glo': did you mean 'gloo'?"),
        (["examples/trian.toml"], "examples/trian.toml cannot be read: No such file or directory; did you mean train"),
        (["examples/train.toml", "monitor.folder=x", "monitor.rules=none.yaml"], "none.yaml cannot be read: No such"),
        (["examples/train.toml", "data.corpus=wiki"], "data.corpus must be one of python-stdlib"),
    ],
)
def test_errors_are_one_sentence(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(ROOT)
    assert main(["train", *arguments]) == 2
    assert message in capsys.readouterr().err
