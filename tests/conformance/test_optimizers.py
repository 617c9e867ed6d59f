# pyright: reportPrivateImportUsage=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportOptionalMemberAccess=false
"""Distributed optimizers: state in shards, local steps, averaged models; each with its own reference on one device."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.parallel import DistributedDataParallel

from lablib import launch
from tests.conformance.reference import Gradients, assert_same, batch, build, loss_of, my_part, parameters

# torch's own, on importing its optimizers
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated")
STEPS = 3


def trained(model: nn.Module, optimizer: Any, part: Callable[[Tensor], Tensor], num_steps: int = STEPS) -> None:
    for seed in range(num_steps):
        optimizer.zero_grad()
        loss_of(model(part(batch(seed=seed)))).backward()
        optimizer.step()


def on_one_device(kind: Any, **options: Any) -> tuple[nn.Module, Any]:
    model = build()
    optimizer = kind(model.parameters(), **options)
    trained(model, optimizer, lambda x: x)
    return model, optimizer


# ---- ZeroRedundancyOptimizer: ZeRO stage 1 ----

KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "SGD": (torch.optim.SGD, {"lr": 0.1}),
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.01}),
}
OTHER_PAIRS = [(True, 2), (False, 3), (True, 4)]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(
    ("is_view", "ranks"),
    [(False, 2), (True, 3), (False, 4), *(pytest.param(*each, marks=pytest.mark.thorough) for each in OTHER_PAIRS)],
)
def test_the_zero_redundancy_optimizer_takes_the_steps_of_the_plain_one(name: str, is_view: bool, ranks: int):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    kind, options = KINDS[name]

    def program() -> Gradients:
        model = DistributedDataParallel(build(), gradient_as_bucket_view=is_view)
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), optimizer_class=kind, parameters_as_bucket_view=is_view, **options
        )
        trained(model, optimizer, lambda x: my_part(x[:12]))
        return parameters(model)

    model = build()
    trained(model, kind(model.parameters(), **options), lambda x: x[:12])
    for found in launch(program, ranks=ranks).values:
        assert_same(found, parameters(model))


def test_the_state_is_held_in_parts_and_can_be_put_together():
    """Each parameter's state is on one rank only; `consolidate_state_dict` brings all of it to one."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def program() -> tuple[int, dict[str, Any]]:
        model = DistributedDataParallel(build())
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=0.01)
        trained(model, optimizer, my_part)
        held = sum(state["exp_avg"].numel() for state in optimizer.optim.state.values())
        optimizer.consolidate_state_dict(to=1)
        return held, optimizer.state_dict()["state"] if dist.get_rank() == 1 else {}

    model, optimizer = on_one_device(torch.optim.AdamW, lr=0.01)
    values = launch(program, ranks=4).values
    psi = sum(param.numel() for param in model.parameters())
    assert sum(held for held, _ in values) == psi
    assert max(held for held, _ in values) < psi / 4 + 8 * 32  # at most one parameter more than its share
    whole, expected = values[1][1], optimizer.state_dict()["state"]
    assert whole.keys() == expected.keys()
    for i, state in expected.items():
        for key in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(whole[i][key], state[key], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("hook_name", ["hook_with_zero_step", "hook_with_zero_step_interleaved"])
def test_a_step_of_the_sharded_optimizer_may_overlap_with_backward(hook_name: str):
    """The hook takes the step for a bucket when its gradients are there; the first steps only record the buckets."""
    from torch.distributed.algorithms.ddp_comm_hooks import ddp_zero_hook
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def program() -> Gradients:
        model = DistributedDataParallel(build(), bucket_cap_mb=0.002)
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), optimizer_class=torch.optim.SGD, overlap_with_ddp=True, lr=0.1
        )
        make_hook = getattr(ddp_zero_hook, hook_name)
        model.register_comm_hook(None, make_hook(allreduce_hook, model, optimizer))
        for _ in range(2):  # no step is taken while DDP has not built its last buckets
            loss_of(model(my_part())).backward()
            optimizer.step()
        start = build()
        with torch.no_grad():
            for param, first in zip(model.parameters(), start.parameters(), strict=True):
                param.copy_(first)
        for seed in range(STEPS):
            model.zero_grad()
            loss_of(model(my_part(batch(seed=seed)))).backward()
            optimizer.step()
        return parameters(model)

    model, _ = on_one_device(torch.optim.SGD, lr=0.1)
    for found in launch(program, ranks=2).values:
        assert_same(found, parameters(model))


# ---- averaged models: local SGD ----


def local_steps(num_ranks: int, num_steps: int, period: int, warm_up: int) -> Gradients:
    """The reference: n models on their own rows; from step `warm_up` on, parameters averaged every `period` steps."""
    models = [build() for _ in range(num_ranks)]
    for step in range(num_steps):
        for model, part in zip(models, batch(seed=step).chunk(num_ranks), strict=True):
            model.zero_grad()
            loss_of(model(part)).backward()
            torch.optim.SGD(model.parameters(), lr=0.1).step()
        if step >= warm_up and (step - warm_up) % period == 0:
            with torch.no_grad():
                for params in zip(*(model.parameters() for model in models), strict=True):
                    mean = torch.stack(params).mean(0)
                    for param in params:
                        param.copy_(mean)
    return parameters(models[0])


def test_a_model_averager_averages_the_parameters_every_few_steps():
    def program() -> Gradients:
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        averager = PeriodicModelAverager(period=2, warmup_steps=1)
        for seed in range(4):
            optimizer.zero_grad()
            loss_of(model(my_part(batch(seed=seed)))).backward()
            optimizer.step()
            averager.average_parameters(model.parameters())
        return parameters(model)

    expected = local_steps(4, num_steps=4, period=2, warm_up=1)
    for found in launch(program, ranks=4).values:
        assert_same(found, expected)


def test_the_post_local_sgd_optimizer_averages_by_itself():
    from torch.distributed.optim import PostLocalSGDOptimizer

    def program() -> Gradients:
        model = build()
        optimizer = PostLocalSGDOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), PeriodicModelAverager(period=3, warmup_steps=0)
        )
        trained(model, optimizer, my_part, num_steps=4)
        return parameters(model)

    expected = local_steps(2, num_steps=4, period=3, warm_up=0)
    for found in launch(program, ranks=2).values:
        assert_same(found, expected)


def test_a_hierarchical_averager_averages_over_pairs_more_often_than_over_all():
    from collections import OrderedDict

    from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import HierarchicalModelAverager

    def program() -> list[float]:
        x = nn.Parameter(torch.tensor([float(dist.get_rank())], dtype=torch.float64))
        x.grad = torch.zeros_like(x)  # a parameter without a gradient is not averaged
        averager = HierarchicalModelAverager(period_group_size_dict=OrderedDict([(2, 2), (4, 4)]), warmup_steps=0)
        seen = []
        for _ in range(5):
            averager.average_parameters([x])
            seen.append(x.item())
            x.data += float(dist.get_rank())  # a step of each rank's own
        return seen

    values = launch(program, ranks=4).values
    x = torch.arange(4.0, dtype=torch.float64)
    for step in range(5):
        if step % 4 == 0:
            x = x.mean().expand(4).clone()
        elif step % 2 == 0:
            x = x.view(2, 2).mean(1, keepdim=True).expand(2, 2).reshape(4).clone()
        assert [seen[step] for seen in values] == x.tolist(), step
        x += torch.arange(4.0)


def test_gradients_clipped_after_ddp_have_the_norm_of_one_device():
    def program() -> float:
        model = DistributedDataParallel(build())
        loss_of(model(my_part())).backward()
        return nn.utils.clip_grad_norm_(model.parameters(), 0.01).item()

    model = build()
    loss_of(model(batch())).backward()
    expected = nn.utils.clip_grad_norm_(model.parameters(), 0.01).item()
    assert launch(program, ranks=4).values == pytest.approx([expected] * 4, rel=1e-12)
