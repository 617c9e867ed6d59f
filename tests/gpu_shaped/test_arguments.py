"""What a launch moves to the GPU and what it leaves; an error about tensors in two places names what was left."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from lablib import launch
from lablib.errors import RankError
from lablib.process.arguments import note_what_is_left, placed
from lablib.real.workers.worker import _call

TWO_DEVICES = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
OUTSIDE = torch.ones(3)
META = torch.device("meta")  # stands for a GPU: every tensor tells where it is


@dataclass
class Held:
    tensor: Tensor


def helper(x: Tensor) -> Tensor:
    return x + OUTSIDE


ARGUMENTS: dict[str, Callable[[], Any]] = {
    "a tensor": lambda: torch.ones(3),
    "in a list in a dictionary": lambda: {"a": [torch.ones(3)]},
    "a module": lambda: nn.Linear(2, 2),
    "of a partial": lambda: partial(dict, {"a": torch.ones(3)}, b=torch.ones(3)),
    "held by an object": lambda: Held(torch.ones(3)),
    "a method of a module": lambda: nn.Linear(2, 2).forward,
}


def where(value: Any) -> list[str]:
    """On which kind of device each tensor is that these arguments hold."""
    if isinstance(value, Tensor):
        return [value.device.type]
    if isinstance(value, nn.Module):
        return [param.device.type for param in value.parameters()]
    if isinstance(value, Held):
        return where(value.tensor)
    if isinstance(value, partial):
        return where([*value.args, value.keywords])
    if hasattr(value, "__self__"):
        return where(value.__self__)
    return [one for part in (value.values() if isinstance(value, dict) else value) for one in where(part)]


@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_simulated_gpu_has_those_arguments_that_a_real_one_gets(name):
    (simulated,) = launch(where, ARGUMENTS[name](), ranks=1, device="cuda").values
    real = where(placed(ARGUMENTS[name](), META))
    assert [one == "cuda" for one in simulated] == [one == "meta" for one in real]
    assert ("cpu" in simulated) == (name == "held by an object")


class Pair(NamedTuple):
    inputs: Tensor
    targets: Tensor


def test_tensors_in_lists_dicts_and_named_tuples_are_moved_and_the_rest_is_as_it_was():
    given = ([torch.ones(2)], {"a": Pair(torch.ones(1), torch.ones(3))}, 7, "text", None, helper)
    lists, dicts, *rest = placed(given, META)
    assert lists[0].device == dicts["a"].inputs.device == dicts["a"].targets.device == META
    assert isinstance(dicts["a"], Pair) and rest == [7, "text", None, helper]


def test_a_leaf_stays_a_leaf_with_its_gradient_and_a_parameter_a_parameter():
    leaf, param = torch.ones(2, requires_grad=True), nn.Parameter(torch.ones(3))
    leaf.grad = torch.ones(2)
    there, moved = placed((leaf, param), META)
    assert there.is_leaf and there.requires_grad and there.grad is not None and there.grad.device == META
    assert isinstance(moved, nn.Parameter) and moved.device == META


def test_what_two_arguments_share_they_share_there():
    x, layer = torch.ones(2), nn.Linear(2, 1)
    a, (b,), first, second = placed((x, [x], layer, layer), META)
    assert a is b and first is second and first.weight.device == META


def test_an_error_names_the_tensors_that_the_launch_left_in_host_memory():
    inside = [torch.ones(3)]

    def program(x: Tensor, held: Held) -> Tensor:
        return helper(x) + inside[0] + held.tensor

    with pytest.raises(RankError) as caught:
        launch(program, torch.ones(3), Held(torch.ones(3)), ranks=1, device="cuda")
    text = str(caught.value)
    assert "In host memory: 'tensor' of argument 1, 'inside', which " in text and "'OUTSIDE', which helper()" in text
    assert "pass them as arguments" in text and ".to(torch.get_default_device())" in text


def test_an_error_of_another_kind_or_with_nothing_left_behind_is_as_it_was():
    for error, program in (
        (ValueError(TWO_DEVICES), helper),
        (RuntimeError("other"), helper),
        (RuntimeError(TWO_DEVICES), where),
    ):
        note_what_is_left(error, (program, (), {}))
        assert not hasattr(error, "__notes__")


@pytest.mark.parametrize(
    "says",
    [
        TWO_DEVICES,
        "indices should be either on cpu or on the same device as the indexed tensor (cpu)",
        "No backend type associated with device type cpu",
        "Tensors must be CUDA and dense",
        "Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the same",
    ],
)
def test_a_real_rank_says_so_on_a_gpu_and_only_there(says):
    def program() -> None:
        raise RuntimeError(says, OUTSIDE.shape)

    for on_gpu in (True, False):
        with pytest.raises(RuntimeError) as caught:
            _call(program, (), {}, on_gpu)
        assert bool(getattr(caught.value, "__notes__", [])) == on_gpu


class Hostile:
    @property
    def __dict__(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        raise OSError("do not look")


def test_an_object_that_cannot_be_looked_at_hides_no_error():
    error = RuntimeError(TWO_DEVICES)
    note_what_is_left(error, (helper, (Hostile(),), {}))
    assert str(error) == TWO_DEVICES
