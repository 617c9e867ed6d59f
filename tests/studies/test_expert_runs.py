"""The recorded runs of experts: whole, and made by the code that is here."""

import math

import pytest

from lablib.studies.expert_runs import BATCH_SIZE, METHODS, NUM_EXPERTS, SEQ_LEN, K, expert_run, recorded_expert_runs


def test_every_method_was_run_with_three_seeds_and_every_choice_is_counted():
    found = recorded_expert_runs()
    assert list(found) == list(METHODS)
    for method, runs in found.items():
        assert [run.seed for run in runs] == [0, 1, 2]
        for run in runs:
            assert run.steps == tuple(range(10, 401, 10)) and len(run.losses) == len(run.dropped) == 40
            assert (max(run.dropped) > 0) == ("capacity" in method)
            for of_layers in run.counts:
                assert len(of_layers) == (0 if method == "dense" else 2)
                for of_layer in of_layers:
                    assert len(of_layer) == NUM_EXPERTS and sum(of_layer) == BATCH_SIZE * SEQ_LEN * K


def test_what_is_said_of_the_runs_is_so():
    """With every seed: at the end the load is most uneven without balancing, least with the bias."""
    found = recorded_expert_runs()
    for seed in range(3):
        last = {method: sum(runs[seed].imbalance[-5:]) / 5 for method, runs in found.items()}
        assert last["bias"] < last["auxiliary loss"] < 0.6 * last["nothing"]
        dropped = {method: sum(runs[seed].dropped) / 40 for method, runs in found.items()}
        assert dropped["bias, capacity"] < dropped["auxiliary loss, capacity"] < 0.4 * dropped["nothing, capacity"]


def test_a_run_repeats_to_the_bit_and_begins_by_knowing_nothing():
    one, other = (list(expert_run("bias", 1, num_steps=3)) for _ in range(2))
    assert one == other and one[0].loss == pytest.approx(math.log(256), abs=0.4)
    assert one[-1].held_out is not None and one[0].held_out is None
