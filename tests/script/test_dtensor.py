# pyright: reportPrivateImportUsage=false, reportCallIssue=false
"""DTensors on the simulated device: what they draw, and other tensors that wrap tensors."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed import tensor as dtensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor import _random as dtensor_random
from torch.distributed.tensor.parallel import loss_parallel
from torch.utils import _pytree as pytree

from lablib import launch

DRAWS = {
    "uniform_": lambda x: x.uniform_(),
    "normal_": lambda x: x.normal_(),
    "kaiming_uniform_": nn.init.kaiming_uniform_,
    "trunc_normal_": nn.init.trunc_normal_,
    "xavier_normal_": nn.init.xavier_normal_,
    "rand_like": torch.rand_like,
    "dropout": lambda x: nn.functional.dropout(x.fill_(1), 0.5) * torch.rand_like(x),
}


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(sorted(DRAWS)),
    st.tuples(st.sampled_from([4, 8, 12]), st.sampled_from([4, 12])),  # else torch gives some shards the same offset
    st.sampled_from([Replicate(), Shard(0), Shard(1)]),
    st.integers(1, 3),
)
def test_a_dtensor_draws_other_numbers_for_each_shard_and_the_same_for_each_replica(name, shape, placement, ranks):
    def program() -> tuple[Tensor, float]:
        mesh = init_device_mesh("cuda", (dist.get_world_size(),))
        torch.manual_seed(7)
        x = DRAWS[name](distribute_tensor(torch.zeros(shape, dtype=torch.float64), mesh, [placement]))
        assert isinstance(x, DTensor) and x.device.type == x.to_local().device.type == "cuda"
        return x.full_tensor().cpu(), torch.rand(1).item()

    (first, after), *others = launch(program, ranks=ranks, device="cuda").values
    assert all(torch.equal(first, other) for other, _ in others)  # a replica's or a gathered tensor's
    assert {number for _, number in others} <= {after}  # all ranks' generators have come as far
    drawn = first[first != 0]
    assert drawn.unique().numel() == drawn.numel() and first.shape == shape
    assert torch.equal(launch(program, ranks=ranks, device="cuda").values[0][0], first)


def test_fsdp2_initializes_on_the_device_what_was_made_on_meta():
    def program() -> tuple[Tensor, bool]:
        mesh = init_device_mesh("cuda", (dist.get_world_size(),))
        with torch.device("meta"):
            model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 6))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        model.to_empty(device="cuda")
        for layer in model:
            layer.reset_parameters()
        model(torch.ones(2, 8, device="cuda")).square().sum().backward()
        weight: Any = model[0].weight
        return weight.full_tensor().detach().cpu(), bool(torch.isfinite(weight.grad.full_tensor()).all())

    run = launch(program, ranks=2, device="cuda")
    (weight, is_finite), (same, _) = run.values
    assert torch.equal(weight, same) and is_finite and weight.unique().numel() == 64
    assert 0 < weight.abs().max() <= 8**-0.5  # what Linear's rule says


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_loss_of_logits_cut_over_the_devices_is_that_of_whole_ones(reduction: str):
    torch.manual_seed(0)
    logits, targets = torch.randn(5, 6, dtype=torch.float64), torch.tensor([0, 5, 2, -100, 3])

    def program() -> tuple[Tensor, Tensor]:
        mesh = init_device_mesh("cuda", (dist.get_world_size(),))
        x: Any = distribute_tensor(logits.cuda(), mesh, [Shard(1)]).requires_grad_()
        with loss_parallel():
            loss: Any = nn.functional.cross_entropy(x, targets.cuda(), reduction=reduction)
            loss.backward()
        return loss.full_tensor().detach().cpu(), x.grad.full_tensor().cpu()

    x = logits.clone().requires_grad_()
    loss = nn.functional.cross_entropy(x, targets, reduction=reduction)
    loss.backward()
    for found in launch(program, ranks=3, device="cuda").values:
        torch.testing.assert_close(found, (loss.detach(), x.grad), rtol=1e-12, atol=1e-12)


def test_what_keeps_random_numbers_alike_is_made_by_each_rank_and_gone_with_the_run():
    def program(draws: bool) -> bool:
        mesh = init_device_mesh("cuda", (dist.get_world_size(),))
        if draws:
            dtensor.rand(4, device_mesh=mesh)
        return dtensor_random._rng_tracker is not None

    run = launch(program, True, ranks=3, device="cuda")
    assert run.values == [True] * 3 and run.traffic.count("broadcast") == 1  # of rank 0's state
    assert launch(program, False, ranks=2, device="cuda").values == [False] * 2


class Wrapped(Tensor):
    """A tensor that computes with another."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Any:
        return Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    def __tensor_flatten__(self) -> Any:
        return ["inner"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map_only(Wrapped, lambda x: x.inner, (args, kwargs or {}))
        return pytree.tree_map_only(Tensor, Wrapped, func(*args, **kwargs))


class WrappedWithKind(Wrapped):
    """Its `__tensor_flatten__` fails until `__init__` has set both attributes."""

    kind: str

    def __init__(self, inner: Tensor) -> None:
        self.inner, self.kind = inner, "kind"

    def __tensor_flatten__(self) -> Any:
        return ["inner"], self.kind


@pytest.mark.parametrize("place", ["cuda", "cpu"])
def test_a_tensor_that_wraps_another_may_ask_for_its_own_attributes(place: str):
    def program() -> str:
        return WrappedWithKind(torch.ones(2, device=place)).device.type

    assert launch(program, ranks=2, device="cuda").values == [place] * 2


@pytest.mark.parametrize("place", ["cuda", "cpu"])
def test_a_tensor_that_wraps_another_is_where_that_is_and_has_a_gradient(place: str):
    def program() -> tuple[str, str, Tensor]:
        weight: Any = nn.Parameter(Wrapped(torch.full((3, 3), 2.0, device=place)))
        (weight @ torch.ones(3, 1, device=place)).square().sum().backward()
        return weight.device.type, weight.grad.device.type, weight.grad.inner.cpu()

    for found, of_gradient, gradient in launch(program, ranks=2, device="cuda").values:
        assert found == of_gradient == place and torch.equal(gradient, torch.full((3, 3), 12.0))
