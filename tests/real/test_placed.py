"""Arguments arrive on the rank's device. "meta" stands for a GPU: every tensor tells where it is."""

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lablib.process.arguments import placed

THERE = torch.device("meta")


class Pair(NamedTuple):
    inputs: Tensor
    targets: Tensor


def test_tensors_in_lists_dicts_and_named_tuples_are_moved_and_the_rest_is_as_it_was():
    given = ([torch.ones(2)], {"a": Pair(torch.ones(1), torch.ones(3))}, 7, "text", None)
    lists, dicts, *rest = placed(given, THERE)
    assert lists[0].device == dicts["a"].inputs.device == dicts["a"].targets.device == THERE
    assert isinstance(dicts["a"], Pair) and rest == [7, "text", None]


def test_a_leaf_stays_a_leaf_with_its_gradient_and_a_parameter_a_parameter():
    leaf, param = torch.ones(2, requires_grad=True), nn.Parameter(torch.ones(3))
    leaf.grad = torch.ones(2)
    there, moved = placed((leaf, param), THERE)
    assert there.is_leaf and there.requires_grad and there.grad is not None and there.grad.device == THERE
    assert isinstance(moved, nn.Parameter) and moved.device == THERE


def test_what_two_arguments_share_they_share_there():
    x, layer = torch.ones(2), nn.Linear(2, 1)
    a, (b,), first, second = placed((x, [x], layer, layer), THERE)
    assert a is b and first is second and first.weight.device == THERE


def test_a_partial_and_a_method_of_a_module_bring_theirs_along():
    layer = nn.Linear(2, 1)

    def program(x: Tensor, scale: Tensor) -> Any:
        return x, scale

    bound = placed(partial(program, torch.ones(2), scale=torch.ones(1)), THERE)
    assert [tensor.device for tensor in bound()] == [THERE] * 2
    assert placed(layer.forward, THERE)(torch.ones(1, 2, device=THERE)).device == THERE
    assert placed(program, THERE) is program
