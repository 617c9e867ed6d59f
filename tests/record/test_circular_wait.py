"""Which calls wait for each other in a circle, held against a plain model that carries them out one step at a time."""

from collections import Counter
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from lablib.record.circular_wait import Communicator, StreamCall

RANKS = 4
Step = list[StreamCall]  # what a rank does at once
Scripts = list[list[Step]]  # what each rank does, one step after another

pairs = st.tuples(st.integers(0, RANKS - 1), st.integers(0, RANKS - 1)).filter(lambda pair: pair[0] != pair[1])
meetings = st.lists(pairs | st.just(tuple(range(RANKS))), max_size=9)  # two ranks: a message; all: a collective
turns = st.lists(st.integers(0, RANKS - 1), max_size=20)


def calls_of(ranks: tuple[int, ...]) -> Iterator[StreamCall]:
    """The calls of all who come to a meeting."""
    for place, rank in enumerate(ranks):
        yield StreamCall(rank, ranks, ("send", "recv")[place] if len(ranks) == 2 else "all_reduce")


@st.composite
def scripts(draw: st.DrawFn, shuffled: bool = True, lost: bool = False) -> Scripts:
    """Ranks that make calls, in any order if `shuffled`, in batches or not. `lost`: some calls are never made."""
    calls = [call for ranks in draw(meetings) for call in calls_of(ranks)]
    calls = [call for call in calls if not (lost and draw(st.sampled_from([True, False, False, False])))]
    made: Scripts = []
    for rank in range(RANKS):
        mine = [call for call in calls if call.rank == rank]
        made.append([])
        for call in draw(st.permutations(mine)) if shuffled else mine:
            if made[-1] and call.is_message and made[-1][-1][0].is_message and draw(st.booleans()):
                made[-1][-1].append(call)
            else:
                made[-1].append([call])
    return made


def stuck(scripts: Scripts, buffers: bool = False) -> set[int]:
    """The ranks that wait for each other when nothing can go on, or for those that do.

    A rank's steps take place in order, the calls of a step at the same time. `buffers` hold any number of sends.
    """
    left = [[list(step) for step in script] for script in scripts]
    held: Counter[tuple[int, ...]] = Counter()

    def first(rank: int) -> Step:
        return left[rank][0] if left[rank] else []

    def missing(call: StreamCall) -> list[int]:
        if call.name == "recv" and held[call.ranks] or call.name == "send" and buffers:
            return []
        there = [other.rank for rank in call.ranks for other in first(rank)
                 if (other.ranks, other.is_message) == (call.ranks, call.is_message)]  # fmt: skip
        return [rank for rank in call.ranks if rank not in there]

    def takes_place(call: StreamCall) -> None:
        alone = call.is_message and (buffers or held[call.ranks])
        held[call.ranks] += {"send": 1, "recv": -1}.get(call.name, 0) if alone else 0
        for rank in [call.rank] if alone else call.ranks:
            same = [one for one in first(rank) if (one.ranks, one.is_message) == (call.ranks, call.is_message)]
            first(rank).remove(same[0])
            if not first(rank):
                left[rank].pop(0)

    while ready := [call for rank in range(RANKS) for call in first(rank) if not missing(call)]:
        takes_place(ready[0])
    waiting = {rank for rank in range(RANKS) if first(rank)}
    while free := {r for r in waiting if not any(waiting & set(missing(call)) for call in first(r))}:
        waiting -= free  # they wait for a rank that has ended: no circle
    return waiting


def circles(scripts: Scripts, turns: list[int]) -> list[Step]:
    """The circles that are found when the ranks make their calls in these turns, and buffers hold their sends."""
    line, left = Communicator(), [list(script) for script in scripts]
    found = []
    for rank in [*turns, *(rank for rank, script in enumerate(scripts) for _ in script)]:
        circle = line.issue(left[rank].pop(0)) if left[rank] else []
        while circle:
            found.append(circle)
            circle = line.hold_sends(circle) if any(call.name == "send" for call in circle) else []
    return found


@given(scripts(), turns)
def test_a_circle_is_found_exactly_where_streams_stand_still_whatever_the_turns(made: Scripts, turns: list[int]):
    found = circles(made, turns)
    assert bool(found) == bool(stuck(made))
    assert any(all(call.name != "send" for call in circle) for circle in found) == bool(stuck(made, buffers=True))
    if found:
        ranks = {call.rank for call in found[0]}
        assert len(found[0]) == len(ranks) >= 2 and ranks <= stuck(made)
        assert all(ranks & set(call.ranks) - {call.rank} for call in found[0])


@given(scripts(lost=True), turns)
def test_a_call_that_a_rank_never_makes_is_no_circle(made: Scripts, turns: list[int]):
    assert bool(circles(made, turns)) == bool(stuck(made))


@given(scripts(shuffled=False), turns)
def test_calls_that_all_ranks_make_in_one_order_never_wait_in_a_circle(made: Scripts, turns: list[int]):
    assert circles(made, turns) == []


def test_a_ring_of_two_thousand_ranks_is_found():
    ring = Communicator()
    calls = [StreamCall(rank, (rank, (rank + 1) % 2000), "send") for rank in range(2000)]
    assert [len(ring.issue([call])) for call in calls] == [0] * 1999 + [2000]
