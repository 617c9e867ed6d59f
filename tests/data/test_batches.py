"""Batches are the same text in the same order for every number of ranks, and no sequence is read twice in an epoch."""

from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lablib.data import Corpus, ResumableBatches, batches


def corpus_of(num_bytes: int) -> Corpus:
    tokens_N = torch.randint(256, (num_bytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return Corpus("made up", tokens_N, num_bytes, "0" * 64, "a test")


@given(
    num_bytes=st.integers(130, 400),
    seq_len=st.integers(1, 16),
    local_size=st.integers(1, 2),
    world_size=st.sampled_from([1, 2, 4]),
    seed=st.integers(0, 2**31),
)
def test_union_over_ranks_is_the_same_for_every_world_size(num_bytes, seq_len, local_size, world_size, seed):
    corpus, batch_size = corpus_of(num_bytes), local_size * 4
    count = 2 * (num_bytes // seq_len) // batch_size + 1  # into the second epoch, and often the third
    one_device = list(islice(batches(corpus, batch_size, seq_len, seed), count))
    per_rank = [
        islice(batches(corpus, batch_size, seq_len, seed, rank, world_size), count) for rank in range(world_size)
    ]
    for whole, parts in zip(one_device, zip(*per_rank, strict=True), strict=True):
        assert all(len(part.inputs) == batch_size // world_size for part in parts)
        assert torch.equal(torch.cat([part.inputs for part in parts]), whole.inputs)
        assert torch.equal(torch.cat([part.targets for part in parts]), whole.targets)


@given(taken=st.integers(0, 40), seq_len=st.integers(4, 16), seed=st.integers(0, 9), more=st.sampled_from([1, 2, 4]))
def test_a_run_goes_on_after_any_batch_on_any_number_of_ranks(taken, seq_len, seed, more):
    corpus, sizes = corpus_of(300), (4, seq_len, seed)
    first = ResumableBatches(corpus, *sizes, 1, 2)
    for _ in range(taken):
        next(first)
    whole = islice(batches(corpus, *sizes), taken, taken + 12)
    resumed = [ResumableBatches(corpus, *sizes, rank, more) for rank in range(more)]
    for one in resumed:
        one.load_state_dict(first.state_dict())
    for wanted, *parts in zip(whole, *resumed, strict=False):
        assert torch.equal(torch.cat([part.targets for part in parts]), wanted.targets)
    assert all(one.state_dict()["num_taken"] >= taken + 12 for one in resumed)


def test_a_run_does_not_go_on_with_another_order():
    state = ResumableBatches(corpus_of(300), 4, 8).state_dict()
    with pytest.raises(ValueError, match="the same order of batches: seq_len was 8, and is 9; set it back"):
        ResumableBatches(corpus_of(300), 4, 9).load_state_dict(state)


@given(seq_len=st.integers(1, 12), batch_size=st.integers(1, 8), seed=st.integers(0, 99))
def test_an_epoch_reads_every_sequence_once_and_the_next_in_another_order(seq_len, batch_size, seed):
    tokens_N = torch.arange(199, dtype=torch.uint8)  # every byte differs: a sequence is known by its first
    corpus = Corpus("numbers", tokens_N, 199, "0" * 64, "a test")
    num_sequences = 198 // seq_len
    num_batches = num_sequences // batch_size
    stream = batches(corpus, batch_size, seq_len, seed)
    epochs = [torch.cat([next(stream).inputs for _ in range(num_batches)])[:, 0].tolist() for _ in range(2)]
    for firsts in epochs:
        assert len(set(firsts)) == len(firsts) == num_batches * batch_size
        assert {first % seq_len for first in firsts} == {0}
    if num_batches * batch_size > 8:
        assert epochs[0] != epochs[1]


def test_targets_are_the_inputs_moved_on_by_one_byte():
    corpus = Corpus("numbers", torch.arange(101, dtype=torch.uint8), 101, "0" * 64, "a test")
    batch = next(batches(corpus, batch_size=4, seq_len=10))
    assert batch.inputs.shape == batch.targets.shape == (4, 10)
    assert batch.inputs.dtype == batch.targets.dtype == torch.int64
    assert torch.equal(batch.targets, batch.inputs + 1)


def test_one_seed_is_one_order_and_another_seed_another():
    first, same, other = (next(batches(corpus_of(5000), 8, 16, seed)) for seed in (3, 3, 4))
    assert torch.equal(first.inputs, same.inputs)
    assert not torch.equal(first.inputs, other.inputs)


def test_batches_leave_the_default_generator_alone():
    before = torch.get_rng_state()
    next(batches(corpus_of(500), 2, 8))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 6, "world_size": 4}, r"multiple of world_size: got 6 and 4; try 8"),
        ({"batch_size": 8, "world_size": 4, "rank": 4}, r"rank must be from 0 to world_size - 1 = 3: got 4"),
        ({"batch_size": 11}, r"one batch of 11 x 10 bytes: made up has 101; try a smaller"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_at_the_call(arguments, message):
    with pytest.raises(ValueError, match=message):
        batches(corpus_of(101), seq_len=10, **arguments)
