"""Shards read by any ranks and workers, stopped anywhere: what was used and what is left make the whole, once."""

import json
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from lablib.data.resumable_shards import SampleRange, ShardProgress, ShardReader, deal_pieces
from lablib.data.shuffle_buffer import shuffle_buffer

SIZES = st.lists(st.integers(0, 12), min_size=1, max_size=6)
SETUPS = st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 9))  # ranks, workers, shuffle buffer


def read(shard, start, stop):
    return [100 * shard + place for place in range(start, stop)]


def samples(sizes):
    return [100 * shard + place for shard, size in enumerate(sizes) for place in range(size)]


def in_turn(readers):
    """What a loader delivers: its workers' samples in turn."""
    readers = list(readers)
    while readers:
        for reader in list(readers):
            for sample in islice(reader, 1):
                yield sample
                break
            else:
                readers.remove(reader)


@given(sizes=SIZES, runs=st.lists(st.tuples(SETUPS, st.lists(st.integers(0, 9), min_size=4, max_size=4)), max_size=4))
def test_any_stops_of_any_readers_lose_nothing_and_repeat_nothing(sizes, runs):
    progress, used = ShardProgress(sizes), []
    for seed, ((world_size, workers, buffer), stops) in enumerate([*runs, ((2, 2, 3), [99] * 4)]):
        states = []
        for rank, stop in zip(range(world_size), stops, strict=False):
            reader = ShardReader(read, progress.left(), rank, world_size, seed)
            mine = ShardProgress.of([progress.state_dict()])
            # A shuffle buffer in each worker has read samples that never come to the loop.
            loader = in_turn(shuffle_buffer(reader.samples_of(worker, workers), buffer) for worker in range(workers))
            for shard, place, sample in islice(loader, stop):
                mine.mark_used(shard, place)
                used.append(sample)
            states.append(json.loads(json.dumps(mine.state_dict())))
        progress = ShardProgress.of(states)
        assert sum(stop - start for _, start, stop in progress.left()) == sum(sizes) - len(used)
    assert sorted(used) == samples(sizes) and progress.left() == []


@given(places=st.lists(st.integers(0, 9), max_size=30))
def test_a_sample_that_comes_again_takes_no_other_back(places):
    progress = ShardProgress([10])
    for place in places:
        progress.mark_used(0, place)
    again = ShardProgress.of([progress.state_dict(), progress.state_dict()])
    for one in (progress, again):
        left = [place for _, start, stop in one.left() for place in range(start, stop)]
        assert left == sorted(set(range(10)) - set(places))


JSON = st.recursive(st.none() | st.integers(-3, 12) | st.floats() | st.text(max_size=2), st.lists, max_leaves=6)
INTERVALS = st.lists(st.lists(st.lists(st.integers(-2, 7), min_size=2, max_size=2), max_size=2), min_size=2, max_size=2)


@given(used=JSON | INTERVALS, sizes=JSON | st.just([4, 6]), left_out=st.sampled_from(["", "", "", "sizes", "used"]))
def test_a_state_edited_by_hand_is_one_clear_error_or_a_true_one(used, sizes, left_out):
    state = {name: value for name, value in (("sizes", sizes), ("used", used)) if name != left_out}
    try:
        left = ShardProgress.of([state]).left()
    except ValueError as error:
        assert "`state_dict` made it" in str(error) or "at least 0 samples" in str(error)
        return
    had = [place for start_stop in used for start, stop in start_stop for place in range(start, stop)]
    assert sum(piece.stop - piece.start for piece in left) >= sum(sizes) - len(had)
    assert all(0 <= piece.start < piece.stop <= sizes[piece.shard] for piece in left)


@given(sizes=SIZES, world_size=st.integers(1, 4))
def test_without_workers_the_ranks_read_everything(sizes, world_size):
    left = ShardProgress(sizes).left()
    got = [sample for rank in range(world_size) for *_, sample in ShardReader(read, left, rank, world_size)]
    assert sorted(got) == samples(sizes)


@given(sizes=SIZES, num_readers=st.integers(1, 20), seed=st.integers(0, 9))
def test_pieces_are_dealt_out_once_and_evenly(sizes, num_readers, seed):
    readers = deal_pieces(ShardProgress(sizes).left(), num_readers, seed)
    dealt = [sample for mine in readers for shard, start, stop in mine for sample in read(shard, start, stop)]
    assert sorted(dealt) == samples(sizes) and len(readers) == num_readers
    if sum(sizes) >= num_readers:
        assert all(readers)  # nobody is idle while there is a sample for each
    held = [sum(stop - start for _, start, stop in mine) for mine in readers]
    largest = max((stop - start for mine in readers for _, start, stop in mine), default=0)
    assert max(held) - min(held) <= largest  # else the last piece would have gone to another


def test_progress_says_itself_in_a_line():
    progress = ShardProgress([3, 4])
    progress.mark_used(1, 0)
    assert repr(progress) == "ShardProgress(2 shards, 6 of 7 samples left)"


@pytest.mark.parametrize("before, after", [(0, 2), (2, 1)])
def test_workers_of_a_real_loader_may_be_others_after_the_stop(before, after):
    sizes, used = [7, 11, 5], []
    progress = ShardProgress(sizes)
    for workers, most in ((before, 4), (after, 99)):
        loader = DataLoader(ShardReader(read, progress.left()), batch_size=3, num_workers=workers)
        for batch in islice(loader, most):
            for shard, place, sample in zip(*(column.tolist() for column in batch), strict=True):
                progress.mark_used(shard, place)
                used.append(sample)
    assert sorted(used) == samples(sizes)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: ShardProgress([3]).mark_used(0, 3), r"sizes \[3\]: got place 3 of shard 0"),
        (lambda: ShardProgress([3]).mark_used(1, 0), "got place 0 of shard 1"),
        (lambda: ShardProgress.of([]), r"same shards: got sizes \[\]"),
        (lambda: ShardProgress.of([ShardProgress([n]).state_dict() for n in (1, 2)]), r"got sizes \[\[1\], \[2\]\]"),
        (
            lambda: deal_pieces([SampleRange(0, 5, 2)], 1),
            "the samples .start, stop. of a shard: got SampleRange.shard=0, start=5",
        ),
        (lambda: ShardReader(read, [], 1, 1), "rank must be from 0 to world_size - 1 = 0: got 1"),
    ],
)
def test_bad_input_is_one_clear_error(call, message):
    with pytest.raises(ValueError, match=message):
        call()
