"""The noise scale: estimates that are right on average, checked over every batch there is, and the law of steps.

A small data set has few enough batches (drawn with replacement, in order) to go through all of them: then the average
of the estimates is the expectation, and must be the exact value to rounding.
"""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lablib.batches import noise_scale


def dataset(num_examples: int, num_params: int, seed: int = 0) -> Tensor:
    """Gradients of each example."""
    generator = torch.Generator().manual_seed(seed)
    return 0.3 + torch.randn(num_examples, num_params, generator=generator, dtype=torch.float64)


def test_the_noise_of_two_examples_by_hand():
    noise = noise_scale.exact_noise(torch.tensor([[1.0, 0.0], [3.0, 4.0]]))
    assert (noise.signal, noise.noise) == (8.0, 5.0)  # mean (2, 2); each is (1, 2) off
    assert noise.noise_scale == 5 / 8


def every_batch(gradients_NP: Tensor, num_parts: int, part_batch: int):
    """Gradients of the parts, [k, P], of every batch that can be drawn."""
    for drawn in itertools.product(range(len(gradients_NP)), repeat=num_parts * part_batch):
        yield gradients_NP[list(drawn)].unflatten(0, (num_parts, part_batch)).mean(1)


@settings(max_examples=8)
@given(
    sizes=st.sampled_from([(2, 2, 1), (2, 2, 3), (3, 2, 2), (2, 4, 1), (3, 3, 1), (5, 2, 1)]),
    num_params=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_the_estimates_are_right_on_average_over_every_batch(sizes, num_params, seed):
    num_examples, num_parts, part_batch = sizes
    gradients_NP = dataset(num_examples, num_params, seed)
    exact = noise_scale.exact_noise(gradients_NP)
    batches = list(every_batch(gradients_NP, num_parts, part_batch))
    mean = noise_scale.average_noise(noise_scale.estimate_from_parts(parts, part_batch) for parts in batches)
    assert mean.signal == pytest.approx(exact.signal, rel=1e-9, abs=1e-12)
    assert mean.noise == pytest.approx(exact.noise, rel=1e-9)
    # The naive one has B_big's noise in its signal, and as much too little in its noise.
    naive = noise_scale.average_noise(
        noise_scale.naive_noise(parts.square().sum(1).tolist(), part_batch, parts.mean(0).square().sum().item())
        for parts in batches
    )
    big = num_parts * part_batch
    assert naive.signal == pytest.approx(exact.signal + exact.noise / big, rel=1e-9)
    assert naive.noise == pytest.approx(exact.noise * (1 - part_batch / big), rel=1e-9)


def test_a_mean_of_ratios_is_not_the_ratio_of_means():
    gradients_NP = dataset(4, 2)
    exact = noise_scale.exact_noise(gradients_NP)
    estimates = [noise_scale.estimate_from_parts(parts, 2) for parts in every_batch(gradients_NP, 2, 2)]
    assert noise_scale.average_noise(estimates).noise_scale == pytest.approx(exact.noise_scale, rel=1e-9)
    ratios = [one.noise / one.signal for one in estimates if one.signal]
    assert sum(ratios) / len(ratios) != pytest.approx(exact.noise_scale, rel=0.2)


@given(signal=st.floats(0.01, 100), noise=st.floats(0.01, 100), small=st.integers(1, 99), more=st.integers(1, 99))
def test_from_the_expected_squares_the_exact_numbers_come_back(signal, noise, small, more):
    big = small + more
    estimate = noise_scale.estimate_noise([signal + noise / small], small, signal + noise / big, big)
    assert estimate.signal == pytest.approx(signal, rel=1e-6, abs=1e-6 * noise)
    assert estimate.noise == pytest.approx(noise, rel=1e-6, abs=1e-6 * signal * big)


def test_many_small_batches_are_averaged():
    estimate = noise_scale.estimate_noise([1.0, 2.0, 6.0], 2, 1.5, 6)
    assert estimate == noise_scale.estimate_noise([3.0], 2, 1.5, 6)
    assert (estimate.signal, estimate.noise) == pytest.approx((0.75, 4.5))


def test_no_signal_is_an_infinite_noise_scale():
    assert (
        noise_scale.GradientNoise(0.0, 1.0).noise_scale == noise_scale.GradientNoise(-0.1, 1.0).noise_scale == math.inf
    )


def test_a_step_at_the_noise_scale_is_half_as_good_as_one_without_noise():
    """On |x|^2 / 2 the best step with batch B gains 1 / (1 + B_noise / B) of the most: equation 2.7."""
    gradients_NP = dataset(6, 3)
    noise = noise_scale.exact_noise(gradients_NP)
    for batch_size in (noise.noise_scale / 3, noise.noise_scale, 5 * noise.noise_scale):
        # E[loss(x - rate g)] - loss(x) = -rate |G|^2 + rate^2 / 2 (|G|^2 + noise / B): least at the best rate
        second = noise.signal + noise.noise / batch_size
        rate = noise.signal / second
        gain = rate * noise.signal - rate**2 / 2 * second
        assert gain / (noise.signal / 2) == pytest.approx(1 / (1 + noise.noise_scale / batch_size))


laws = st.builds(noise_scale.StepsLaw, st.floats(1, 1e5), st.floats(0.5, 1e6))


@given(law=laws, batch_size=st.floats(0.1, 1e7))
def test_steps_and_examples_lie_on_the_papers_curve(law, batch_size):
    steps, examples = law.steps(batch_size), law.examples(batch_size)
    assert examples == pytest.approx(steps * batch_size)
    product = (steps / law.min_steps - 1) * (examples / law.min_examples - 1)
    assert product == pytest.approx(1.0, rel=1e-4)
    twice = law.critical_batch
    assert law.steps(twice) == pytest.approx(2 * law.min_steps)
    assert law.examples(twice) == pytest.approx(2 * law.min_examples)


@given(law=laws, low=st.floats(0.05, 1.0), count=st.integers(2, 7))
def test_the_fit_finds_the_law_that_made_the_measurements(law, low, count):
    sizes = [law.critical_batch * low * 2.0**i for i in range(count)]
    fitted = noise_scale.fit_steps_law(sizes, [law.steps(size) for size in sizes])
    assert fitted.min_steps == pytest.approx(law.min_steps, rel=1e-6)
    assert fitted.critical_batch == pytest.approx(law.critical_batch, rel=1e-6)


def test_the_fit_weighs_relative_errors():
    law, sizes = noise_scale.StepsLaw(100.0, 16.0), [1.0, 4.0, 16.0, 64.0, 256.0]
    errors = [1.05, 0.95, 1.05, 0.95, 1.0]
    fitted = noise_scale.fit_steps_law(
        sizes, [law.steps(size) * error for size, error in zip(sizes, errors, strict=True)]
    )
    # By numpy's weighted polynomial fit.
    import numpy as np

    steps = np.array([law.steps(size) for size in sizes]) * errors
    slope, least = np.polyfit(1 / np.array(sizes), steps, 1, w=1 / steps)
    assert (fitted.min_steps, fitted.min_examples) == pytest.approx((least, slope), rel=1e-9)
    assert fitted.critical_batch == pytest.approx(16.0, rel=0.2)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: noise_scale.estimate_noise([1.0], 4, 1.0, 4), "small_batch must be below big_batch: got 4 and 4"),
        (lambda: noise_scale.estimate_from_parts(torch.ones(1, 3), 2), "two parts at least.*got 1"),
        (lambda: noise_scale.average_noise([]), "at least one value: got none"),
        (lambda: noise_scale.fit_steps_law([4.0, 4.0], [10.0, 10.0]), "two batch sizes at least"),
        (lambda: noise_scale.fit_steps_law([1.0, 4.0], [10.0]), "got 1 of steps and 2 sizes"),
        (lambda: noise_scale.fit_steps_law([1.0, 4.0], [10.0, 0.0]), "all positive"),
        (
            lambda: noise_scale.fit_steps_law([1.0, 4.0], [10.0, 10.0]),
            "critical_batch must be a .*, above 0: .*measure at more sizes",
        ),
        (lambda: noise_scale.fit_steps_law([1.0, 4.0], [10.0, 50.0]), "must be a finite number, above 0"),
    ],
)
def test_bad_input_is_one_clear_error(call, message):
    with pytest.raises(ValueError, match=message):
        call()
