"""Shuffle buffers move samples as their closed forms say."""

from itertools import count, islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.data.shuffle_buffer import shuffle_buffer


@given(num=st.integers(0, 60), size=st.integers(1, 70), seed=st.integers(0, 99))
def test_a_buffer_loses_nothing_and_moves_nothing_far_ahead(num, size, seed):
    order = list(shuffle_buffer(range(num), size, seed))
    assert sorted(order) == list(range(num)) and order == list(shuffle_buffer(range(num), size, seed))
    assert all(sample - place <= size - 1 for place, sample in enumerate(order))
    if size == 1:
        assert order == list(range(num))


def test_a_buffer_reads_no_more_than_it_holds():
    numbers = count()
    shuffled = shuffle_buffer(numbers, 10)
    assert next(numbers) == 0  # nothing is read before the first is asked for
    list(islice(shuffled, 5))
    assert next(numbers) == 16


@pytest.mark.parametrize("size", [2, 16, 128])
def test_samples_move_as_the_closed_forms_say(size):
    num, edge = 40_000, 2_000
    order = list(shuffle_buffer(range(num), size, seed=1))
    inner = [place - sample for place, sample in enumerate(order) if edge <= sample < num - edge]
    mean = sum(inner) / len(inner)
    # Neighbours wait together, so |d| is as good as that of some num / size free draws.
    assert mean == pytest.approx(0, abs=4 * size / (len(inner) / size) ** 0.5)
    assert sum(map(abs, inner)) / len(inner) == pytest.approx(2 * (size - 1) * (1 - 1 / size) ** (size - 1), rel=0.06)
    assert sum(moved**2 for moved in inner) / len(inner) == pytest.approx(size * (size - 1), rel=0.15)
    kept = sum(abs(before - after) == 1 for before, after in pairwise(order)) / (num - 1)
    assert kept == pytest.approx(1 / size, abs=4 * (1 / size / num) ** 0.5)
