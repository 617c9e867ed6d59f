"""A sampler that can stop at any sample and go on, with the same or another number of ranks and workers.

The state is the set of used places in the epoch's common order. The sampler's own position does not do: workers have
loaded batches that the loop never took. Nor does a rank's position in its part: with other ranks there are other parts.
With the same number of batches on every rank the used places are the first ones; in general, the first ones and some
more:

    order        5 2 7 0 6 1 4 3          two ranks, batches of 1, in turn
    rank 0       5   7   6   4            has used 5 7 6; 4 is loaded and not taken: it does not count
    rank 1         2   0   1   3          has used 2
    used places  0 1 2 4                  state: the first 3, and 4
    left         0 1 4 3                  dealt out again to any number of ranks

The rank's batches of a resumed epoch come from the places left, dealt out as `sharding.rank_part` deals. Workers do not
matter, as the loop counts the used batches:

    sampler = ResumableSampler(len(dataset), batch_size, rank, world_size)
    loader = DataLoader(dataset, batch_sampler=sampler, num_workers=8)
    for batch in sampler.used(loader):          # a batch counts as used once the loop has it
        ...; state = sampler.state_dict()       # so save after its step
    state = merge_states([state of each rank])  # once, when saving
    sampler.load_state_dict(state)              # on each rank of the new run

Cost: a state is two numbers and the places that some ranks were ahead: none if all did as many steps. The order is
computed again: N numbers, milliseconds for a million.
Source: torchdata 0.11, StatefulDataLoader, counts the batches that were yielded: exact with as many workers as before;
with others it ends in an AssertionError, and it does not support other numbers of ranks. MosaicML's StreamingDataset
saves `epoch` and `sample_in_epoch` over all ranks ("Resumption").
Simplified: the order of an epoch is held in memory. Random augmentation in a worker is not resumed: take its seed from
the number of the sample and the epoch.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from torch.utils.data import Sampler

from lablib.data.sharding import NumSamples, Uneven, check_rank_of, dealt, epoch_order
from lablib.signature import Count, NonNegativeInt, checked, fits, shown
from lablib.text.units import plural

T = TypeVar("T")


class ResumableSampler(Sampler[list[int]]):
    """Batches of sample numbers for one rank, epoch by epoch; a `batch_sampler` of torch's DataLoader.

    Arguments:
        batch_size: samples per rank and step.
        seed: seed of the order, the same on every rank.
        uneven: rule for samples that do not divide by the ranks.
    """

    @checked
    def __init__(
        self,
        num_samples: NumSamples,
        batch_size: Count,
        rank: int = 0,
        world_size: Count = 1,
        seed: NonNegativeInt = 0,
        uneven: Uneven = Uneven.KEEP,
    ):
        check_rank_of(rank, world_size)
        self._num_samples, self._batch_size = num_samples, batch_size
        self._rank, self._world_size, self._uneven = rank, world_size, uneven
        self._begin(seed, 0, frozenset())

    def _begin(self, seed: int, epoch: int, used_before: frozenset[int]) -> None:
        """Begin an epoch, or resume it after the places of the order that an earlier run has used."""
        self._seed, self._epoch, self._used_before = seed, epoch, used_before
        left = [place for place in range(self._num_samples) if place not in used_before]
        self._part = dealt(left, self._rank, self._world_size, self._uneven)
        self._num_used = 0  # of this rank's part

    @property
    def epoch(self) -> int:
        """The epoch under way, from 0."""
        return self._epoch

    def __iter__(self) -> Iterator[list[int]]:
        """The batches of this epoch that are not used yet, however far a loader runs ahead."""
        order, places = epoch_order(self._num_samples, self._seed, self._epoch), self._part[self._num_used :]
        for first in range(0, len(places), self._batch_size):
            yield [order[place] for place in places[first : first + self._batch_size]]

    def __repr__(self) -> str:
        used = f"{self._num_used} of {plural(len(self._part), 'samples')} used"
        return f"ResumableSampler(rank {self._rank} of {self._world_size}, epoch {self._epoch}, {used})"

    def __len__(self) -> int:
        return -(-(len(self._part) - self._num_used) // self._batch_size)

    def used(self, loader: Iterable[T]) -> Generator[T, None, None]:
        """The loader's batches of one epoch; each counts as used from when the loop has it: save after its step.

        After the last the next epoch begins.
        """
        for batch in loader:
            self.mark_used()
            yield batch
        self._begin(self._seed, self._epoch + 1, frozenset())

    def mark_used(self) -> None:
        """One more batch of this rank was used; for loops that do not run through `used`."""
        self._num_used = min(self._num_used + self._batch_size, len(self._part))

    def state_dict(self) -> dict[str, Any]:
        """The places of the epoch that this rank has used, as plain numbers for `merge_states`."""
        mine = self._part[: self._num_used]
        return {
            "num_samples": self._num_samples,
            "seed": self._seed,
            "epoch": self._epoch,
            **_first_and_more(self._used_before.union(mine)),
        }

    @checked
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after a state of all ranks (`merge_states`). ValueError: of another data set, or damaged."""
        _check_state(state)
        if state["num_samples"] != self._num_samples:
            raise ValueError(
                f"a state goes on with the data set it was saved with: that had {state['num_samples']} samples, this "
                f"has {self._num_samples}; start a new epoch without the state."
            )
        self._begin(state["seed"], state["epoch"], _used_places(state))


@checked
def merge_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The places that any rank has used, as one state. ValueError: none, a damaged one, other data, seeds or epochs."""
    if not states:
        raise ValueError("merge_states needs the state of every rank: got none.")
    for state in states:
        _check_state(state)
    epoch = min(state["epoch"] for state in states)
    for name in ("num_samples", "seed"):
        if len({state[name] for state in states}) > 1:
            raise ValueError(f"all ranks must have one {name}: got {sorted({state[name] for state in states})}.")
    if any(state["epoch"] != epoch for state in states):
        found = sorted({state["epoch"] for state in states})
        raise ValueError(
            f"all ranks must be in one epoch: got {found}; save before the first of them begins the next epoch."
        )
    used = frozenset[int]().union(*map(_used_places, states))
    return {**{name: states[0][name] for name in ("num_samples", "seed", "epoch")}, **_first_and_more(used)}


def _check_state(state: Mapping[str, Any]) -> None:
    """Refuse places outside the epoch, which would be lost, or end it, silently."""
    names = ("num_samples", "seed", "epoch", "first")
    right = all(fits(state.get(name), NonNegativeInt) for name in names) and fits(state.get("more"), Sequence[int])
    if not (right and state["first"] <= state["num_samples"]) or any(
        not state["first"] < place < state["num_samples"] for place in state["more"]
    ):
        raise ValueError(
            f"a state has {', '.join(names)} from 0 on, and more places between first and num_samples: got "
            f"{shown(dict(state))}; give it as `state_dict` made it, or begin the epoch again."
        )


def _first_and_more(used: frozenset[int]) -> dict[str, Any]:
    """Places as the number used from the first on, and the others."""
    first = 0
    while first in used:
        first += 1
    return {"first": first, "more": sorted(place for place in used if place > first)}


def _used_places(state: Mapping[str, Any]) -> frozenset[int]:
    return frozenset([*range(state["first"]), *state["more"]])
