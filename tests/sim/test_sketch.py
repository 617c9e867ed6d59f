# pyright: reportPrivateImportUsage=false, reportArgumentType=false, reportOptionalMemberAccess=false

"""The sketch of the simulator and the simulator: same values to the bit, same deadlocks, same errors.

The programs are plain torch.distributed. Each runs on both, and what a rank returned is compared with what it returned
there; of a program that cannot end, who waits in which call for whom. After every run no thread is left, and the
process is as it was before.
"""

import ast
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import lablib.sim.sketch
from lablib import DeadlockError, LaunchError, RankError, launch
from lablib.sim.sketch import BANDWIDTH_BYTES_PER_S, LATENCY_S, run_sketch
from tests.sim.conftest import process_state
from tests.sim.test_deadlock_gallery import GALLERY

pytestmark = pytest.mark.timeout(120)
Program = Callable[..., Any]
PROGRAMS: list[tuple[Program, int]] = []
all_gather_single: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # torch 2.13 or before
reduce_scatter_single: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def on(*sizes: int) -> Callable[[Program], Program]:
    """A program to compare, on so many ranks."""

    def add(program: Program) -> Program:
        PROGRAMS.extend((program, ranks) for ranks in sizes)
        return program

    return add


def sketched(program: Program, ranks: int, *args: Any) -> list[Any]:
    """What the ranks return on the sketch. Whatever happens, the process is as it was."""
    before = process_state()
    try:
        return run_sketch(program, ranks, args).values
    finally:
        assert process_state() == before
        assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("sketch rank")]


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Drawn ones, others on every rank."""
    generator = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    return (torch.randn(*shape, generator=generator) * 10).to(dtype)


def many(count: int, *shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [numbers(*shape, seed=seed * 100 + i, dtype=dtype) for i in range(count)]


def assert_same(found: Any, expected: Any) -> None:
    """The same to the bit, in lists and tuples too."""
    assert type(found) is type(expected)
    if isinstance(found, Tensor):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.detach().numpy(force=True).tobytes() == expected.detach().numpy(force=True).tobytes()
    elif isinstance(found, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert found == expected


# ---- programs that end ----


@on(1, 2, 5)
def sums_in_place() -> list[Tensor]:
    tensors = [numbers(7), numbers(2, 3, dtype=torch.float64), numbers(4, dtype=torch.int64)]
    for tensor in tensors:
        dist.all_reduce(tensor)
    return tensors


@on(2, 3)
def gathered_as_a_list_and_as_one() -> list[Tensor]:
    size, mine = dist.get_world_size(), numbers(2, 3)
    parts, rows, stack = [torch.empty(2, 3) for _ in range(size)], torch.empty(2 * size, 3), torch.empty(size, 2, 3)
    dist.all_gather(parts, mine)
    all_gather_single(rows, mine)
    all_gather_single(stack, mine)
    return [*parts, rows, stack]


@on(3)
def gathered_shards_of_several_sizes() -> list[Tensor]:
    parts = [torch.empty(1 + rank) for rank in range(dist.get_world_size())]
    dist.all_gather(parts, numbers(1 + dist.get_rank()))
    return parts


@on(3)
def a_transpose() -> list[Tensor]:
    size, rank = dist.get_world_size(), dist.get_rank()
    received = [torch.empty(1 + source + rank) for source in range(size)]  # of any sizes that fit
    dist.all_to_all(received, [numbers(1 + rank + target, seed=target) for target in range(size)])
    return received


@on(3)
def a_future_and_a_poll() -> list[Tensor]:
    first, second = many(2, 4)
    future = dist.all_reduce(first, async_op=True).get_future()
    work = dist.all_reduce(second, async_op=True)
    while not work.is_completed():
        pass
    return [future.wait()[0], first, second]


@on(5)
def groups_that_overlap() -> list[Tensor]:
    rank, x, y = dist.get_rank(), *many(2, 3)
    low, high, ends = dist.new_group([0, 1, 2]), dist.new_group([2, 3, 4]), dist.new_group([4, 0])
    parts = [torch.empty(3) for _ in range(3)]
    if rank <= 2:
        dist.all_reduce(x, group=low)
    if rank >= 2:
        dist.all_gather(parts, y, group=high)
    if rank in (0, 4):
        dist.broadcast(x, src=4, group=ends)
        if rank == 0:
            dist.send(y, dst=4, group=ends)
        else:
            dist.recv(y, src=0, group=ends)
    dist.all_reduce(y)
    return [x, y, *(parts if rank >= 2 else [])]


@on(2, 5)
def a_ring_of_sends() -> list[Any]:
    rank, size = dist.get_rank(), dist.get_world_size()
    held, total = numbers(4), numbers(4)
    for _ in range(size - 1):
        arriving = torch.empty(4)
        sending = dist.isend(held, (rank + 1) % size)
        dist.recv(arriving, (rank - 1) % size)
        sending.wait()
        held, total = arriving, total + arriving
    to_the_left = torch.empty(4)
    calls = [dist.P2POp(dist.isend, total, (rank - 1) % size), dist.P2POp(dist.irecv, to_the_left, (rank + 1) % size)]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    return [held, total, to_the_left]


@on(2)
def messages_that_overtake_by_tag() -> list[Tensor]:
    tensors = many(4, 3)
    if dist.get_rank() == 0:
        works = [dist.isend(tensor, 1, tag=i % 2) for i, tensor in enumerate(tensors)]
    else:
        works = [dist.irecv(tensors[i], 0, tag=i % 2) for i in (3, 2, 1, 0)]
    for work in works:
        work.wait()
    return tensors


@on(3)
def objects() -> list[Any]:
    gathered: list[Any] = [None] * 3
    dist.all_gather_object(gathered, {"rank": dist.get_rank(), "list": [1] * dist.get_rank()})
    given_out = [dist.get_rank(), "from 2"] if dist.get_rank() == 2 else [None, None]
    dist.broadcast_object_list(given_out, src=2)
    return [gathered, given_out]


@on(2)
def parameters_as_they_are() -> list[Any]:
    """Communication is no operator of autograd: neither a leaf nor what backward keeps minds it."""
    weight, parts = nn.Parameter(numbers(3)), [torch.empty(3) for _ in range(2)]
    dist.all_gather(parts, weight)
    y = weight.exp()
    dist.all_reduce(weight)
    dist.all_reduce(y)  # backward of exp multiplies by what is in y
    y.sum().backward()
    return [*parts, weight.detach(), weight.grad, *(part.requires_grad for part in parts)]


def net() -> nn.Sequential:
    """The same one on every rank."""
    model, generator = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for param in model.parameters():
            param.copy_(torch.randn(param.shape, generator=generator))
    return model


@on(2, 3)
def two_steps_of_data_parallel_training() -> list[Any]:
    model = DistributedDataParallel(net(), bucket_cap_mb=0.0001)  # several buckets
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in range(2):
        optimizer.zero_grad()
        model(numbers(5, 4, seed=step)).square().mean().backward()
        optimizer.step()
    return [tensor for param in model.parameters() for tensor in (param.detach(), param.grad)]


@pytest.mark.parametrize(("program", "ranks"), PROGRAMS, ids=[f"{program.__name__}-{n}" for program, n in PROGRAMS])
def test_a_program_has_the_same_values_on_the_sketch_as_on_the_simulator(program: Program, ranks: int):
    assert_same(sketched(program, ranks), launch(program, ranks=ranks).values)


def test_each_rank_has_its_own_copy_of_the_arguments():
    def fill(tensor: Tensor, found: list[int]) -> tuple[Tensor, list[int]]:
        found.append(dist.get_rank())
        return tensor.add_(dist.get_rank()), found

    zeros, nothing = torch.zeros(2), []
    assert_same(sketched(fill, 3, zeros, nothing), launch(fill, zeros, nothing, ranks=3).values)
    assert not zeros.any() and not nothing


# ---- programs that hypothesis draws ----

DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
)
CALLS = {
    "all_reduce": lambda x, outs, flat, at: dist.all_reduce(x, at.op, at.group, at.is_async),
    "broadcast": lambda x, outs, flat, at: dist.broadcast(x, at.root, at.group, at.is_async),
    "all_gather": lambda x, outs, flat, at: dist.all_gather(outs, x, at.group, at.is_async),
    "all_gather_single": lambda x, outs, flat, at: all_gather_single(flat, x, at.group, at.is_async),
    "reduce_scatter": lambda x, outs, flat, at: dist.reduce_scatter(x, outs, at.op, at.group, at.is_async),
    "reduce_scatter_single": lambda x, outs, flat, at: reduce_scatter_single(x, flat, at.op, at.group, at.is_async),
    "barrier": lambda x, outs, flat, at: dist.barrier(at.group, at.is_async),
}


@dataclass(frozen=True)
class Step:
    """One drawn call. A receive or send, with `peer`, is made by one rank alone: nobody answers it."""

    call: str
    members: tuple[int, ...] = ()
    size: int = 2
    dtype: torch.dtype = torch.float32
    reduction: str = "SUM"
    root: int = 0  # counted among the members
    is_async: bool = False
    peer: int = 0


@dataclass(frozen=True)
class At:
    """Where a step's call is made, in torch's words."""

    group: Any
    root: int
    op: Any
    is_async: bool


def perform(steps_of_ranks: list[list[Step]]) -> list[Tensor]:
    """Each rank makes its calls; those in flight are waited for at the end, the last one first."""
    rank, results, works = dist.get_rank(), [], []
    every_group = sorted({step.members for steps in steps_of_ranks for step in steps if step.members})
    groups = {members: dist.new_group(list(members)) for members in every_group}
    for number, step in enumerate(steps_of_ranks[rank]):
        x = numbers(step.size, seed=number, dtype=step.dtype)
        if step.call in ("send", "recv"):
            {"send": dist.send, "recv": dist.recv}[step.call](x, step.peer, tag=9)
        elif rank in step.members:
            count = len(step.members)
            outs = many(count, step.size, seed=number, dtype=step.dtype)
            flat = numbers(count * step.size, seed=number + 50, dtype=step.dtype)
            is_mean = step.reduction == "AVG" and not step.dtype.is_floating_point
            op = dist.ReduceOp.SUM if is_mean else getattr(dist.ReduceOp, step.reduction)
            at = At(groups[step.members], step.members[step.root % count], op, step.is_async)
            works.append(CALLS[step.call](x, outs, flat, at))
            results += [x, *outs, flat]
    for work in reversed(works):
        if work is not None:
            work.wait()
    return [result.double() for result in results]  # numpy has no bfloat16


@st.composite
def drawn_steps(draw: st.DrawFn, is_alike: bool) -> list[list[Step]]:
    """The same calls on every rank, 2 to 5 of them; with `is_alike`, calls differ in name and group alone."""
    ranks = draw(st.integers(2, 5))
    groups = st.sets(st.integers(0, ranks - 1), min_size=1).map(lambda members: tuple(sorted(members)))
    steps = st.builds(Step, st.sampled_from(list(CALLS)), groups | st.just(tuple(range(ranks))), is_async=st.booleans())
    if not is_alike:
        steps = st.builds(
            Step,
            st.sampled_from(list(CALLS)),
            groups,
            st.integers(1, 9),
            st.sampled_from(DTYPES),
            st.sampled_from(["SUM", "PRODUCT", "MIN", "MAX", "AVG"]),
            st.integers(0, 4),
            st.booleans(),
        )
    return [draw(st.lists(steps, min_size=1, max_size=8))] * ranks


@given(drawn_steps(is_alike=False))
def test_drawn_calls_have_the_same_values(steps_of_ranks: list[list[Step]]):
    ranks = len(steps_of_ranks)
    assert_same(sketched(perform, ranks, steps_of_ranks), launch(perform, steps_of_ranks, ranks=ranks).values)


@st.composite
def drawn_mistakes(draw: st.DrawFn) -> list[list[Step]]:
    """Drawn calls, of which one rank skips one, swaps two, or puts a message in between that nobody answers."""
    steps_of_ranks = [list(steps) for steps in draw(drawn_steps(is_alike=True))]
    rank = draw(st.integers(0, len(steps_of_ranks) - 1))
    steps = steps_of_ranks[rank]
    mistake, at = draw(st.sampled_from(["skip", "swap", "recv", "send"])), draw(st.integers(0, len(steps) - 1))
    if mistake == "skip":
        del steps[at]
    elif mistake == "swap":
        steps[at - 1], steps[at] = steps[at], steps[at - 1]
    else:
        peer = draw(st.integers(0, len(steps_of_ranks) - 2))
        steps.insert(at, Step(mistake, peer=peer + (peer >= rank)))
    return steps_of_ranks


def outcome(run: Callable[[], Any]) -> Any:
    """What the ranks returned; or the error, and of a deadlock who waits in what and for whom."""
    try:
        return run()
    except DeadlockError as error:
        return DeadlockError, [(wait.rank, wait.operation, wait.for_ranks) for wait in error.waits]
    except LaunchError as error:
        return type(error), str(error.__cause__)


@given(drawn_mistakes())
def test_a_drawn_mistake_ends_the_same(steps_of_ranks: list[list[Step]]):
    ranks = len(steps_of_ranks)
    found = outcome(lambda: sketched(perform, ranks, steps_of_ranks))
    assert_same(found, outcome(lambda: launch(perform, steps_of_ranks, ranks=ranks).values))


# ---- programs that cannot end ----

BROKEN = """
crossed_receives both_send_first everyone_in_a_ring_receives_first mismatched_tags a_message_that_is_never_received
a_receive_across_a_collective a_skipped_collective collectives_in_different_order one_rank_returns_early
a_barrier_missed the_wrong_group nested_subgroups_in_a_circle a_poll_that_never_comes_true
a_poll_for_somebody_who_waits one_rank_raises_while_the_others_wait one_rank_raises_inside_backward
one_rank_skips_backward_of_data_parallel a_deadlock_that_the_program_would_swallow
an_exception_hidden_by_a_collective_in_finally a_deadlock_that_hides_an_exception
a_finally_that_communicates_while_the_run_unwinds
""".split()


@pytest.mark.parametrize(("program", "ranks"), [entry[:2] for entry in GALLERY if entry[0].__name__ in BROKEN])
def test_a_broken_program_ends_in_the_same_error_and_the_next_run_works(program: Program, ranks: int):
    found = outcome(lambda: sketched(program, ranks))
    assert found == outcome(lambda: launch(program, ranks=ranks).values)
    assert isinstance(found[0], type) and issubclass(found[0], LaunchError)
    assert_same(sketched(sums_in_place, 3), launch(sums_in_place, ranks=3).values)


def test_every_broken_program_is_in_the_gallery():
    assert set(BROKEN) <= {entry[0].__name__ for entry in GALLERY}


def test_a_deadlock_is_said_with_one_wait_a_rank():
    def skip() -> None:
        if dist.get_rank() != 1:
            dist.all_reduce(torch.ones(2))

    with pytest.raises(DeadlockError, match="deadlock: 2 of 3 ranks wait and none can go on") as caught:
        sketched(skip, 3)
    expected = ["waits in all_reduce for (1,)", "has finished", "waits in all_reduce for (1,)"]
    assert [wait.text for wait in caught.value.waits] == expected


def test_after_an_error_no_rank_goes_on():
    gone_on: list[int] = []
    unwound: list[int] = []

    def fail() -> None:
        if dist.get_rank() == 1:
            raise KeyError("lost")
        try:
            dist.barrier()
        except Exception:
            pass
        finally:
            unwound.append(dist.get_rank())
        gone_on.append(dist.get_rank())

    with pytest.raises(RankError, match="rank 1 raised KeyError"):
        sketched(fail, 4)
    assert unwound == [0] and not gone_on  # ranks 2 and 3 had not begun


def test_a_program_may_destroy_its_groups():
    def destroy() -> bool:
        dist.barrier()
        dist.destroy_process_group()
        return dist.is_initialized()

    assert sketched(destroy, 2) == [False, False]


def test_a_process_keeps_its_own_group_for_all_its_threads(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # torch sets one
    results: list[Tensor] = []

    def communicate() -> None:
        results.append(funcol.all_reduce(torch.ones(2), "sum", own) + 0)  # finds the group by its name

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        own = dist.group.WORLD
        sketched(sums_in_place, 2)
        assert dist.group.WORLD is own
        thread = threading.Thread(target=communicate)
        thread.start()
        thread.join()
        assert_same(results, [torch.ones(2)])
    finally:
        dist.destroy_process_group()


# ---- the clock ----


def test_a_call_takes_a_latency_and_its_bytes():
    def sums(size: int) -> None:
        dist.all_reduce(torch.ones(size))
        dist.barrier()

    each_s = LATENCY_S + 4000 / BANDWIDTH_BYTES_PER_S
    assert run_sketch(sums, 3, [1000]).clocks_s == pytest.approx([each_s + LATENCY_S] * 3, rel=1e-12)


def test_who_comes_early_waits_for_the_last_and_who_does_not_wait_goes_on():
    def program() -> None:
        rank, pair = dist.get_rank(), dist.new_group([1, 2])
        if rank == 0:
            dist.send(torch.ones(10), dst=1)
            dist.isend(torch.ones(1), dst=3)
        elif rank == 1:
            dist.recv(torch.ones(10), src=0)
            dist.barrier(pair)
        elif rank == 2:
            dist.barrier(pair)
        else:
            dist.recv(torch.ones(1), src=0)

    first_s, second_s = (LATENCY_S + size_bytes / BANDWIDTH_BYTES_PER_S for size_bytes in (40, 4))
    expected_s = [first_s, first_s + LATENCY_S, first_s + LATENCY_S, first_s + second_s]
    assert run_sketch(program, 4).clocks_s == pytest.approx(expected_s, rel=1e-12)


def test_the_rank_with_the_smallest_clock_goes_on_and_of_equals_the_lowest():
    order: list[int] = []

    def program() -> None:
        rank = dist.get_rank()
        groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        order.append(rank)
        dist.all_reduce(torch.ones(100 if rank < 2 else 1), group=groups[rank // 2])
        order.append(rank)
        dist.barrier()

    run_sketch(program, 4)
    # Ranks 1 and 3 join last and need not wait. Of those who did, 2 is earlier: its sum was a smaller one.
    assert order == [0, 1, 1, 2, 3, 3, 2, 0]


# ---- the file ----


def test_the_file_has_at_most_200_lines_and_stands_alone():
    source = Path(lablib.sim.sketch.__file__).read_text("utf-8")
    assert len(source.splitlines()) <= 200
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {
        name
        for node in imports
        for name in ([a.name for a in node.names] if isinstance(node, ast.Import) else [node.module])
    }
    assert "torch" in names
    for name in names - {"lablib.errors", "lablib.torch_compat"}:
        assert name.split(".")[0] in {"torch", *sys.stdlib_module_names}, name
