"""The recorded runs of compression: read right, comparable; their benchmark goes on where it was cut off."""

import json
import math
from typing import Any

import pytest

from lablib.studies.compression import recorded_runs, table
from tests.script_module import script_module

evidence = script_module("benchmarks/compression_evidence.py")


def row(part: str, method: str, lr: float, seed: int, loss: float, **more: Any) -> str:
    return json.dumps(
        {"part": part, "method": method, "lr": lr, "seed": seed, "loss": loss, "settings": "new"}
        | {"sent_bytes": 100.0, "every": 1}
        | more
    )


def test_rows_become_runs_and_those_of_other_settings_are_not_read(tmp_path):
    lines = [row("final", "none", 0.1, 1, 9.9, settings="old")]
    for method, losses, sent in (("none", [2.0, 2.1, 2.2], 100.0), ("top-k", [2.2, 2.3, math.inf], 10.0)):
        lines += [row("search", method, lr, 0, abs(lr - 0.2)) for lr in (0.1, 0.2, 0.4)]
        lines += [row("final", method, 0.2, seed, loss, sent_bytes=sent) for seed, loss in enumerate(losses, 1)]
    lines += [row("search", "unfinished", 0.2, 0, 2.0), row("final", "unfinished", 0.2, 1, 2.0)]
    file = tmp_path / "evidence.jsonl"
    file.write_text("\n".join(lines) + "\n")
    found = recorded_runs(file)
    assert list(found) == ["none", "top-k"]
    assert (found["none"].losses, found["none"].lr, found["none"].is_inside) == ({1: 2.0, 2: 2.1, 3: 2.2}, 0.2, True)
    assert found["top-k"].loss == math.inf and found["top-k"].sent_bytes == 10.0
    shown = table({"none": found["none"]})
    assert shown.loc["none", "times fewer"] == 1 and shown.loc["none", "less none's"] == 0


@pytest.mark.parametrize("text", ["", "[]\n", '{"part": "final"}\n', "nonsense\n"])
def test_another_file_is_refused(tmp_path, text):
    file = tmp_path / "evidence.jsonl"
    file.write_text(text)
    with pytest.raises(ValueError, match="must hold runs as benchmarks/compression_evidence.py writes them"):
        recorded_runs(file)


def test_what_is_recorded_is_a_fair_comparison():
    """Every method was searched at three rates or four and run on the same three seeds, none of them the search's."""
    runs = recorded_runs()
    assert {"none", "top-k", "one bit", "PowerSGD 1", "local SGD 16", "DiLoCo 16", "stale 1"} <= set(runs)
    assert set(runs) <= set(evidence.METHODS)
    assert {tuple(sorted(run.losses)) for run in runs.values()} == {evidence.SEEDS} and 0 not in evidence.SEEDS


def test_recorded_bytes_are_the_closed_forms():
    """4 ranks, 35,712 gradients in one bucket: 2 (n-1)/n 4 N for what is sent as it is, and shares of it."""
    runs, numel = recorded_runs(), sum(param.numel() for param in evidence.GPT(evidence.NARROW).parameters())
    whole = 2 * 3 / 4 * 4 * numel
    expected = {"top-k": 3 * round(0.01 * numel) * 8, "one bit": 2 * 3 * (numel / 4 / 8 + 4)}
    expected["random-k"] = whole * round(0.01 * numel) / numel
    warmup = evidence.NUM_STEPS // 5
    expected["1-bit Adam"] = (warmup * whole + (evidence.NUM_STEPS - warmup) * expected["one bit"]) / evidence.NUM_STEPS
    checked = 0
    for name, run in runs.items():
        method = name.removeprefix("SGD, ").removesuffix(", no feedback")
        if method in ("none", *expected) or method.startswith(("stale", "local", "DiLoCo", "streaming")):
            assert run.sent_bytes == pytest.approx(expected.get(method, whole / run.every)), name
            checked += 1
    assert checked > 20


def test_what_lab_11_says_of_the_runs_holds():
    runs = recorded_runs()

    def is_lower(name: str, other: str) -> bool:
        """On each of the three seeds."""
        return all(runs[name].losses[seed] < runs[other].losses[seed] for seed in evidence.SEEDS)

    for method in ("top-k", "random-k", "one bit"):
        assert is_lower(f"{method}, no feedback", method), "with AdamW feedback ends higher"
    assert is_lower("SGD, top-k", "SGD, top-k, no feedback")
    assert is_lower("1-bit Adam", "one bit") and is_lower("one bit, no feedback", "1-bit Adam")
    assert is_lower("streaming DiLoCo 16", "DiLoCo 16") and is_lower("top-k", "stale 1")
    assert not runs["SGD, one bit"].is_inside and not runs["DiLoCo 1"].is_inside
    found = table(runs)
    for method in ("INT8", "INT4"):
        assert abs(found.loc[method, "less none's"]) < found.loc[method, "+- 95%"]
    local = [runs[f"local SGD {every}"].loss for every in (1, 4, 16, 64)]
    assert local == sorted(local)


def test_cut_off_no_run_is_lost_or_run_again(tmp_path, monkeypatch):
    calls = []

    def one_run(method, lr, seed):
        if len(calls) == 4:
            raise KeyboardInterrupt
        calls.append((method, lr, seed))
        return {"loss": abs(math.log2(lr) + 8), "curve": [], "sent_bytes": 1.0, "every": 1}

    monkeypatch.setattr(evidence, "one_run", one_run)
    monkeypatch.setattr("sys.argv", ["x", "--methods", "none", "--out", str(tmp_path / "runs.jsonl")])
    with pytest.raises(KeyboardInterrupt):
        evidence.main()
    first = list(calls)
    calls.clear()
    evidence.main()
    assert len(first) == 4 and first + calls == [("none", lr, 0) for lr in (*evidence.RATES, 2.0**-9)] + [
        ("none", 2.0**-8, seed) for seed in evidence.SEEDS
    ]
