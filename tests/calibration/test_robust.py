"""Fits that a few bad measurements do not move."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.calibration.robust import least_relative_error, log_median, residual

positive = st.floats(1e-9, 1e9)


@given(st.lists(positive, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_exact_lines_are_found_whatever_the_scale_of_their_unknowns(unknowns, random):
    rows = np.array([[random.uniform(0.1, 10) / x for x in unknowns] for _ in range(12)])
    found = least_relative_error(rows, rows @ np.array(unknowns))
    assert found == pytest.approx(unknowns, rel=1e-4)


@given(st.integers(0, 3), st.floats(2, 1000))
def test_a_third_of_measurements_far_too_long_does_not_move_the_line(seed, factor):
    random = np.random.default_rng(seed)
    rows = np.stack([np.ones(30), np.logspace(0, 4, 30)], axis=1)
    times = rows @ np.array([1e-3, 1e-6])
    times[random.choice(30, 9, replace=False)] *= factor
    assert least_relative_error(rows, times) == pytest.approx([1e-3, 1e-6], rel=1e-3)


def test_an_unknown_that_would_be_negative_is_zero():
    rows = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 4.0]])
    found = least_relative_error(rows, rows @ np.array([-0.5, 1.0]))
    assert found[0] == 0.0 and found[1] > 0


def test_the_median_on_a_logarithmic_scale():
    assert log_median([1.0, 1e4]) == pytest.approx(100.0) and log_median([3.0, 2.0, 1e9]) == pytest.approx(3.0)


def test_a_residual_names_its_worst_case():
    found = residual("matmul", ["a", "b", "c"], [1.0, 3.0, 1.1], [1.0, 1.0, 1.0])
    assert (found.worst, found.worst_case, found.count) == (2.0, "b", 3)
    assert found.median == pytest.approx(0.1)
    assert str(found) == "median 10%, worst 200% (b), 3 measurements"
