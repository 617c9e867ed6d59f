"""Progress in shards that are read from front to back, resumable at any sample, with other ranks and workers.

A worker that streams shards cannot jump to "sample 4,711 of the epoch", and its position in the stream is useless with
another number of workers. So the state is kept by shard: the places that the loop has used, as intervals. The rest are
pieces of shards. They are dealt out again, the largest first, each to the reader with the least to do:

    used       shard 0: [0, 100)        shard 1: [0, 40)         shard 2:
    left       -                        [40, 100)                [0, 100)
    4 readers  the largest is halved until there is a piece for each: [0, 50) [50, 75) [75, 100) of shard 2, ...

Each sample travels with its shard and place, and the loop marks it as used; samples that a worker has read and the loop
has not taken are read again. A shuffle buffer between reader and loop only makes more intervals.

Cost: two numbers per interval: one for each piece in progress, with a shuffle buffer up to one per sample in it.
Source: offsets for each part of a log, kept by its reader: J. Kreps et al., "Kafka: a Distributed Messaging System for
Log Processing", 2011. MosaicML's StreamingDataset saves an offset into one order of all samples instead.
Simplified: a reader can begin inside a shard (by an index, or by reading and dropping the samples before).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from torch.utils.data import IterableDataset, get_worker_info

from lablib.data.sharding import check_rank_of, epoch_order
from lablib.signature import Count, NonNegativeInt, Range, checked, fits, shown
from lablib.text.units import plural

_REMEDY = "give it as `state_dict` made it, or begin the epoch again."


class SampleRange(NamedTuple):
    """The samples [start, stop) of a shard."""

    shard: int
    start: int
    stop: int


class ShardProgress:
    """The samples of each shard that the loop has used; `sizes`: all samples of each."""

    @checked
    def __init__(self, sizes: Sequence[NonNegativeInt]):
        self._sizes = tuple(sizes)
        self._starts: list[dict[int, int]] = [{} for _ in sizes]  # of each shard: an interval's start by its end

    def __repr__(self) -> str:
        left = sum(map(_size, self.left()))
        return f"ShardProgress({plural(len(self._sizes), 'shards')}, {left:,} of {sum(self._sizes):,} samples left)"

    def mark_used(self, shard: int, place: int) -> None:
        """Mark a sample as used."""
        if not 0 <= shard < len(self._sizes) or not 0 <= place < self._sizes[shard]:
            raise ValueError(f"shards have the sizes {list(self._sizes)}: got place {place} of shard {shard}.")
        starts = self._starts[shard]
        before = starts.pop(place, place)  # an interval that ended here is one longer
        starts[place + 1] = min(before, starts.get(place + 1, place))  # unless the sample was used already

    def left(self) -> list[SampleRange]:
        """The pieces that are not used yet, in order."""
        pieces = []
        for shard, size in enumerate(self._sizes):
            edge = 0
            for start, stop in self._intervals(shard):
                pieces.append(SampleRange(shard, edge, start))
                edge = stop
            pieces.append(SampleRange(shard, edge, size))
        return [piece for piece in pieces if piece.start < piece.stop]

    def state_dict(self) -> dict[str, Any]:
        """Sizes, and the used intervals of each shard, as plain lists."""
        return {"sizes": list(self._sizes), "used": [self._intervals(shard) for shard in range(len(self._sizes))]}

    @staticmethod
    @checked
    def of(states: Sequence[Mapping[str, Any]]) -> "ShardProgress":
        """The progress of all ranks together. ValueError: no state, states of different shards, or a damaged state."""
        for state in states:
            _check_state(state)
        sizes = [list(state["sizes"]) for state in states]
        if not states or any(one != sizes[0] for one in sizes):
            raise ValueError(f"the states of all ranks must be of the same shards: got sizes {sizes}.")
        progress = ShardProgress(sizes[0])
        for shard in range(len(sizes[0])):
            intervals = sorted(tuple(one) for state in states for one in state["used"][shard])
            progress._starts[shard] = {stop: start for start, stop in _joined(intervals)}
        return progress

    def _intervals(self, shard: int) -> list[list[int]]:
        return [list(one) for one in _joined(sorted((start, stop) for stop, start in self._starts[shard].items()))]


@checked
def deal_pieces(
    pieces: Sequence[SampleRange], num_readers: Annotated[int, Range(ge=1, le=10**6)], seed: NonNegativeInt = 0
) -> list[list[SampleRange]]:
    """The pieces of each reader: no sample lost, none twice, and as many samples each as pieces allow.

    Arguments:
        num_readers: ranks times workers; the largest pieces are halved until each reader has one.
        seed: seed of the order of pieces of one size; another one in each epoch.
    """
    for piece in pieces:
        if not 0 <= piece.start <= piece.stop:
            raise ValueError(f"a piece is the samples [start, stop) of a shard: got {piece}.")
    waiting = [pieces[place] for place in epoch_order(len(pieces), seed)]
    waiting.sort(key=_size, reverse=True)
    while waiting and len(waiting) < num_readers and _size(waiting[0]) > 1:
        shard, start, stop = waiting.pop(0)
        middle = (start + stop) // 2
        waiting += [SampleRange(shard, start, middle), SampleRange(shard, middle, stop)]
        waiting.sort(key=_size, reverse=True)
    readers: list[list[SampleRange]] = [[] for _ in range(num_readers)]
    for piece in waiting:
        min(readers, key=lambda mine: sum(map(_size, mine))).append(piece)
    return readers


class ShardReader(IterableDataset[tuple[int, int, Any]]):
    """A rank's samples as (shard, place, sample), shared out among the loader's workers.

    Arguments:
        read: returns the samples [start, stop) of a shard, in order.
        pieces: pieces left for all ranks, `ShardProgress.left()`.
        seed: seed of the order of the pieces, the same on every rank.
    """

    @checked
    def __init__(
        self,
        read: Callable[[int, int, int], Iterable[Any]],
        pieces: Sequence[SampleRange],
        rank: int = 0,
        world_size: Count = 1,
        seed: NonNegativeInt = 0,
    ):
        check_rank_of(rank, world_size)
        self._read, self._pieces, self._seed = read, tuple(pieces), seed
        self._rank, self._world_size = rank, world_size

    def __iter__(self) -> Iterator[tuple[int, int, Any]]:
        """The samples of this worker's pieces."""
        info = get_worker_info()
        worker, num_workers = (info.id, info.num_workers) if info else (0, 1)
        return self.samples_of(worker, num_workers)

    def samples_of(self, worker: int, num_workers: int) -> Iterator[tuple[int, int, Any]]:
        """The samples of one of `num_workers` workers."""
        mine = deal_pieces(self._pieces, self._world_size * num_workers, self._seed)
        for shard, start, stop in mine[self._rank * num_workers + worker]:
            for place, sample in zip(range(start, stop), self._read(shard, start, stop), strict=True):
                yield shard, place, sample


def _check_state(state: Mapping[str, Any]) -> None:
    sizes: Any = state.get("sizes")
    used: Any = state.get("used")
    if not (fits(sizes, Sequence[int]) and fits(used, Sequence[Sequence[Sequence[int]]]) and len(sizes) == len(used)):
        raise ValueError(f"a state of shards has sizes and, of each, the intervals used: got {shown(state)}; {_REMEDY}")
    for shard, (size, intervals) in enumerate(zip(sizes, used, strict=True)):
        for one in intervals:
            if len(one) != 2 or not 0 <= one[0] < one[1] <= size:
                raise ValueError(
                    f"an interval that was used is [start, stop) in its shard: got {shown(one)} in shard {shard} of "
                    f"{size} samples; {_REMEDY}"
                )


def _size(piece: SampleRange) -> int:
    return piece.stop - piece.start


def _joined(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sorted intervals, with touching or overlapping ones joined."""
    joined: list[tuple[int, int]] = []
    for start, stop in intervals:
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined
