"""`lab train` when something goes wrong: policies, exit codes, lines before a failure, alerts at the end, no effect."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.cli.main import main
from lablib.train import parse_config
from lablib.train.health import Action
from lablib.train.read_config import field_names
from lablib.train.run import _broken_since, load
from lablib.train.without_effect import without_effect

ROOT = Path(__file__).parents[2]
EXAMPLE = str(ROOT / "examples" / "train.toml")
SMALL = ["num_steps=6", "model.d_model=16", "data.batch_size=4", "optimizer.num_warmup=1", "monitor.every=1"]
BROKEN = [*SMALL, "optimizer.lr=1e30"]  # weights are not finite after the second update


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_DATA", str(tmp_path / "data"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["health.policy=off"], "the loss must be finite at the end of a run: got nan since step 2; try"),
        (["health.policy=stop"], "the run was stopped in step 2: the loss is nan"),
        (["health.policy=skip", "health.most_skips=2"], "the run was stopped in step 4: the loss is nan"),
        (["health.policy=skip"], "the run was stopped in step 5: "),
    ],
    ids=str,
)
def test_a_run_that_breaks_ends_with_exit_code_1(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    kept = [f"checkpoint.folder={tmp_path / 'kept'}", "checkpoint.every=1"]
    assert main(["train", EXAMPLE, *BROKEN, *words, *kept]) == 1
    told = capsys.readouterr()
    assert told.err.startswith(f"lab: {message}") and len(told.err.splitlines()) == 1
    newest = "step-0000000006" if "off" in words[0] else "step-0000000001"
    assert f"the newest checkpoint is {newest} in {tmp_path / 'kept'}" in told.err
    assert "step     1  loss 5." in told.out  # what was printed before


def test_real_ranks_stop_with_the_same_message(capsys: pytest.CaptureFixture[str]):
    assert main(["train", EXAMPLE, *BROKEN, "health.policy=stop", "--ranks", "2", "--backend", "gloo"]) == 1
    told = capsys.readouterr()
    assert told.err.startswith("lab: the run was stopped in step 2: the loss is nan")
    assert "nothing is saved without checkpoint.folder" in told.err and "step     2  loss nan" in told.out


def test_roll_backs_are_told_and_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The weights of step 1 are broken already, so every roll back leads to the same, and the run stops."""
    words = ["health.policy=roll_back", "health.most_skips=0", f"checkpoint.folder={tmp_path / 'kept'}"]
    assert main(["train", EXAMPLE, *BROKEN, *words, "checkpoint.every=1"]) == 1
    told = capsys.readouterr()
    assert told.out.count("rolled back from step 2 to step 1; the batches of steps 2 to 2 are skipped") == 2
    assert "the run was stopped in step 2: " in told.err and "after 2 roll backs" in told.err


def losses_of(*ends: tuple[float | None, Action]) -> list[dict[str, Any]]:
    return [{"step": 4 + i, "loss": loss, "action": action} for i, (loss, action) in enumerate(ends)]


def test_a_run_is_broken_by_losses_that_are_never_finite_again():
    good, nan = (1.0, Action.GO_ON), (math.nan, Action.GO_ON)
    assert _broken_since([]) is None and _broken_since(losses_of(nan, good)) is None
    assert _broken_since(losses_of((None, Action.GO_ON))) is None
    assert _broken_since(losses_of(good, nan, nan)) == 5 and _broken_since(losses_of(nan)) == 4
    assert _broken_since(losses_of(good, (math.inf, Action.SKIP))) is None
    assert _broken_since(losses_of(good, *[(math.nan, Action.SKIP)] * 2)) == 5


@pytest.mark.parametrize(("severity", "code"), [("warning", 0), ("critical", 1)])
def test_alerts_that_fire_at_the_end_are_told(
    severity: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    rule = f"{{name: loss, threshold: 0.5, alert_when: above, duration: 0s, severity: {severity}}}"
    (tmp_path / "rules.yaml").write_text(f"metrics:\n- {rule}\n- {{name: lr, threshold: 1, alert_when: above}}\n")
    assert main(["train", EXAMPLE, *SMALL, f"monitor.rules={tmp_path / 'rules.yaml'}"]) == code
    told = capsys.readouterr()
    assert "an alert still fires at the end: LossAbove, loss above 0.5" in told.out and "LrAbove" not in told.out
    assert ("no critical alert may fire at the end of a run: got LossAbove" in told.err) == bool(code)


def test_shares_of_the_whole_run_are_compared_with_their_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    lines = [
        f"- {{name: {name}, threshold: {limit}, alert_when: above}}\n"
        for name, limit in (("communication_share", "0.01%"), ("synchronization_s", 100))
    ]
    (tmp_path / "rules.yaml").write_text("metrics:\n" + "".join(lines))
    assert main(["train", EXAMPLE, *SMALL, "--ranks", "2", f"monitor.rules={tmp_path / 'rules.yaml'}"]) == 0
    told = capsys.readouterr().out
    assert "CommunicationShareAbove: communication_share of the whole run is " in told
    assert "SynchronizationSAbove" not in told


def test_the_breakdown_of_the_simulator_has_virtual_seconds(capsys: pytest.CaptureFixture[str]):
    assert main(["train", EXAMPLE, *SMALL, "--ranks", "2", "monitor.breakdown=true"]) == 0
    told = capsys.readouterr().out
    assert "virtual seconds per step of rank 0\nphase         computation  communication\ndata " in told
    assert "rank 0: communication without computation " in told


def test_the_breakdown_of_real_ranks_is_below_each_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["monitor.breakdown=true", "--backend", "gloo", f"monitor.folder={tmp_path / 'told'}"]
    assert main(["train", EXAMPLE, *SMALL, *words]) == 0
    assert capsys.readouterr().out.count("\n  seconds per step: data ") == 6
    rows = [json.loads(line)["metrics"] for line in (tmp_path / "told" / "metrics.jsonl").read_text().splitlines()]
    assert all(0 < row["memory_utilization"] < 1 for row in rows)


# ---- without effect ----


@pytest.mark.parametrize(
    ("words", "ranks", "wanted"),
    [
        (["parallel.bucket_bytes=5", "parallel.zero_stage=3"], 2, "ZeRO stage 3 reduce unit by unit"),
        (
            ["parallel.bucket_bytes=5", "parallel.tensor=2"],
            2,
            "a mesh reduces the gradients of pieces, units or 25 MiB",
        ),
        (["parallel.bucket_bytes=5"], 1, "one replica reduces nothing"),
        (["optimizer.momentum=0.9"], 1, "optimizer.momentum: adamw has none"),
        (["health.most_skips=3", "health.policy=stop"], 1, "health.most_skips: health.policy is stop"),
        (["precision.loss_scale=8"], 1, "precision.loss_scale: float32 needs no loss scale"),
    ],
    ids=str,
)
def test_fields_that_change_nothing_are_named(words: list[str], ranks: int, wanted: str):
    _, sentences = load(EXAMPLE, words, ranks)
    assert len(sentences) == 1 and sentences[0].startswith("Without effect: ") and wanted in sentences[0]


def test_fields_with_effect_or_not_given_are_not_named(tmp_path: Path):
    for words in (["parallel.bucket_bytes=5"], ["parallel.bucket_bytes=5", "parallel.zero_stage=2"], []):
        assert load(EXAMPLE, words, 2)[1] == []
    zero: dict[str, Any] = {"stage": 3}
    for more in ({}, {"reduce_bucket_size": 5}):
        (tmp_path / "ds.json").write_text(json.dumps({"train_batch_size": 4, "zero_optimization": zero | more}))
        assert any("bucket_bytes" in one for one in load(tmp_path / "ds.json", [], 2)[1]) == bool(more)


@given(st.data())
def test_only_fields_are_named_and_each_once(data: Any):
    tables = {
        "optimizer": {"name": data.draw(st.sampled_from(["adamw", "sgd", "lion"]))},
        "precision": {"products": data.draw(st.sampled_from(["float32", "float16", "bfloat16"]))},
        "health": {"policy": data.draw(st.sampled_from(["off", "skip", "stop"]))},
    }
    found = without_effect(parse_config(tables).on(1), field_names())
    names = [one.split(":")[0] for one in found]
    assert len(set(names)) == len(names) and set(names) <= set(field_names())
