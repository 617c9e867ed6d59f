"""Which messages wait for one another on NCCL: against a plain model of streams, and in programs."""

import warnings
from collections import defaultdict

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from lablib import launch
from lablib.errors import CollectiveMismatchError, DeadlockError, NotOnNcclWarning
from lablib.sim.nccl_order import NcclOrder, Post, _Line

RANKS = 4
Lines = dict[int, list[Post]]  # what each rank posts, in order

pairs = st.tuples(st.integers(0, RANKS - 1), st.integers(0, RANKS - 1)).filter(lambda pair: pair[0] != pair[1])


def lines_of(messages: list[tuple[int, int]]) -> Lines:
    """Each message posted by its sender and its receiver, both in this order."""
    lines: Lines = defaultdict(list)
    for sender, receiver in messages:
        lines[sender].append(Post("send", sender, receiver, ""))
        lines[receiver].append(Post("recv", receiver, sender, ""))
    return lines


def ends(lines: Lines) -> bool:
    """Whether streams that carry out one message after the other come to their end, if no buffer holds anything."""
    left = {place: list(posts) for place, posts in lines.items()}
    while any(left.values()):
        met = [(a, b) for a in left for b in left if left[a] and left[b] and left[a][0].is_answered_by(left[b][0])]
        if not met:
            return False
        for place in met[0]:
            left[place].pop(0)
    return True


def told_of(lines: Lines, turns: list[int]) -> str:
    """What is said when the ranks post in these turns: "" for nothing, "warns" or "refuses"."""
    order = NcclOrder(range(RANKS), "world", is_eager=True)
    left, told = {place: list(posts) for place, posts in lines.items()}, ""
    turns = [*turns, *(place for place, posts in lines.items() for _ in posts)]
    for place in turns:
        if left.get(place):
            post = left[place].pop(0)
            try:
                told = "warns" if order.post(post.kind, post.place, post.peer, "") else told
            except DeadlockError:
                return "refuses"
    return told


@given(st.lists(pairs, max_size=12), st.lists(st.integers(0, RANKS - 1), max_size=24))
def test_messages_that_all_post_in_one_order_are_never_refused(messages: list[tuple[int, int]], turns: list[int]):
    lines = lines_of(messages)
    assert ends(lines) and told_of(lines, turns) == ""


@given(st.lists(pairs, min_size=2, max_size=8), st.lists(st.integers(0, RANKS - 1), max_size=16), st.data())
def test_what_a_stream_never_ends_is_told_whatever_the_turns(
    messages: list[tuple[int, int]], turns: list[int], data: st.DataObject
):
    """Any order on each rank: something is said exactly where streams without buffers would stand still."""
    lines = {place: data.draw(st.permutations(posts)) for place, posts in lines_of(messages).items()}
    assert (told_of(lines, turns) == "") == ends(lines)


@given(st.integers(2, 6), st.permutations(["recv", "send"]), st.data())
def test_a_ring_in_batches_is_right_in_any_order(ranks: int, kinds: list[str], data: st.DataObject):
    line = _Line()
    posts = {}
    for place in range(ranks):
        peers = {"send": (place + 1) % ranks, "recv": (place - 1) % ranks}
        posts[place] = [Post(kind, place, peers[kind], "") for kind in kinds]
    for place in data.draw(st.permutations([place for place in posts for _ in kinds])):
        assert not line.post(posts[place].pop(0), (place, len(kinds)))


def ring(first: str) -> float:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    x, y = torch.full((4,), float(rank)), torch.empty(4)
    calls = {"send": (dist.isend, x, (rank + 1) % ranks), "recv": (dist.irecv, y, (rank - 1) % ranks)}
    order = ["send", "recv"] if first == "send" else ["recv", "send"]
    if first == "batch":
        works = dist.batch_isend_irecv([dist.P2POp(*calls[kind]) for kind in order])
    else:
        works = [calls[kind][0](calls[kind][1], calls[kind][2]) for kind in order]
    for work in works:
        work.wait()
    return y[0].item()


LIKE_NCCL = [{"like": "nccl"}, {"device": "cuda"}]


@pytest.mark.parametrize("options", LIKE_NCCL, ids=str)
@pytest.mark.parametrize("ranks", [2, 5])
def test_a_ring_that_receives_first_and_unbatched_is_refused(ranks: int, options: dict):
    assert launch(ring, "recv", ranks=ranks).values == [(rank - 1) % ranks for rank in range(ranks)]
    with pytest.raises(DeadlockError, match="on NCCL this would hang: .*into one dist.batch_isend_irecv") as error:
        launch(ring, "recv", ranks=ranks, **options)
    assert [wait.rank for wait in error.value.waits] == list(range(ranks))
    assert "receives from rank 1  (test_sim_nccl_order.py:" in str(error.value)


def test_a_ring_that_sends_first_is_a_warning_as_small_messages_pass():
    with pytest.warns(NotOnNcclWarning, match="hang with messages that its buffers do not hold: .*batch_isend_irecv"):
        run = launch(ring, "send", ranks=3, like="nccl")
    assert run.values == [2, 0, 1] and len(run.notes) == 1
    run = launch(ring, "send", ranks=3, device="cuda")
    assert run.values == [2, 0, 1] and any("its buffers do not hold" in note for note in run.notes)


@pytest.mark.parametrize("options", LIKE_NCCL, ids=str)
def test_a_ring_in_one_batch_passes(options: dict):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = launch(ring, "batch", ranks=4, **options)
    assert run.values == [3, 0, 1, 2] and not run.notes


def test_without_a_device_two_ranks_have_a_line_of_their_own():
    order = NcclOrder(range(4), "world", is_eager=False)
    for place in range(4):
        assert order.post("recv", place, (place - 1) % 4, "") == ""  # a ring of four: no two wait for each other
    both = NcclOrder(range(2), "world", is_eager=False)
    both.post("recv", 0, 1, "")
    with pytest.raises(DeadlockError):
        both.post("recv", 1, 0, "")


def tagged(order: tuple[int, int]) -> list[float]:
    x = torch.ones(2)
    if dist.get_rank() == 0:
        for tag in (1, 2):
            dist.send(x * tag, 1, tag=tag)
        return []
    received = []
    for tag in order:
        dist.recv(x, 0, tag=tag)
        received.append(x[0].item())
    return received


def test_tags_that_sort_messages_are_refused_and_others_are_not():
    assert launch(tagged, (1, 2), ranks=2, like="nccl").values[1] == [1, 2]
    with pytest.raises(CollectiveMismatchError, match="NCCL ignores tags, .*tag 1 met a receive with tag 2; rec"):
        launch(tagged, (2, 1), ranks=2, like="nccl")
