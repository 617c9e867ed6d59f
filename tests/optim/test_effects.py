"""What is drawn of four optimizers, against what is known; and the recorded experiment's beginning."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lablib.optim.effects import block_errors, lost_shares, mean_steps, singular_values
from lablib.studies import optimizer_experiment as experiment
from tests.optim.drawn import drawn


@given(rows=st.integers(1, 12), columns=st.integers(1, 12))
def test_singular_values_are_those_of_the_matrix_and_go_towards_1(rows, columns):
    before, after = singular_values(drawn(rows, columns), (0, 5))
    assert len(before) == min(rows, columns) and math.hypot(*before) == pytest.approx(1.0)
    assert before == sorted(before, reverse=True) and after[0] == pytest.approx(before)
    assert all(0.68 < value < 1.21 for value, was in zip(after[5], before, strict=True) if was > 0.01)


def test_measured_signs_are_those_of_the_formula():
    signals, lion, others = mean_steps([0.0, 0.05, 0.3, 2.0], num_numbers=2000)
    assert signals == [0.0, 0.05, 0.3, 2.0]
    # 400,000 signs that remember each other for some hundred steps: a few thousand independent ones.
    assert lion["Lion, measured"] == pytest.approx(lion["Lion"], abs=0.03)
    assert others["Adam"] == pytest.approx([0.0, 0.0499376, 0.287348, 0.894427], abs=1e-5)


def test_smaller_blocks_keep_an_outlier_to_themselves():
    outliers, errors = block_errors(drawn(1 << 12, dtype=torch.float32), [1.0, 1e4], [64, 1 << 12])
    assert outliers == [1.0, 1e4] and list(errors) == ["blocks of 64", "one scale for all"]
    assert errors["one scale for all"][1] > 5 * errors["blocks of 64"][1]


@given(rows=st.integers(1, 9), columns=st.integers(1, 9))
def test_lost_shares_fall_to_nothing_at_full_rank(rows, columns):
    grad, full = drawn(rows, columns), min(rows, columns)
    values = torch.linalg.svdvals(grad).square()
    ranks, lost = lost_shares(grad, {"itself": grad, "another": drawn(rows, columns, seed=5)}, range(1, full + 1))
    assert ranks == list(range(1, full + 1))
    want = [float(values[rank:].sum() / values.sum()) for rank in ranks]
    assert lost["itself"] == pytest.approx(want, abs=1e-9) and lost["another"][-1] == pytest.approx(0.0, abs=1e-9)
    assert all(own <= other + 1e-9 for own, other in zip(*lost.values(), strict=True)), "its own are the best"


def test_the_beginning_of_the_recorded_experiment_runs():
    training, looks = experiment.run("lion", 1e-3, 0.0, seed=1, num_steps=3, look_every=2)
    assert [look.step for look in looks] == [0, 2, 3] and looks[-1].loss < looks[0].loss < 5.6
    rates = {group["lr"] for optimizer in training.optimizers for group in optimizer.param_groups}
    assert rates == {1e-3 * 4 / 121}, "the schedule of the whole run: fourth step of a warmup of 120"
    again = experiment.run("adamw", 1e-3, 0.0, seed=1, num_steps=1)[1]
    assert again[0] == looks[0], "the same weights and the same held-out text for every optimizer"
