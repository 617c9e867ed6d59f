# pyright: reportPrivateImportUsage=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportOptionalMemberAccess=false
"""Several axes at once: the mesh says which ranks replicate, shard and split, and gradients are those of one device."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from lablib import launch
from tests.conformance.reference import Gradients, assert_same, batch, build, gradients, launched, loss_of, one_device

SPLIT = {"up": ColwiseParallel(use_local_output=False), "down": RowwiseParallel()}


def hybrid_sharded_and_tensor_parallel() -> Gradients:
    """2 replicas x 2 shards x 2 tensor-parallel ranks."""
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("replicate", "shard", "tp"))
    model = build()
    for block in model:
        parallelize_module(block, mesh["tp"], SPLIT)
        fully_shard(block, mesh=mesh["replicate", "shard"])
    fully_shard(model, mesh=mesh["replicate", "shard"])
    part = batch().chunk(4)[mesh.get_local_rank("replicate") * 2 + mesh.get_local_rank("shard")]
    loss_of(model(part)).backward()
    return gradients(model)


def test_hybrid_sharding_with_tensor_parallel_on_a_mesh_of_2_2_2():
    run = launched(hybrid_sharded_and_tensor_parallel, ranks=8, expected=one_device())
    members = {(t.name, t.ranks) for t in run.traffic.transfers if len(t.ranks) == 2}
    assert ("reduce_scatter_tensor", (0, 2)) in members  # shards: rank and rank + 2
    assert ("all_reduce", (0, 4)) in members  # replicas: rank and rank + 4
    assert ("all_reduce", (0, 1)) in members  # tensor parallel: neighbours


@pytest.mark.parametrize(("shard", "tp"), [(2, 2), (3, 2), (2, 4)])
def test_shards_of_tensor_parallel_layers_of_any_size(shard: int, tp: int):
    def program() -> Gradients:
        mesh = init_device_mesh("cpu", (shard, tp), mesh_dim_names=("shard", "tp"))
        model = build()
        for block in model:
            parallelize_module(block, mesh["tp"], SPLIT)
            fully_shard(block, mesh=mesh["shard"])
        fully_shard(model, mesh=mesh["shard"])
        loss_of(model(batch(12).chunk(shard)[mesh.get_local_rank("shard")])).backward()
        return gradients(model)

    launched(program, ranks=shard * tp, expected=one_device(x=batch(12)))


@pytest.mark.parametrize("wrap", ["ddp", "fsdp2"])
def test_pipeline_stages_may_be_data_parallel(wrap: str):
    """2 stages x 2 data-parallel ranks: each pipeline works on half of the batch, the replicas of a stage average."""

    def program() -> Gradients:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
        stage_index, replica = mesh.get_local_rank("pp"), mesh.get_local_rank("dp")
        part = torch.nn.Sequential(*list(build())[stage_index * 2 : stage_index * 2 + 2])
        model: Any = part
        if wrap == "ddp":
            model = DistributedDataParallel(part, process_group=mesh.get_group("dp"))
        else:
            fully_shard(part, mesh=mesh["dp"])
        stage = PipelineStage(model, stage_index, 2, torch.device("cpu"), group=mesh.get_group("pp"))
        schedule = ScheduleGPipe(stage, 2, loss_fn=loss_of)
        x = batch().chunk(2)[replica]
        target = {"target": torch.zeros_like(x)} if stage_index == 1 else {}
        schedule.step(*([x] if stage_index == 0 else []), **target)
        found = {}
        for i, block in enumerate(part):
            found |= gradients(block, prefix=f"{stage_index * 2 + i}.")
        return found

    values = launch(program, ranks=4).values
    for replica in (0, 1):
        assert_same(values[replica] | values[2 + replica], one_device())


def test_a_mesh_is_sliced_flattened_and_named():
    def program() -> dict[str, Any]:
        mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp", "cp", "tp"))
        both = mesh["dp", "cp"]._flatten("dp_cp")
        total = torch.tensor(float(dist.get_rank()))
        dist.all_reduce(total, group=both.get_group())
        return {
            "coordinate": mesh.get_coordinate(),
            "tp": dist.get_process_group_ranks(mesh.get_group("tp")),
            "dp_cp": dist.get_process_group_ranks(both.get_group()),
            "total": total.item(),
            "sizes": (both.size(), mesh["cp"].size(), mesh.size()),
        }

    for rank, seen in enumerate(launch(program, ranks=8).values):
        assert list(seen["coordinate"]) == [rank // 4, rank // 2 % 2, rank % 2]
        assert seen["tp"] == [rank // 2 * 2, rank // 2 * 2 + 1]
        assert seen["dp_cp"] == list(range(rank % 2, 8, 2))
        assert seen["total"] == sum(seen["dp_cp"])
        assert seen["sizes"] == (4, 2, 8)
