"""Programs whose messages wait for one another on NCCL: told where nothing hangs. (tests/record/test_circular_wait.py
holds what is found against a plain model of streams.)"""

import warnings

import pytest
import torch
import torch.distributed as dist

from lablib import launch
from lablib.errors import CollectiveMismatchError, DeadlockError, NotOnNcclWarning
from lablib.sim.communication.nccl_order import NcclOrder


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


def receives_across_a_collective() -> float:
    rank, x = dist.get_rank(), torch.ones(2)
    receiving = [dist.irecv(torch.empty(2), 1)] if rank == 0 else []
    dist.all_reduce(x)
    if rank == 1:
        dist.send(x, 0)
    for work in filter(None, receiving):
        work.wait()
    return x[0].item()


def test_a_collective_stands_in_the_same_line():
    """The GPU of rank 0 comes to the all_reduce when it has received; that of rank 1 sends after the all_reduce."""
    assert launch(receives_across_a_collective, ranks=3).values == [3, 3, 3]
    with pytest.raises(
        DeadlockError, match="on NCCL this would hang: .* both sides of a message before a coll"
    ) as error:
        launch(receives_across_a_collective, ranks=3, like="nccl")
    assert [(wait.rank, wait.operation) for wait in error.value.waits] == [(0, "recv"), (1, "all_reduce")]


def test_without_a_device_two_ranks_have_a_line_of_their_own():
    order = NcclOrder(range(4), "world", is_eager=False)
    for rank in range(4):
        assert order.message("recv", rank, (rank - 1) % 4, "") == ""  # a ring of four: no two wait for each other
    both = NcclOrder(range(2), "world", is_eager=False)
    both.message("recv", 0, 1, "")
    with pytest.raises(DeadlockError):
        both.message("recv", 1, 0, "")


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
