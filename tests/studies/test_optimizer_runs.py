"""The benchmark that records the optimizers' trials goes on where it was cut off, with a training of no cost."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.script_module import script_module

evidence = script_module("benchmarks/optimizer_evidence.py")


class CutOff(Exception):
    pass


def train(path, most_runs, best_lr=8e-3):
    """Trials of AdamW, of a training whose loss is a formula; cut off within run number `most_runs`. How many ran."""
    calls = []

    def one_run(optimizer, lr, weight_decay, seed):
        if len(calls) == most_runs:
            raise CutOff
        calls.append((optimizer, lr, weight_decay, seed))
        return {"loss": 2.0 + abs(lr / best_lr - best_lr / lr) + weight_decay + seed / 1000, "curve": []}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evidence, "one_run", one_run)
        try:
            evidence.part_train(evidence.Results(path), "adamw", 3)
        except CutOff:
            pass
    return len(calls)


def keys_and_losses(path):
    rows = map(json.loads, path.read_text("utf-8").splitlines())
    return [[row[name] for name in ("part", "optimizer", "lr", "weight_decay", "seed", "loss")] for row in rows]


@settings(deadline=None, max_examples=25)
@given(stops=st.lists(st.integers(0, 12), max_size=6))
def test_cut_off_anywhere_no_run_is_lost_or_run_again(stops, tmp_path_factory):
    path, whole = (tmp_path_factory.mktemp("runs") / name for name in ("parts.jsonl", "whole.jsonl"))
    num_runs = train(whole, most_runs=10**6)
    assert sum(train(path, most_runs=most) for most in [*stops, 10**6]) == num_runs > 10
    assert keys_and_losses(path) == keys_and_losses(whole)


def test_runs_of_other_settings_are_kept_and_not_taken(tmp_path, monkeypatch):
    path = tmp_path / "runs.jsonl"
    num_runs = train(path, most_runs=10**6)
    before = path.read_text("utf-8")
    monkeypatch.setattr(evidence, "NUM_STEPS", evidence.NUM_STEPS + 1)
    assert train(path, most_runs=10**6) == num_runs
    assert path.read_text("utf-8").startswith(before)
    assert len(keys_and_losses(path)) == 2 * num_runs
