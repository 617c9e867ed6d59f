"""Shuffle buffers move samples as their closed forms say; quality knows a good order from a bad one; stale epochs."""

import math
import random
from itertools import count, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from lablib.data.sharding import epoch_order, rank_part
from lablib.data.shuffle_buffer import expected_displacement, interleave, shuffle_buffer
from lablib.data.shuffle_quality import shuffle_quality, uniform_quality
from lablib.data.stale_epoch import compare_epochs, stale_epochs


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
    quality = shuffle_quality(order)
    assert quality.correlation == pytest.approx(1 - 6 * size * (size - 1) / num**2, abs=1e-4)
    assert quality.neighbours_kept == pytest.approx(1 / size, abs=4 * (1 / size / num) ** 0.5)


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


def test_a_uniform_order_has_the_quality_of_the_reference():
    orders = [shuffle_quality(epoch_order(4_000, seed)) for seed in range(20)]
    expected = uniform_quality(4_000)
    for name, bound in {"displacement": 0.005, "correlation": 0.02, "neighbours_kept": 4e-4, "distance": 0.003}.items():
        mean = sum(getattr(one, name) for one in orders) / len(orders)
        assert mean == pytest.approx(getattr(expected, name), abs=bound), name


def test_the_quality_of_plain_orders_in_numbers():
    sorted_order, back = shuffle_quality(range(100)), shuffle_quality(range(99, -1, -1))
    assert (sorted_order.displacement, sorted_order.correlation, sorted_order.neighbours_kept) == (0, 1, 1)
    assert sorted_order.distance == pytest.approx(0.9) == back.distance
    assert back.correlation == pytest.approx(-1) and back.neighbours_kept == 1


def test_two_samples_are_enough_to_be_in_order():
    assert shuffle_quality([0, 1], windows=2).distance == 0.5 and shuffle_quality([1, 0], windows=1).distance == 0
    assert uniform_quality(2, 1).neighbours_kept == 1 and uniform_quality(2, 2).displacement == 0.25


def test_moved_shards_move_samples_and_mix_nothing():
    shards = [range(first, first + 100) for first in range(0, 4_000, 100)]
    moved = shuffle_quality(list(interleave(shards, 1, seed=3)))
    uniform = uniform_quality(4_000)
    assert moved.displacement > 0.7 * uniform.displacement and abs(moved.correlation) < 0.4
    assert moved.neighbours_kept > 0.98 and moved.distance > 0.5


def test_many_open_shards_and_a_small_buffer_are_nearly_uniform():
    shards = [range(first, first + 100) for first in range(0, 4_000, 100)]
    buffered = shuffle_quality(list(shuffle_buffer(range(4_000), 200)))
    bunched = shuffle_quality(list(shuffle_buffer(interleave(shards, 10, seed=3), 200)))
    assert buffered.distance > 0.7  # a window of 400 holds little but its own
    assert bunched.distance < 0.45 and bunched.neighbours_kept < 0.01
    uniform = random.Random(0).sample(range(4_000), 4_000)
    assert shuffle_quality(uniform).distance < 0.12


def test_an_epoch_that_is_never_set_is_found_by_what_is_delivered():
    sampler = DistributedSampler(range(60), 2, 0)  # type: ignore[arg-type]
    assert stale_epochs([list(sampler) for _ in range(3)]) == [1, 2]
    epochs = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        epochs.append(list(sampler))
    assert stale_epochs(epochs) == []
    assert stale_epochs([*epochs, epochs[1]]) == [3]


def test_a_rank_that_keeps_its_part_is_seen_though_its_order_changes():
    part = list(range(0, 600, 2))
    fixed = [random.Random(epoch).sample(part, len(part)) for epoch in range(2)]
    fresh = [rank_part(epoch_order(600, epoch=epoch), 0, 2) for epoch in range(2)]
    assert [pair.same_samples for pair in compare_epochs(fixed)] == [1.0]
    assert compare_epochs(fresh)[0].same_samples == pytest.approx(0.5, abs=0.15)
    assert not stale_epochs(fixed) and not stale_epochs(fresh)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: shuffle_quality([0, 0]), "each of 0 to N - 1 once, N at least 2: got 2 numbers"),
        (lambda: shuffle_quality([1, 0], 3), "windows must be from 1 to the 2 samples: got 3"),
        (lambda: uniform_quality(2), "windows must be from 1 to the 2 samples: got 10"),
        (lambda: compare_epochs([[1, 2], [1]]), "epoch 1 has 1"),
    ],
)
def test_bad_input_is_one_clear_error(call, message):
    with pytest.raises(ValueError, match=message):
        call()
