"""Stop at any sample, go on with any number of ranks and workers: in an epoch no sample is lost or seen twice."""

import json
import re
from collections import deque
from functools import partial
from itertools import islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from lablib.data.resumable_sampler import ResumableSampler, merge_states
from lablib.data.sharding import Uneven, count_seen

SETUP = st.tuples(
    st.integers(1, 5), st.integers(1, 4), st.integers(0, 9)
)  # ranks, batch size, batches workers load ahead


def ahead(batches, num):
    """A loader that has taken `num` batches more from the sampler than it has given to the loop."""
    loaded = deque(islice(batches, num))
    while loaded:
        yield loaded.popleft()
        loaded.extend(islice(batches, 1))


def ranks_of(num, batch_size, world_size, state, seed=0):
    samplers = [ResumableSampler(num, batch_size, rank, world_size, seed) for rank in range(world_size)]
    for sampler in samplers:
        if state is not None:
            sampler.load_state_dict(state)
    return samplers


@given(num=st.integers(0, 50), runs=st.lists(st.tuples(SETUP, st.lists(st.integers(0, 8), min_size=5, max_size=5))))
def test_any_stops_on_any_ranks_lose_nothing_and_repeat_nothing(num, runs):
    used, state = [], None
    for (world_size, batch_size, loaded), stops in [*runs, ((2, 3, 4), [99] * 5)]:
        samplers = ranks_of(num, batch_size, world_size, state)
        for sampler, stop in zip(samplers, stops, strict=False):  # each rank stops where it likes
            # Workers' batches: the last ones are loaded and not taken by the loop.
            loop = sampler.used(ahead(iter(sampler), loaded + 1))
            used.append([sample for batch in islice(loop, stop) for sample in batch])
        if any(sampler.epoch for sampler in samplers):
            break  # some rank has come to its end: the others go on to theirs
        state = json.loads(json.dumps(merge_states([sampler.state_dict() for sampler in samplers])))
    for sampler in samplers:
        if not sampler.epoch:
            used.append([sample for batch in sampler for sample in batch])
    seen = count_seen(used, num)
    assert seen.is_exact, (seen.lost, seen.repeated)


@given(
    num=st.integers(1, 60),
    world_size=st.integers(1, 4),
    batch_size=st.integers(1, 4),
    stop=st.integers(0, 20),
    seed=st.integers(0, 9),
)
def test_with_the_same_ranks_the_batches_are_those_of_a_run_that_never_stopped(num, world_size, batch_size, stop, seed):
    fresh = ranks_of(num, batch_size, world_size, None, seed)
    whole = [list(sampler) for sampler in fresh]
    assert [len(sampler) for sampler in fresh] == [len(batches) for batches in whole]
    stop = min(stop, min(map(len, whole)))
    samplers = ranks_of(num, batch_size, world_size, None, seed)
    first = [list(islice(sampler.used(iter(sampler)), stop)) for sampler in samplers]
    state = merge_states([sampler.state_dict() for sampler in samplers])
    assert state["more"] == []  # as many steps on every rank: one number says all
    rest = [list(sampler) for sampler in ranks_of(num, batch_size, world_size, state, seed=77)]
    if stop * batch_size * world_size <= num:
        assert [a + b for a, b in zip(first, rest, strict=True)] == whole


def test_a_sampler_says_itself_in_a_line():
    sampler = ResumableSampler(20, 4, 1, 2)
    next(sampler.used(iter(sampler)))
    assert repr(sampler) == "ResumableSampler(rank 1 of 2, epoch 0, 4 of 10 samples used)"


def test_epochs_follow_each_other_in_orders_of_their_own():
    sampler = ResumableSampler(20, 4)
    epochs = [[sample for batch in sampler.used(iter(sampler)) for sample in batch] for _ in range(3)]
    assert sampler.epoch == 3 and all(sorted(epoch) == list(range(20)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_a_state_of_a_whole_epoch_goes_on_with_the_next():
    sampler, again = ResumableSampler(6, 2), ResumableSampler(6, 2)
    loop = sampler.used(iter(sampler))
    list(islice(loop, 3))
    again.load_state_dict(merge_states([sampler.state_dict()]))
    assert len(again) == 0 and list(again.used(iter(again))) == [] and again.epoch == 1
    assert sorted(sum(again, [])) == list(range(6))


@pytest.mark.parametrize("before, after", [(0, 2), (2, 1), (2, 0)])
def test_workers_of_a_real_loader_may_be_others_after_the_stop(before, after):
    data, num = torch.arange(37), 37

    def loader(sampler, workers):
        return DataLoader(data, batch_sampler=sampler, num_workers=workers)  # type: ignore[arg-type]

    sampler = ResumableSampler(num, 3)
    loop = sampler.used(loader(sampler, before))
    used = [next(loop).tolist() for _ in range(5)]
    loop.close()
    again = ResumableSampler(num, 3)
    again.load_state_dict(merge_states([sampler.state_dict()]))
    used += [batch.tolist() for batch in again.used(loader(again, after))]
    assert count_seen(used, num).is_exact
    assert used == list(ResumableSampler(num, 3))


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 asks torch 2.13 for it
def test_torchdata_resumes_with_as_many_workers_and_not_with_others():
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="needs the package torchdata")
    data, num = torch.arange(37), 37

    def loader(workers):
        return stateful.StatefulDataLoader(data, batch_size=3, shuffle=True, num_workers=workers)

    def stopped(workers):
        made = loader(workers)
        batches = iter(made)
        return [next(batches).tolist() for _ in range(5)], made.state_dict()

    used, state = stopped(2)
    same = loader(2)
    same.load_state_dict(state)
    assert count_seen(used + [batch.tolist() for batch in same], num).is_exact  # as ours
    for before, after in ((2, 1), (2, 0), (0, 2)):
        other = loader(after)
        other.load_state_dict(stopped(before)[1])
        with pytest.raises(AssertionError):
            list(other)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@settings(max_examples=6, deadline=None)
@given(
    num=st.integers(1, 40), batch_size=st.integers(1, 5), stop=st.integers(0, 40), workers=st.sampled_from([0, 0, 1, 2])
)
def test_torchdata_and_ours_stop_anywhere_and_lose_nothing(num, batch_size, stop, workers):
    """Side by side: the same sizes, the same stop, as many workers again; each in an order of its own."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="needs the package torchdata")
    theirs = partial(stateful.StatefulDataLoader, torch.arange(num), batch_size, shuffle=True, num_workers=workers)
    first = theirs()
    used = [batch.tolist() for batch in islice(first, stop)]
    second = theirs()
    second.load_state_dict(first.state_dict())
    used += [batch.tolist() for batch in second] if stop * batch_size < num else []
    assert count_seen(used, num).is_exact

    def ours(sampler):
        return sampler.used(DataLoader(TensorDataset(torch.arange(num)), batch_sampler=sampler, num_workers=workers))

    sampler = ResumableSampler(num, batch_size)
    used = [batch.tolist() for (batch,) in islice(ours(sampler), stop)]
    state, sampler = sampler.state_dict(), ResumableSampler(num, batch_size)
    sampler.load_state_dict(state)
    while sampler.epoch == 0:
        used += [batch.tolist() for (batch,) in ours(sampler)]
    assert count_seen(used, num).is_exact


def test_padding_repeats_only_what_padding_repeats():
    samplers = [ResumableSampler(7, 2, rank, 2, uneven=Uneven.PAD) for rank in range(2)]
    assert len({len(sampler) for sampler in samplers}) == 1
    seen = count_seen([sum(sampler, []) for sampler in samplers], 7)
    assert not seen.lost and len(seen.repeated) == 1


FIELDS = ["num_samples", "seed", "epoch", "first", "more"]
VALUES = st.none() | st.integers(-3, 12) | st.floats() | st.text(max_size=2) | st.lists(st.integers(-3, 12), max_size=4)


@given(changes=st.dictionaries(st.sampled_from(FIELDS), VALUES), gone=st.sampled_from(FIELDS + [""]))
def test_a_state_edited_by_hand_is_one_clear_error_or_a_true_one(changes, gone):
    state = ResumableSampler(8, 3).state_dict() | changes
    state.pop(gone, None)
    sampler = ResumableSampler(8, 3)
    for load in (sampler.load_state_dict, lambda one: merge_states([one])):
        try:
            load(state)
        except ValueError as error:
            assert re.search("`state_dict` made it|goes on with the data set", str(error))
        else:
            assert not {*range(state["first"]), *state["more"]} - set(range(state["num_samples"]))
    assert sum(map(len, sampler)) <= 8  # and it still goes on


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: ResumableSampler(8, 1, 2, 2), "rank must be from 0 to world_size - 1 = 1: got 2"),
        (lambda: merge_states([]), "state of every rank: got none"),
        (
            lambda: merge_states([ResumableSampler(8, 1, seed=seed).state_dict() for seed in (3, 4)]),
            r"one seed: got \[3, 4\]",
        ),
        (
            lambda: ResumableSampler(9, 1).load_state_dict(ResumableSampler(8, 1).state_dict()),
            "that had 8 samples, this has 9",
        ),
        (
            lambda: merge_states([{"num_samples": 1, "seed": 0, "epoch": e, "first": 0, "more": []} for e in (0, 1)]),
            r"must be in one epoch: got \[0, 1\]; save before",
        ),
    ],
)
def test_bad_input_is_one_clear_error(call, message):
    with pytest.raises(ValueError, match=message):
        call()
