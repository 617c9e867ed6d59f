"""Recorded runs are whole and say what the text of their benchmark says; one of them, run again, gives its numbers."""

import math
import statistics

import numpy as np
import pytest

from lablib.batches.noise_scale import fit_steps_law
from lablib.models import GPT
from lablib.studies import batches


def test_steps_by_batch_size_have_three_seeds_and_fall():
    steps = batches.recorded_steps()
    assert list(steps) == [2, 4, 8, 16, 32, 64, 128]
    assert {len(runs) for runs in steps.values()} == {3}
    means = [statistics.mean(runs) for runs in steps.values()]
    assert means == sorted(means, reverse=True)
    law = fit_steps_law([float(size) for size in steps], means)
    assert (law.min_steps, law.critical_batch) == (pytest.approx(89, abs=0.5), pytest.approx(9.6, abs=0.05))


def test_the_noise_scale_grows_as_the_loss_falls():
    steps, losses, noises = zip(*batches.recorded_noise(), strict=True)
    assert list(steps) == sorted(steps) and list(losses) == sorted(losses, reverse=True)
    assert noises[-1].noise_scale > 50 * min(one.noise_scale for one in noises)


def test_changes_by_width_are_those_of_the_coordinate_check():
    recorded = batches.recorded_coordinates()
    exponents = {}
    for parametrization, widths in recorded.items():
        assert list(widths) == [32, 64, 128, 256, 512] and {len(runs) for runs in widths.values()} == {3}
        exponents[parametrization] = {
            name: np.polyfit(
                np.log(list(widths)), [math.log(statistics.mean(r[name] for r in w)) for w in widths.values()], 1
            )[0]
            for name in widths[32][0]
        }
    standard, mup = exponents["standard"], exponents["mup"]
    assert all(abs(mup[name]) < 0.1 for name in ("embedding", "block 0", "block 1", "logits"))
    assert all(standard[name] > 0.5 for name in ("block 0", "block 1", "scores", "logits"))


def test_every_part_is_a_table_of_positive_numbers():
    for table in (batches.recorded_large_batch(), batches.recorded_rates()):
        for lines in table.values():
            for rates in lines.values():
                assert all(loss > 0 for losses in rates.values() for loss in losses)
    for rates in batches.recorded_schedules().values():
        for runs in rates.values():
            assert all(steps == 20 * (place + 1) for run in runs for place, (steps, _) in enumerate(run))


def test_what_is_returned_may_be_changed():
    batches.recorded_steps()[2].clear()
    batches.recorded_coordinates()["mup"][32][0].clear()
    assert batches.recorded_steps()[2] and batches.recorded_coordinates()["mup"][32][0]


def test_a_short_run_is_the_same_each_time_and_learns():
    runs = [list(batches.schedule_run("WSD", 2.0**-7, num_steps=25, every=10, seed=3)) for _ in range(2)]
    assert runs[0] == runs[1]
    assert [step for step, _ in runs[0]] == [10, 20, 25]
    start = batches.loss_of(GPT(batches.NARROW, seed=3), batches.held_out())
    assert start == pytest.approx(math.log(256), rel=0.05)  # a model that knows nothing
    assert runs[0][-1][1] < 0.8 * start


@pytest.mark.parametrize("name", batches.SCHEDULES)
def test_schedules_start_small_and_reach_the_peak(name):
    factors = [batches.SCHEDULES[name](step, 100) for step in range(100)]
    assert factors[0] == 1 / 6 and max(factors) == 1.0
    assert (factors[-1] == 1.0) == (name == "constant")
