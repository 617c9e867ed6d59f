# pyright: reportPrivateImportUsage=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportOptionalMemberAccess=false
"""FSDP1, `FullyShardedDataParallel`: the older interface, still in many scripts; flat parameters in shards."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from lablib import launch, phase
from tests.conformance import reference

# torch's own: FSDP1 is deprecated in favour of fully_shard, and asks after devices.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


def step(strategy: ShardingStrategy) -> reference.Gradients:
    """Whole gradients, put together by FSDP itself."""
    options: dict[str, Any] = {}
    if strategy is ShardingStrategy.HYBRID_SHARD:
        options["device_mesh"] = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = FullyShardedDataParallel(
        reference.build(),
        sharding_strategy=strategy,
        auto_wrap_policy=ModuleWrapPolicy({reference.Block}),
        device_id=torch.device("cpu"),
        use_orig_params=True,
        **options,
    )
    reference.loss_of(model(reference.my_part())).backward()
    with FullyShardedDataParallel.summon_full_params(model, with_grads=True):
        return reference.gradients(model)


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD"])
def test_every_sharding_strategy_gives_the_gradients_of_one_device(strategy: str):
    reference.launched(step, ShardingStrategy[strategy], expected=reference.one_device())


def test_a_full_state_is_gathered_and_loaded():
    def program() -> dict[str, Tensor]:
        model = FullyShardedDataParallel(
            reference.build(), auto_wrap_policy=ModuleWrapPolicy({reference.Block}), device_id=torch.device("cpu")
        )
        model.load_state_dict({name: tensor + 1 for name, tensor in model.state_dict().items()})
        return {name: tensor.clone() for name, tensor in model.state_dict().items()}

    expected = {name: tensor + 1 for name, tensor in reference.build().state_dict().items()}
    for found in launch(program, ranks=3).values:
        reference.assert_same(found, expected, tolerance=0)


def seconds(**options: Any) -> tuple[float, float]:
    """Seconds of a step of six wide layers, and of its communication that nothing hides."""

    def program() -> None:
        layers = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(6)))
        options.setdefault("auto_wrap_policy", ModuleWrapPolicy({nn.Linear}))
        model = FullyShardedDataParallel(layers, device_id=torch.device("cpu"), **options)
        for _ in range(2):
            dist.barrier()
            with phase("step"):
                model(torch.ones(2048, 512)).sum().backward()
        dist.barrier()

    run = launch(program, ranks=2)
    *_, begin, end = (t.start_s for t in run.traffic.transfers if t.name == "barrier")
    return end - begin, run.timeline.between(begin, end).exposed_s(0)


def test_prefetch_and_the_wrap_policy_show_in_a_steps_time_as_on_gpus():
    """Without a policy that matches there is one unit, and nothing hides its collectives (docs/settings.md)."""
    usual, never = seconds(), seconds(backward_prefetch=None)
    assert usual[0] < never[0] and usual[1] < 0.6 * never[1]
    one_unit = seconds(auto_wrap_policy=None)
    assert one_unit[1] > 2 * usual[1]
    kept = seconds(sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)  # no gathers in backward to hide
    assert kept[0] <= usual[0] < one_unit[0]
