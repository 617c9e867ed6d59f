# pyright: reportOptionalMemberAccess=false, reportPrivateImportUsage=false

"""A gallery of broken programs. On a cluster each hangs; here each is told, by rank, operation and source line.

Every exhibit marks the lines that the diagnosis must name: a comment `# rank 2` says that the error must give this line
for rank 2. After each, no thread is left, the process is as it was, and the next launch works (conftest.py).
"""

import inspect
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import _get_default_store

from lablib import CollectiveMismatchError, DeadlockError, LaunchError, RankError, launch

pytestmark = [pytest.mark.usefixtures("everything_is_given_back"), pytest.mark.timeout(20)]

Program = Callable[[], object]
GALLERY: list[tuple[Program, int, type[LaunchError], str]] = []


def exhibit(ranks: int, error: type[LaunchError], says: str) -> Callable[[Program], Program]:
    """Hang a program in the gallery: its ranks, the error it must end in, a pattern its message must hold."""

    def hang(program: Program) -> Program:
        GALLERY.append((program, ranks, error, says))
        return program

    return hang


# ---- point to point ----


@exhibit(2, DeadlockError, r"rank 0 waits in recv from rank 1 \(tag 0\).*\n.*rank 1 waits in recv from rank 0")
def crossed_receives():
    x = torch.ones(2)
    if dist.get_rank() == 0:
        dist.recv(x, src=1)  # rank 0
        dist.send(x, dst=1)
    else:
        dist.recv(x, src=0)  # rank 1
        dist.send(x, dst=0)


@exhibit(2, DeadlockError, r"waits in send to rank 1.*no matching recv is posted")
def both_send_first():
    x, other = torch.ones(2), 1 - dist.get_rank()
    if dist.get_rank() == 0:
        dist.send(x, other)  # rank 0
    else:
        dist.send(x, other)  # rank 1
    dist.recv(x, other)


@exhibit(3, DeadlockError, r"rank 0 waits in recv from rank 2.*\n.*rank 1 waits in recv from rank 0.*\n.*from rank 1")
def everyone_in_a_ring_receives_first():
    x, rank = torch.ones(2), dist.get_rank()
    dist.recv(x, src=(rank - 1) % 3)  # rank 0, rank 1, rank 2
    dist.send(x, dst=(rank + 1) % 3)


@exhibit(2, DeadlockError, r"send to rank 1 \(tag 7\)(.|\n)*recv from rank 0 \(tag 8\)")
def mismatched_tags():
    x = torch.ones(2)
    if dist.get_rank() == 0:
        dist.send(x, dst=1, tag=7)  # rank 0
    else:
        dist.recv(x, src=0, tag=8)  # rank 1


@exhibit(2, DeadlockError, r"rank 0 waits in recv from any rank(.|\n)*rank 1 has finished")
def a_receive_from_anyone_when_nobody_sends():
    if dist.get_rank() == 0:
        dist.recv(torch.ones(2))  # rank 0


@exhibit(2, DeadlockError, r"rank 0 waits in send to rank 1(.|\n)*1 returned|returned(.|\n)*rank 0 waits in send")
def a_message_that_is_never_received():
    if dist.get_rank() == 0:
        work = dist.isend(torch.ones(2), dst=1)
        assert work is not None
        work.wait()  # rank 0


@exhibit(2, CollectiveMismatchError, r"send and its receive.*dtype or size(.|\n)*float32\[2\](.|\n)*float32\[3\]")
def a_message_longer_than_its_receive():
    if dist.get_rank() == 0:
        dist.send(torch.ones(2), dst=1)  # rank 0
    else:
        dist.recv(torch.ones(3), src=0)  # rank 1


@exhibit(2, CollectiveMismatchError, r"float32(.|\n)*int64")
def a_message_of_another_dtype_than_its_receive():
    if dist.get_rank() == 0:
        dist.send(torch.ones(2), dst=1)  # rank 0
    else:
        dist.recv(torch.ones(2, dtype=torch.int64), src=0)  # rank 1


@exhibit(2, DeadlockError, r"rank 0 waits in recv from rank 1(.|\n)*rank 1 waits in all_reduce #1 of group world")
def a_receive_across_a_collective():
    x = torch.ones(2)
    dist.barrier()
    if dist.get_rank() == 0:
        dist.recv(x, src=1)  # rank 0
        dist.all_reduce(x)
    else:
        dist.all_reduce(x)  # rank 1
        dist.send(x, dst=0)


# ---- collectives ----


@exhibit(4, DeadlockError, r"ranks 0, 1, 3|rank 2 has finished")
def a_skipped_collective():
    x = torch.ones(2)
    if dist.get_rank() != 2:
        dist.all_reduce(x)  # rank 0, rank 1, rank 3
    return x


@exhibit(4, CollectiveMismatchError, r"the operation of call #0.*\n.*called all_reduce.*\n.*called broadcast")
def collectives_in_different_order():
    x = torch.ones(2)
    if dist.get_rank() == 0:
        dist.all_reduce(x)  # rank 0
        dist.broadcast(x, src=0)
    else:
        dist.broadcast(x, src=0)  # rank 1
        dist.all_reduce(x)


@exhibit(2, CollectiveMismatchError, r"disagree on the root(.|\n)*root 0(.|\n)*root 1")
def everyone_broadcasts_from_itself():
    x = torch.ones(2)
    dist.broadcast(x, src=dist.get_rank())  # rank 0, rank 1


@exhibit(2, CollectiveMismatchError, r"disagree on the shape(.|\n)*shape \[2\](.|\n)*shape \[3\]")
def different_shapes():
    x = torch.ones(2 + dist.get_rank())
    dist.all_reduce(x)  # rank 0, rank 1


@exhibit(2, CollectiveMismatchError, r"disagree on the dtype(.|\n)*float32(.|\n)*float64")
def different_dtypes():
    x = torch.ones(2, dtype=torch.float32 if dist.get_rank() == 0 else torch.float64)
    dist.all_reduce(x)  # rank 0, rank 1


@exhibit(2, CollectiveMismatchError, r"disagree on the reduction(.|\n)*SUM(.|\n)*MAX")
def different_reductions():
    x = torch.ones(2)
    dist.all_reduce(x, op=dist.ReduceOp.SUM if dist.get_rank() == 0 else dist.ReduceOp.MAX)  # rank 0, rank 1


@exhibit(3, DeadlockError, r"rank 0 waits in all_reduce #0 of group world; rank 1 is not there")
def one_rank_returns_early():
    if dist.get_rank() == 1:
        return
    dist.all_reduce(torch.ones(2))  # rank 0, rank 2


@exhibit(3, DeadlockError, r"waits in barrier")
def a_barrier_missed():
    if dist.get_rank() > 0:
        dist.barrier()  # rank 1, rank 2


@exhibit(3, DeadlockError, r"waits in monitored_barrier #0 of group world; rank 2 is not there")
def a_monitored_barrier_missed():
    if dist.get_rank() < 2:
        dist.monitored_barrier()  # rank 0, rank 1


@exhibit(4, DeadlockError, r"of group world; ranks 2, 3 are not there(.|\n)*of group 2,3; ")
def the_wrong_group():
    low, high = dist.new_group([0, 1]), dist.new_group([2, 3])
    x = torch.ones(2)
    if dist.get_rank() < 2:
        dist.all_reduce(x)  # rank 0, rank 1
    elif dist.get_rank() == 2:
        dist.all_reduce(x, group=high)  # rank 2
    return low


@exhibit(4, DeadlockError, r"of group 0,1; rank 1 is not there(.|\n)*of group 1,2; rank 2 is not there")
def nested_subgroups_in_a_circle():
    pairs = [dist.new_group(sorted([i, (i + 1) % 4])) for i in range(4)]
    rank, x = dist.get_rank(), torch.ones(2)
    first = rank  # every rank waits for its right neighbour first
    dist.all_reduce(x, group=pairs[first])  # rank 0, rank 1, rank 2, rank 3
    dist.all_reduce(x, group=pairs[(rank - 1) % 4])


@exhibit(2, DeadlockError, r"rank 0 polls for all_reduce #0 of group world; rank 1 is not there")
def a_poll_that_never_comes_true():
    if dist.get_rank() == 0:
        work = dist.all_reduce(torch.ones(2), async_op=True)
        while not work.is_completed():  # rank 0
            pass


@exhibit(2, DeadlockError, r"rank 0 polls for(.|\n)*rank 1 waits in recv")
def a_poll_for_somebody_who_waits():
    if dist.get_rank() == 0:
        work = dist.all_reduce(torch.ones(2), async_op=True)
        while not work.is_completed():  # rank 0
            pass
    else:
        dist.recv(torch.ones(2), src=0)  # rank 1


@exhibit(2, DeadlockError, r"rank 0 waits in the store for the key 'address'")
def a_key_that_nobody_sets():
    if dist.get_rank() == 0:
        _get_default_store().get("address")  # rank 0


@exhibit(2, DeadlockError, r"rank 0 polls the store for the key 'address'")
def a_check_for_a_key_that_nobody_sets():
    if dist.get_rank() == 0:
        while not _get_default_store().check(["address"]):  # rank 0
            pass


@exhibit(2, CollectiveMismatchError, r"rank 0 sends 3 elements to rank 1, which expects 2")
def split_sizes_that_do_not_fit():
    x, rank = torch.arange(4.0), dist.get_rank()
    sent, received = ([1, 3], [1, 3]) if rank == 0 else ([3, 1], [2, 2])
    dist.all_to_all_single(torch.empty(4), x, received, sent)  # rank 0, rank 1


@exhibit(2, CollectiveMismatchError, r"scatter(.|\n)*\[3\](.|\n)*\[2\]")
def parts_to_scatter_that_do_not_fit():
    parts = [torch.ones(3), torch.ones(3)] if dist.get_rank() == 0 else None
    dist.scatter(torch.ones(2), parts, src=0)  # rank 0


@exhibit(2, CollectiveMismatchError, r"gather(.|\n)*\[3\](.|\n)*\[2\]")
def places_to_gather_into_that_do_not_fit():
    parts = [torch.ones(3), torch.ones(3)] if dist.get_rank() == 0 else None
    dist.gather(torch.ones(2), parts, dst=0)  # rank 0


@exhibit(3, RankError, r"rank 0 raised ValueError: .*one tensor a rank: got 2 for 3 ranks")
def a_list_of_the_wrong_length():
    dist.all_gather([torch.empty(2) for _ in range(2)], torch.ones(2))  # rank 0


@exhibit(2, RankError, r"rank 0 raised .*(dtype|type)")
def an_output_of_another_dtype():
    dist.all_gather([torch.empty(2, dtype=torch.float64) for _ in range(2)], torch.ones(2))  # rank 0


# ---- exceptions ----


@exhibit(4, RankError, r"^rank 2 raised ZeroDivisionError: division by zero")
def one_rank_raises_while_the_others_wait():
    if dist.get_rank() == 2:
        1 / 0  # noqa: B018  # rank 2
    dist.all_reduce(torch.ones(2))


@exhibit(2, RankError, r"^rank 1 raised KeyError")
def one_rank_raises_inside_backward():
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            if dist.get_rank() == 1:
                raise KeyError("lost")  # rank 1
            return grad

    model = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
    Broken.apply(model(torch.ones(4, 3))).sum().backward()


@exhibit(2, DeadlockError, r"rank 0 waits in all_reduce(.|\n)*rank 1 has finished")
def one_rank_skips_backward_of_data_parallel():
    model = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
    loss = model(torch.ones(4, 3)).sum()
    if dist.get_rank() == 0:
        loss.backward()  # rank 0


@exhibit(2, DeadlockError, r"rank 0 waits in all_reduce")
def a_deadlock_that_the_program_would_swallow():
    if dist.get_rank() == 0:
        for _ in range(3):
            try:
                dist.all_reduce(torch.ones(2))  # rank 0
            except Exception:
                pass


@exhibit(2, CollectiveMismatchError, r"disagree on the shape")
def a_mismatch_that_the_program_would_swallow():
    while True:
        try:
            dist.all_reduce(torch.ones(2 + dist.get_rank()))  # rank 0, rank 1
        except:  # noqa: E722
            continue


@exhibit(3, CollectiveMismatchError, r"rank 0 called all_reduce.*, while handling RuntimeError: first")
def an_exception_hidden_by_a_collective_in_finally():
    try:
        if dist.get_rank() == 0:
            raise RuntimeError("first")
        dist.barrier()  # rank 1
    finally:
        dist.all_reduce(torch.ones(2))  # rank 0


@exhibit(2, DeadlockError, r"rank 0 waits in recv.*, while handling RuntimeError: first")
def a_deadlock_that_hides_an_exception():
    try:
        raise RuntimeError("first")
    finally:
        if dist.get_rank() == 0:
            dist.recv(torch.ones(2), src=1)  # rank 0
        else:
            dist.barrier()  # rank 1


@exhibit(3, RankError, r"^rank 2 raised RuntimeError: first")
def a_finally_that_communicates_while_the_run_unwinds():
    if dist.get_rank() == 2:
        raise RuntimeError("first")  # rank 2
    try:
        dist.barrier()
    finally:
        dist.all_reduce(torch.ones(2))


@exhibit(2, LaunchError, r"inside a rank of a launch")
def a_launch_inside_a_rank():
    launch(print, ranks=2)


def marked_lines(program: Program) -> list[tuple[int, int]]:
    """(rank, line number) for each `# rank N` in the program's source."""
    lines, first = inspect.getsourcelines(program)
    return [
        (int(rank), first + i)
        for i, text in enumerate(lines)
        for comment in re.findall(r"# (rank \d.*)$", text)
        for rank in re.findall(r"rank (\d)", comment)
    ]


@pytest.mark.parametrize(("program", "ranks", "error", "says"), GALLERY, ids=[entry[0].__name__ for entry in GALLERY])
def test_a_broken_program_is_diagnosed_with_ranks_operations_and_lines(program, ranks, error, says):
    began_s = time.perf_counter()
    with pytest.raises(error) as caught:
        launch(program, ranks=ranks)
    print(f"\n{program.__name__}: {time.perf_counter() - began_s:.3f} s\n{caught.value}")
    assert type(caught.value) is error
    assert re.search(says, str(caught.value)), str(caught.value)
    here = re.escape(Path(__file__).name)
    for rank, line in marked_lines(program):
        if error is RankError:
            assert caught.value.rank == rank
            assert re.search(rf'{here}", line {line}\b', caught.value.rank_traceback), (rank, line)
        else:
            assert re.search(rf"rank {rank} .*\({here}:{line}: ", str(caught.value)), (rank, line, str(caught.value))


def test_a_rank_that_raises_is_the_cause_of_the_error_with_its_traceback_from_the_program_on():
    with pytest.raises(RankError) as caught:
        launch(one_rank_raises_while_the_others_wait, ranks=4)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert caught.value.rank_traceback.startswith("Traceback (most recent call last):\n  File ")
    assert "one_rank_raises_while_the_others_wait" in caught.value.rank_traceback.splitlines()[1]


def test_the_deadlock_error_holds_one_wait_a_rank_in_rank_order():
    with pytest.raises(DeadlockError) as caught:
        launch(a_skipped_collective, ranks=4)
    assert [wait.rank for wait in caught.value.waits] == [0, 1, 2, 3]
    assert caught.value.waits[2].text == "has finished"
