# pyright: reportOptionalMemberAccess=false, reportPrivateImportUsage=false

"""torch's own parallel training runs on the simulator unmodified, with the gradients of one device.

Raw gradients in float64, against one model that sees the whole batch: an optimizer such as Adam would hide a wrong
scale. The tolerance is 1e-9 throughout, for sums that are taken in another order.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _get_default_group
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.pipelining.schedules import ScheduleInterleavedZeroBubble
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from lablib import launch

TOLERANCE = 1e-9
Gradients = dict[str, Tensor]


class Block(nn.Module):
    """Two linear layers with a residual, as in a transformer."""

    def __init__(self, width: int):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(x)))


class Checkpointed(nn.Sequential):
    """Computes every block again in backward."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - nn.Sequential's name
        for block in self:
            input = checkpoint(block, input, use_reentrant=False)
        return input


def build() -> nn.Sequential:
    """The same four blocks on every rank, in float64."""
    torch.manual_seed(0)
    return nn.Sequential(*(Block(8) for _ in range(4))).double()


def batch() -> Tensor:
    return torch.randn(16, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def loss_of(y: Tensor, target: Tensor | None = None) -> Tensor:
    return y.square().mean()


def one_device() -> Gradients:
    model = build()
    loss_of(model(batch())).backward()
    return gradients(model)


def gradients(model: nn.Module, prefix: str = "") -> Gradients:
    """Raw gradients by name, whole (of a DTensor: all its shards together)."""
    found = {}
    for name, param in model.named_parameters():
        grad = param.grad
        assert grad is not None, name
        name = prefix + name.replace("module.", "").replace("_checkpoint_wrapped_module.", "")
        found[name] = (grad.full_tensor() if isinstance(grad, DTensor) else grad).detach().clone()
    return found


def my_part() -> Tensor:
    return batch().chunk(dist.get_world_size())[dist.get_rank()]


def assert_gradients(found: Gradients, expected: Gradients) -> None:
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=TOLERANCE, atol=TOLERANCE, msg=name)


# ---- data parallel ----


def data_parallel(**options: Any) -> Gradients:
    model = DistributedDataParallel(build(), bucket_cap_mb=0.002, **options)
    for _ in range(2):  # a static graph is recorded in the first step and used from the second on
        model.zero_grad()
        loss_of(model(my_part())).backward()
    return gradients(model)


def data_parallel_with_accumulation() -> Gradients:
    model = DistributedDataParallel(build(), bucket_cap_mb=0.002)
    micro_batches = my_part().chunk(2)
    with model.no_sync():
        (loss_of(model(micro_batches[0])) / 2).backward()
    (loss_of(model(micro_batches[1])) / 2).backward()
    return gradients(model)


def data_parallel_with_a_communication_hook() -> Gradients:
    def average(state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
        assert work is not None
        return work.get_future().then(lambda future: future.value()[0])

    model = DistributedDataParallel(build(), bucket_cap_mb=0.002)
    model.register_comm_hook(None, average)
    loss_of(model(my_part())).backward()
    return gradients(model)


def data_parallel_with_checkpointing() -> Gradients:
    model = DistributedDataParallel(Checkpointed(*build()), bucket_cap_mb=0.002)
    loss_of(model(my_part())).backward()
    return gradients(model)


# ---- sharded ----


def fully_sharded(reshard: bool | int, is_checkpointed: bool = False) -> Gradients:
    model = Checkpointed(*build()) if is_checkpointed else build()
    for block in model:
        fully_shard(block, reshard_after_forward=reshard)
    fully_shard(model, reshard_after_forward=reshard)
    loss_of(model(my_part())).backward()
    return gradients(model)


def tensor_parallel() -> Gradients:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = build()
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    loss_of(model(batch())).backward()
    return gradients(model)


def hybrid_sharded_and_tensor_parallel() -> Gradients:
    """2 replicas x 2 shards x 2 tensor-parallel ranks."""
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("replicate", "shard", "tp"))
    model = build()
    for block in model:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["replicate", "shard"])
    fully_shard(model, mesh=mesh["replicate", "shard"])
    part = batch().chunk(4)[mesh.get_local_rank("replicate") * 2 + mesh.get_local_rank("shard")]
    loss_of(model(part)).backward()
    return gradients(model)


WHOLE_MODEL: dict[str, tuple[int, Callable[[], Gradients]]] = {
    "DDP": (4, data_parallel),
    "DDP, gradients are views of buckets": (4, lambda: data_parallel(gradient_as_bucket_view=True)),
    "DDP, static graph": (4, lambda: data_parallel(static_graph=True)),
    "DDP, looking for unused parameters": (4, lambda: data_parallel(find_unused_parameters=True)),
    "DDP, no_sync": (4, data_parallel_with_accumulation),
    "DDP, a communication hook": (4, data_parallel_with_a_communication_hook),
    "DDP, activation checkpointing": (4, data_parallel_with_checkpointing),
    "FSDP2": (4, lambda: fully_sharded(reshard=True)),
    "FSDP2, parameters kept after forward": (4, lambda: fully_sharded(reshard=False)),
    "FSDP2, parameters kept by pairs after forward": (4, lambda: fully_sharded(reshard=2)),
    "FSDP2, activation checkpointing": (4, lambda: fully_sharded(reshard=True, is_checkpointed=True)),
    "TP": (4, tensor_parallel),
    "HSDP x TP": (8, hybrid_sharded_and_tensor_parallel),
}


@pytest.mark.parametrize("name", WHOLE_MODEL)
def test_raw_gradients_equal_one_device(name: str):
    ranks, program = WHOLE_MODEL[name]
    expected = one_device()
    run = launch(program, ranks=ranks)
    for found in run.values:
        assert_gradients(found, expected)
    assert run.traffic.sent_bytes() > 0 and run.timeline.makespan_s > 0


# ---- pipeline ----


def pipeline(schedule: type, stages_per_rank: int) -> Gradients:
    """Four blocks over p ranks, four micro-batches; rank r holds stages r, r + p, ..."""
    blocks, rank, size = list(build()), dist.get_rank(), dist.get_world_size()
    num_stages = size * stages_per_rank
    per_stage = len(blocks) // num_stages
    stages, parts = [], {}
    for index in range(rank, num_stages, size):
        first = index * per_stage
        part = nn.Sequential(*blocks[first : first + per_stage])
        parts[first] = part
        stages.append(PipelineStage(part, index, num_stages, torch.device("cpu")))
    plan = schedule(stages if stages_per_rank > 1 else stages[0], 4, loss_fn=loss_of)
    target = {"target": torch.zeros(16, 8, dtype=torch.float64)} if rank == size - 1 else {}
    plan.step(*([batch()] if rank == 0 else []), **target)
    found = {}
    for first, part in parts.items():
        for i, block in enumerate(part):
            found |= gradients(block, prefix=f"{first + i}.")
    return found


@pytest.mark.parametrize(
    ("schedule", "stages_per_rank", "ranks"),
    [
        (ScheduleGPipe, 1, 2),
        (ScheduleGPipe, 1, 4),
        (Schedule1F1B, 1, 2),
        (Schedule1F1B, 1, 4),
        (ScheduleInterleaved1F1B, 2, 2),
        (ScheduleInterleavedZeroBubble, 2, 2),
    ],
)
def test_a_pipeline_gives_the_gradients_of_one_device(schedule: type, stages_per_rank: int, ranks: int):
    found: Gradients = {}
    for of_rank in launch(pipeline, schedule, stages_per_rank, ranks=ranks).values:
        found |= of_rank
    expected = one_device()
    assert_gradients({name: found[name] for name in expected}, expected)


# ---- optimizers ----


@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated")  # torch's own, on importing its optimizers
def test_the_zero_redundancy_optimizer_takes_the_steps_of_the_plain_one():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def program() -> list[Tensor]:
        model = DistributedDataParallel(build())
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(model(my_part())).backward()
            optimizer.step()
        return [param.detach().clone() for param in model.parameters()]

    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(model(batch())).backward()
        optimizer.step()
    for params in launch(program, ranks=4).values:
        torch.testing.assert_close(params, list(model.parameters()), rtol=TOLERANCE, atol=TOLERANCE)


def test_ddp_broadcasts_the_parameters_and_buffers_of_rank_0():
    def program() -> tuple[Tensor, Tensor]:
        torch.manual_seed(dist.get_rank())
        model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
        return model.module[0].weight.detach().clone(), model.module[1].running_mean.clone()

    values = launch(program, ranks=3).values
    assert all(torch.equal(weight, values[0][0]) for weight, _ in values)


def test_a_program_may_name_its_rank_and_world_without_calling_init():
    """What a script for torchrun does at its start, and at its end."""

    def script() -> int:
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        size = dist.get_world_size()
        assert _get_default_group().size() == size
        copy.deepcopy(build())
        dist.destroy_process_group()
        return size

    assert launch(script, ranks=3).values == [3, 3, 3]
