"""A write to what is in flight is a finding of the run, and so is a read of what is to be filled; whatever a right
program does is none."""

# pyright: reportOptionalMemberAccess=false

import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lablib import launch
from lablib.errors import OverlapWarning, ReadInFlightWarning, UnwaitedWarning, WriteInFlightWarning
from lablib.parallel import ring_all_reduce

SHAPE = (5, 6)
# torch 2.13 gave both a new name.
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

# Ways to give a tensor `v` to a call, to write to it so that every element changes, to read it, to look at its shape.
CALLS = {
    "all_reduce": "dist.all_reduce({v}, async_op=True)",
    "broadcast": "dist.broadcast({v}, src=0, async_op=True)",
    "reduce": "dist.reduce({v}, dst=0, async_op=True)",
    "gives to all_gather": "dist.all_gather(empty({v}.shape, n), {v}, async_op=True)",
    "gets from all_gather": "dist.all_gather([{v}, *empty({v}.shape, n - 1)], torch.rand({v}.shape), async_op=True)",
    "isend": "both(dist.irecv(torch.empty({v}.shape), left), dist.isend({v}, right))",
    "irecv": "both(dist.irecv({v}, left), dist.isend(torch.rand({v}.shape), right))",
}
ONLY_READ = (CALLS["isend"], CALLS["gives to all_gather"])
WRITES = [
    "{v}.add_(1)",
    "{v}.data += 1",
    "{v}.detach().mul_(2)",
    "{v}[...] = {v} + 1",
    "torch.add({v}, 1, out={v})",
    "torch._foreach_add_([torch.zeros(2), {v}], 1)",
    "{v}.masked_fill_({v} == {v}, torch.rand(()))",
    "x.view(-1).index_add_(0, where[{index}].reshape(-1), torch.ones(where[{index}].numel()))",
]
READS = ["{v} + 1", "torch.stack([{v}, {v}])", "torch.zeros({v}.shape).copy_({v})", "torch.max({v})", "{v}.double()"]
LOOKS = ["torch.zeros_like({v})", "{v}.new_ones(3)", "torch.empty_like({v})", "{v}.t().detach()"]


@dataclass
class Step:
    """One line of a program: issue a call with a view of x, write to one, read one, or wait for an earlier call."""

    kind: str
    index: tuple[slice, ...] = ()
    text: str = ""
    waited: int = 0


def slices(length: int) -> st.SearchStrategy[slice]:
    """Some of so many, at least one."""
    return st.builds(
        lambda start, num, step: slice(start, min(length, start + num), step),
        st.integers(0, length - 1),
        st.integers(1, length),
        st.integers(1, 3),
    )


INDICES = st.tuples(*(slices(length) for length in SHAPE))
STEPS = st.one_of(
    st.builds(Step, st.just("call"), INDICES, st.sampled_from(sorted(CALLS.values()))),
    st.builds(Step, st.just("write"), INDICES, st.sampled_from(WRITES)),
    st.builds(Step, st.just("read"), INDICES, st.sampled_from(READS)),
    st.builds(Step, st.just("look"), INDICES, st.sampled_from(LOOKS)),
    st.builds(Step, st.just("wait"), waited=st.integers(0, 5)),
)


def both(*works: Any) -> Any:
    """The handle of a message out and one in."""

    class Both:
        def wait(self) -> None:
            for work in works:
                work.wait()

    return Both()


def empty(shape: tuple[int, ...], count: int) -> list[Tensor]:
    """So many tensors to be filled."""
    return list(torch.empty(count, *shape))


def clash(call: str, other: str) -> bool:
    """Whether two calls must not share an element: one fills it, and they are not two collectives of one group."""
    return not (call in ONLY_READ and other in ONLY_READ) and ("both(" in call or "both(" in other)


def written(steps: list[Step]) -> tuple[list[str], set[int]]:
    """The lines of a program, and the numbers of those whose call is used before it is waited for."""
    lines, found = [], set()
    in_flight: dict[int, tuple[Tensor, str]] = {}  # number of a call's line -> which elements of x, and what it does
    for step in steps:
        view = f"x[{', '.join(f'{s.start}:{s.stop}:{s.step}' for s in step.index)}]"
        mask = torch.zeros(SHAPE, dtype=torch.bool)
        mask[step.index] = True
        if step.kind == "call":
            found |= {
                line for line, (given, other) in in_flight.items() if (given & mask).any() and clash(step.text, other)
            }
            lines.append(f"works[{len(lines)}] = " + step.text.format(v=view))
            in_flight[len(lines) - 1] = mask, step.text
        elif step.kind == "write":
            lines.append(step.text.format(v=view, index=view[2:-1]))
            found |= {line for line, (given, _) in in_flight.items() if (given & mask).any()}
        elif step.kind in ("read", "look"):
            lines.append(step.text.format(v=view))
            if step.kind == "read":
                found |= {n for n, (given, call) in in_flight.items() if call not in ONLY_READ and (given & mask).any()}
        elif in_flight:
            line = sorted(in_flight)[step.waited % len(in_flight)]
            lines.append(f"works.pop({line}).wait()")
            del in_flight[line]
    return lines, found


@given(st.lists(STEPS, min_size=2, max_size=9), st.integers(2, 3))
def test_a_use_is_found_exactly_where_its_elements_are_in_flight(steps: list[Step], num_ranks: int):
    lines, found = written(steps)
    place: dict[str, Any] = {
        "both": both,
        "empty": empty,
        "dist": dist,
        "torch": torch,
        "where": torch.arange(30).view(SHAPE),
    }
    exec(
        compile(
            "\n".join(["def run(x, works, n, left, right):", *(f" {line}" for line in lines), " pass"]), "p.py", "exec"
        ),
        place,
    )

    def program() -> None:
        rank, works = dist.get_rank(), {}
        x = torch.rand(SHAPE) + 1
        place["run"](x, works, num_ranks, (rank - 1) % num_ranks, (rank + 1) % num_ranks)
        for work in works.values():
            work.wait()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WriteInFlightWarning)
        warnings.simplefilter("ignore", ReadInFlightWarning)
        run = launch(program, ranks=num_ranks)
    named = {
        line
        for line in range(len(lines))
        if any(f"(p.py:{line + 2})" in note.split("that of")[-1] for note in run.notes)
    }
    assert named == found, "\n".join([*lines, *run.notes])


# ---- right programs: none is told anything ----


def ring() -> None:
    """Chunks of one tensor are sent while others are added to."""
    ring_all_reduce(torch.rand(37))


def overlap() -> None:
    """Gradients are reduced in hooks during backward, divided after their wait, used, and used again."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    works: list[Any] = []
    for param in model.parameters():
        param.register_post_accumulate_grad_hook(lambda p: works.append((p, dist.all_reduce(p.grad, async_op=True))))
    for set_to_none in (True, False):
        optimizer.zero_grad(set_to_none)
        model(torch.rand(3, 4)).sum().backward()
        while works:
            param, work = works.pop()
            work.wait()
            param.grad /= dist.get_world_size()
        optimizer.step()


def other_ways_to_wait() -> None:
    for finish in ("synchronize", "result", "get_future"):
        x = torch.rand(8)
        work = dist.all_reduce(x, async_op=True)
        getattr(work, finish)()
        x /= 2
        work.wait()
    x = torch.rand(8)
    dist.all_reduce(x, async_op=True).get_future().then(lambda future: future.value()[0].div_(2)).wait()
    work = dist.all_reduce(x, async_op=True)
    while not work.is_completed():
        pass
    x /= 2


def memory_is_used_again() -> None:
    """What was sent is dropped by the program: its memory may become another tensor's."""
    works = [dist.all_reduce(torch.rand(64), async_op=True) for _ in range(4)]
    for _ in range(20):
        torch.rand(64).zero_()
    for work in works:
        work.wait()


def changes_of_no_element() -> None:
    """Operators in place that only change how memory is seen, and operators that write what is there already."""
    x = torch.rand(4, 2)
    view = x.view(2, 4)
    work = dist.all_reduce(x, async_op=True)
    view.t_().unsqueeze_(0)
    x.detach_()
    x.requires_grad_()
    x.data = torch.zeros(4, 2)
    work.wait()


def other_elements() -> None:
    """Some elements of a tensor are read while others are filled."""
    x, rows = torch.rand(6, 6), torch.tensor([0, 5])
    work = dist.all_reduce(x[1:3], async_op=True)
    torch.nn.functional.embedding(rows, x) + x[rows] + x[4:]
    work.wait()


def in_place() -> None:
    """A collective may gather from, and scatter to, this rank's piece of one tensor."""
    rank, n = dist.get_rank(), dist.get_world_size()
    x = torch.rand(2 * n)
    own, others = x.view(n, 2)[rank], torch.rand(2 * n)
    all_gather_single(x, own)
    reduce_scatter_single(own, x)
    all_gather_single(others, own)
    dist.all_gather(list(x.chunk(n)), x[:2])


def with_ddp() -> None:
    """torch knows what it may write to."""
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)))
    for _ in range(2):
        model(torch.rand(3, 4)).sum().backward()


RIGHT = [
    ring,
    overlap,
    other_ways_to_wait,
    memory_is_used_again,
    changes_of_no_element,
    with_ddp,
    other_elements,
    in_place,
]


@pytest.mark.parametrize("program", RIGHT, ids=lambda program: program.__name__)
@pytest.mark.parametrize("fidelity", ["values", "shapes"])
def test_a_right_program_is_told_nothing(program: Callable[[], None], fidelity: str):
    assert not launch(program, ranks=4, fidelity=fidelity).notes


# ---- wrong programs that get right values ----


def divides_in_the_hook() -> None:
    linear, works = nn.Linear(4, 2), []

    def hook(param: Tensor) -> None:
        assert param.grad is not None
        works.append(dist.all_reduce(param.grad, async_op=True))
        param.grad /= dist.get_world_size()

    linear.weight.register_post_accumulate_grad_hook(hook)
    linear(torch.rand(3, 4)).sum().backward()
    works[0].wait()


def backward_goes_on() -> None:
    """The gradient of another micro-batch is added while that of the first is under way."""
    linear = nn.Linear(4, 2, bias=False)
    linear(torch.rand(3, 4)).sum().backward()
    work = dist.all_reduce(linear.weight.grad, async_op=True)
    linear(torch.rand(3, 4)).sum().backward()
    work.wait()


def steps_too_early() -> None:
    linear = nn.Linear(4, 2, bias=False)
    linear(torch.rand(3, 4)).sum().backward()
    work = dist.broadcast(linear.weight, src=0, async_op=True)
    torch.optim.SGD(linear.parameters(), lr=0.1).step()
    work.wait()


def writes_to_one_of_a_batch() -> None:
    xs = [torch.rand(8) for _ in range(3)]
    with dist._coalescing_manager(async_ops=True) as manager:  # pyright: ignore[reportPrivateImportUsage]
        for x in xs:
            dist.all_reduce(x)
    xs[2] += 1
    manager.wait()


WRONG = [divides_in_the_hook, backward_goes_on, steps_too_early, writes_to_one_of_a_batch]


@pytest.mark.parametrize("program", WRONG, ids=lambda program: program.__name__)
@pytest.mark.parametrize("fidelity", ["values", "shapes"])
def test_a_wrong_program_is_told_its_call_and_the_line_of_the_write(program: Callable[[], None], fidelity: str):
    with pytest.warns(WriteInFlightWarning, match=r"ranks 0 to 2 wrote to a tensor in flight \(test_in_flight.py:"):
        (note,) = launch(program, ranks=3, fidelity=fidelity).notes
    assert note.endswith("wait() first, or use a copy") and ", that of " in note


def gathers_into_what_computes() -> None:
    """The next unit's gather fills the buffer that this unit still reads."""
    n = dist.get_world_size()
    buffer, shard, x = torch.empty(4 * n), torch.rand(4), torch.rand(4 * n)
    all_gather_single(buffer, shard)
    work = all_gather_single(buffer, shard + 1, async_op=True)
    x *= buffer
    work.wait()


@pytest.mark.parametrize("fidelity", ["values", "shapes"])
def test_who_reads_too_early_is_told_call_and_line(fidelity: str):
    with pytest.warns(
        ReadInFlightWarning, match=r"ranks 0 to 2 read a tensor in flight \(test_in_flight.py:"
    ) as caught:
        (note,) = launch(gathers_into_what_computes, ranks=3, fidelity=fidelity).notes
    assert [str(warning.message) for warning in caught] == [note]
    assert ", that of " in note and note.endswith("let that call fill another tensor")


@pytest.mark.parametrize("fidelity", ["values", "shapes"])
@pytest.mark.parametrize("is_scatter", [False, True])
def test_an_output_may_overlap_its_input_as_this_ranks_piece_only(is_scatter: bool, fidelity: str):
    def program(first: int) -> None:
        x = torch.rand(16).narrow(0, 3, 6)
        part = x[first : first + 2]
        if is_scatter:
            reduce_scatter_single(part, x)
        else:
            all_gather_single(x, part)

    for first in range(5):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", OverlapWarning)
            notes = launch(program, first, ranks=3, fidelity=fidelity).notes
        told = {rank for rank in range(3) for note in notes if note.startswith(f"rank {rank} gave")}
        assert told == {rank for rank in range(3) if first != 2 * rank}, notes
        assert [str(warning.message) for warning in caught] == list(notes)
        assert all("use a separate tensor" in note and f"piece {note[5]} of the" in note for note in notes)


def test_tensors_without_values_are_compared_by_their_memory():
    def program() -> None:
        x = torch.empty(2**40, 6)
        work = dist.all_reduce(x[:, :3], async_op=True)
        x[:, 3:].zero_()
        if dist.get_rank() == 1:
            x[:, 2:].zero_()
        work.wait()

    with pytest.warns(WriteInFlightWarning):
        note, *_ = launch(program, ranks=2, fidelity="shapes").notes
    assert note.startswith("rank 1 wrote to a tensor in flight (") and "x[:, 2:].zero_()" in note


def test_the_note_names_rank_call_and_both_lines():
    def program() -> None:
        x = torch.rand(8)
        for _ in range(2):
            work = dist.all_reduce(x, async_op=True)
            if dist.get_rank() == 1:
                x += 1
                x += 2  # the first write of a call is enough
            work.wait()

    with pytest.warns(WriteInFlightWarning):
        (note,) = launch(program, ranks=2).notes
    assert note.startswith("rank 1 wrote to a tensor in flight, 2 times (test_in_flight.py:") and "x += 1)" in note
    assert "that of all_reduce of group world (test_in_flight.py:" in note and "work = dist.all_reduce(" in note


@pytest.mark.parametrize("fidelity", ["values", "shapes"])
def test_who_never_waits_is_told_that_and_no_more(fidelity: str):
    def program() -> None:
        x = torch.rand(8)
        dist.all_reduce(x, async_op=True)
        x /= 2

    with pytest.warns(UnwaitedWarning):
        (note,) = launch(program, ranks=2, fidelity=fidelity).notes
    assert "never waited for" in note


def test_a_call_is_the_programs_own_under_a_default_device_too():
    def program() -> None:
        with torch.device("cpu"):
            x = torch.rand(8)
            work = dist.all_reduce(x, async_op=True)
            x /= 2
            work.wait()
            dist.all_reduce(x, async_op=True)

    with pytest.warns(UnwaitedWarning), pytest.warns(WriteInFlightWarning):
        assert len(launch(program, ranks=2).notes) == 2


def test_looking_for_writes_leaves_no_trace():
    """Neither memory nor time nor values nor autograd tell that somebody looked."""

    def program(is_async: bool) -> tuple[list[float], int]:
        x = torch.arange(64.0).view(8, 8)
        scale = torch.ones(8, requires_grad=True)
        work = dist.all_reduce(x[:, ::2], async_op=is_async)
        version = x._version
        x[:, 1::2] = 0.0
        y = (x[:, 1::2].sum(1) + 1) * scale
        assert x._version == version + 1
        if work is not None:
            work.wait()
        y.sum().backward()
        assert scale.grad is not None
        return scale.grad.tolist(), int(x.sum())

    runs = [launch(program, is_async, ranks=2) for is_async in (False, True)]
    assert runs[0].values == runs[1].values and not runs[1].notes
    assert runs[0].memory.peak_bytes() == runs[1].memory.peak_bytes()
    spans = [[s.name for s in run.timeline.spans if s.stream == "compute"] for run in runs]
    assert spans[0] == spans[1]


def test_a_tensor_that_is_dropped_in_flight_is_not_kept_alive():
    def program() -> bool:
        x = torch.rand(1000)
        if dist.get_rank() == 1:
            dist.recv(x, 0)
            dist.barrier()
            return True
        work = dist.isend(x, 1)
        torch.zeros(8).zero_()  # an operator: whoever looks for writes has seen what is in flight
        dist.barrier()  # the message has been read
        memory = weakref.ref(x.untyped_storage())
        del x
        is_dead = memory() is None
        work.wait()
        return is_dead

    assert all(launch(program, ranks=2).values)


def test_a_wait_for_an_earlier_call_is_told_from_the_wait_for_this_one():
    """A list of works that is not emptied: the first wait of the second step is for the first step's."""

    def program(is_emptied: bool) -> None:
        works = []
        for _ in range(2):
            x = torch.rand(8)
            works.append((x, dist.all_reduce(x, async_op=True)))
            works[0][1].wait()
            x /= 2
            if is_emptied:
                works.clear()
        for _, work in works:
            work.wait()

    with pytest.warns(WriteInFlightWarning):
        (note,) = launch(program, False, ranks=2).notes
    assert "x /= 2" in note
    assert note.endswith("was for an earlier call, already waited for; let go of those, and wait for this one")
    assert not launch(program, True, ranks=2).notes


def test_a_call_that_blocks_is_seen_beside_one_that_is_under_way():
    def program() -> None:
        other, x = dist.new_group([0, 1]), torch.ones(4)
        work = dist.all_reduce(x, async_op=True)
        dist.all_reduce(x, group=other)
        work.wait()

    with pytest.warns(WriteInFlightWarning, match="gave all_reduce"):
        launch(program, ranks=2)


def test_a_call_that_blocks_is_no_wait_for_an_earlier_one():
    def program() -> None:
        x = torch.ones(4)
        dist.all_reduce(torch.ones(1))
        work = dist.all_reduce(x, async_op=True)
        x += 1
        work.wait()

    with pytest.warns(WriteInFlightWarning, match=r"wait\(\) first"):
        launch(program, ranks=2)


def test_a_call_that_would_block_is_waited_for_with_those_that_it_is_coalesced_with():
    def program() -> float:
        x, options, device = torch.ones(1), dist.AllreduceOptions(), torch.device("cpu")
        options.asyncOp = False
        group: Any = dist.group.WORLD
        group._start_coalescing(device)
        group.allreduce([x], options)
        group._end_coalescing(device).wait()
        return x.item()

    assert launch(program, ranks=2).values == [2.0, 2.0]
