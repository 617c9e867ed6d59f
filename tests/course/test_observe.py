"""What a call did to its tensors, seen without a cost on the simulator."""

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lablib import launch
from lablib.course.checks.observe import observe


def change_in_place(x: torch.Tensor) -> None:
    x.view(-1)[-1] += 1


@given(st.lists(st.booleans(), min_size=1, max_size=4), st.sampled_from([torch.float32, torch.bfloat16, torch.int64]))
def test_changed_arguments_are_named_by_position(changed: list[bool], dtype: torch.dtype):
    def call(*tensors: torch.Tensor) -> int:
        for tensor, is_changed in zip(tensors, changed, strict=True):
            if is_changed:
                change_in_place(tensor)
        return 7

    seen = observe(call, *(torch.ones(2, 3, dtype=dtype) for _ in changed))
    assert seen.value == 7
    assert seen.changed == tuple(i for i, is_changed in enumerate(changed) if is_changed)


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [x], lambda x: {"a": (x,)}])
def test_a_tensor_is_found_inside_what_holds_it(wrap):
    x = torch.zeros(3)
    assert observe(lambda held: change_in_place(x), wrap(x)).changed == (0,)
    assert observe(lambda held: wrap(x[1:]), wrap(x)).aliased == (0,)
    assert observe(lambda held: x.clone(), wrap(x)).aliased == ()


CHANGES = {
    "pop": lambda items: items.pop(),
    "clear": lambda items: items.clear(),
    "reverse": lambda items: items.reverse(),
    "append": lambda items: items.append(0),
    "another number": lambda items: items.__setitem__(0, items[0] + 1),
    "inside": lambda items: items[-1].append(3),
}


@given(st.lists(st.integers(), min_size=2, unique=True), st.sampled_from([*CHANGES, None]))
def test_a_list_with_other_items_has_changed(numbers: list[int], how: str | None):
    items = [*numbers, [torch.zeros(2)]]
    seen = observe(lambda held: CHANGES[how](held) if how else sorted(held[:-1]), items)
    assert seen.changed == ((0,) if how else ())


def test_a_generator_is_run_and_what_it_changes_is_seen():
    def answer(items: list[int]):
        while items:
            yield items.pop()

    seen = observe(answer, [1, 2])
    assert (seen.value, seen.changed) == ([2, 1], (0,))


def test_parameters_and_buffers_of_a_module_are_looked_at():
    module = nn.BatchNorm1d(3)
    assert observe(lambda m: m(torch.ones(2, 3)).sum().item(), module).changed == (0,)  # running statistics
    assert observe(lambda m: m.eval()(torch.ones(2, 3)).sum().item(), module).changed == ()


def test_tensors_without_memory_are_let_pass():
    assert observe(lambda x, y: x, torch.empty(0), torch.empty(3, device="meta")).aliased == ()


def test_looking_takes_no_simulated_time_and_no_memory():
    def program(observed: bool):
        x = torch.ones(1000)
        call = observe if observed else lambda function, *args: function(*args)
        call(dist.all_reduce, x)

    plain, seen = (launch(program, observed, ranks=3) for observed in (False, True))
    spans = [[(s.rank, s.stream, s.name, s.start_s, s.end_s) for s in run.timeline.spans] for run in (plain, seen)]
    assert spans[0] == spans[1]
    assert plain.memory.peak_bytes(0) == seen.memory.peak_bytes(0)


def test_only_an_assignment_to_the_first_argument_gives_its_name_to_another_tensor():
    def into_another_name(x: torch.Tensor) -> None:
        y = x * 2
        x.add_(y)

    def to_the_own_name(x: torch.Tensor) -> None:
        x = x * 2

    def held(x: torch.Tensor) -> None:
        to_the_own_name(x)

    found = [observe(answer, torch.ones(2)).rebinds for answer in (into_another_name, to_the_own_name, held)]
    assert found == [False, True, True]
