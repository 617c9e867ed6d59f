"""Ranks and workers share an epoch: nothing is lost, nothing comes twice, and padding and dropping are torch's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from lablib.data.sharding import Uneven, count_seen, epoch_order, rank_part

SIZES = {"num": st.integers(1, 60), "world_size": st.integers(1, 9), "seed": st.integers(0, 99)}


@pytest.mark.parametrize("uneven", [Uneven.PAD, Uneven.DROP])
@given(**SIZES, epoch=st.integers(0, 5))
def test_the_parts_are_those_of_torch(uneven, num, world_size, seed, epoch):
    for rank in range(world_size):
        sampler = DistributedSampler(range(num), world_size, rank, seed=seed, drop_last=uneven is Uneven.DROP)  # type: ignore[arg-type]
        sampler.set_epoch(epoch)
        assert rank_part(epoch_order(num, seed, epoch), rank, world_size, uneven) == list(sampler)


@given(**SIZES)
def test_every_sample_is_seen_once_padded_ones_twice_and_dropped_ones_never(num, world_size, seed):
    order, remainder = epoch_order(num, seed), num % world_size
    parts = {uneven: [rank_part(order, rank, world_size, uneven) for rank in range(world_size)] for uneven in Uneven}
    assert count_seen(parts[Uneven.KEEP], num).is_exact
    assert not count_seen(parts[Uneven.PAD], num).lost
    assert sum(map(len, parts[Uneven.PAD])) == num + (world_size - remainder) % world_size
    dropped = count_seen(parts[Uneven.DROP], num)
    assert len(dropped.lost) == remainder and not dropped.repeated
    for uneven in (Uneven.PAD, Uneven.DROP):
        assert len({len(part) for part in parts[uneven]}) == 1
    assert max(map(len, parts[Uneven.KEEP])) - min(map(len, parts[Uneven.KEEP])) <= 1


@pytest.mark.parametrize("uneven", Uneven)
def test_of_no_samples_every_rank_has_none(uneven):
    assert rank_part([], 1, 2, uneven) == []


@pytest.mark.parametrize("world_size", [2, 8])
def test_a_seed_for_each_rank_loses_a_third_of_the_samples_and_repeats_others(world_size):
    num = 8_000
    own = [rank_part(epoch_order(num, seed=rank), rank, world_size) for rank in range(world_size)]
    seen = count_seen(own, num)
    assert len(seen.lost) / num == pytest.approx((1 - 1 / world_size) ** world_size, abs=4 * 0.5 / num**0.5)
    assert len(seen.repeated) > 0.2 * num
    assert count_seen([rank_part(epoch_order(num), rank, world_size) for rank in range(world_size)], num).is_exact


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: rank_part([0], 2, 2), "rank must be from 0 to world_size - 1 = 1: got 2"),
        (lambda: count_seen([[0, 7]], 7), r"from 0 to 6: got \[7\]"),
    ],
)
def test_bad_input_is_one_clear_error(call, message):
    with pytest.raises(ValueError, match=message):
        call()
