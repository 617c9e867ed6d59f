"""Shuffle buffers move samples as their closed forms say."""

import math
from itertools import count, islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.data.shuffle_buffer import expected_displacement, interleave, shuffle_buffer


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
    assert sum(map(abs, inner)) / len(inner) == pytest.approx(expected_displacement(size), rel=0.06)
    assert sum(moved**2 for moved in inner) / len(inner) == pytest.approx(size * (size - 1), rel=0.15)
    kept = sum(abs(before - after) == 1 for before, after in pairwise(order)) / (num - 1)
    assert kept == pytest.approx(1 / size, abs=4 * (1 / size / num) ** 0.5)


@pytest.mark.parametrize("size", [10**6, 2**60])
def test_the_displacement_of_a_large_buffer_is_two_e_ths_of_it(size):
    assert expected_displacement(size) == pytest.approx(2 * size / math.e, rel=1e-5)


def test_the_displacement_of_small_buffers_in_numbers():
    assert expected_displacement(1) == 0
    assert expected_displacement(2) == 1  # d = -1, 0, 1, ... with 1/2, 1/4, 1/8: 1/2 + the same again
    assert expected_displacement(1000) / 1000 == pytest.approx(2 / 2.718281828, rel=1e-3)


@given(sizes=st.lists(st.integers(0, 8), max_size=8), num_open=st.integers(1, 5), seed=st.none() | st.integers(0, 9))
def test_interleaved_shards_lose_nothing_and_keep_their_own_order(sizes, num_open, seed):
    shards = [[(shard, place) for place in range(size)] for shard, size in enumerate(sizes)]
    out = list(interleave(shards, num_open, seed))
    assert sorted(out) == [sample for shard in shards for sample in shard]
    for shard in shards:
        assert [sample for sample in out if sample in shard] == shard


def test_open_shards_come_in_turn():
    assert "".join(interleave([*map(list, ["aaaa", "bb", "ccc", "d"])], 2)) == "ababaaccdc"  # b ends: c is opened
    assert list(interleave([[1, 2, 3], [4, 5, 6]], 1)) == [1, 2, 3, 4, 5, 6]
    assert list(interleave([[1, 2, 3], [4, 5, 6]], 2)) == [1, 4, 2, 5, 3, 6]
