# pyright: reportPrivateImportUsage=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportOptionalMemberAccess=false
"""The same program in real processes: raw gradients on the simulator are those on gloo.

Sums of float64 may be taken in another order; a sum in a narrow type is rounded on the way, so there the tolerance is
the type's.
"""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleZBVZeroBubble
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import Sequential
from torch.nn.parallel import DistributedDataParallel

from lablib import launch
from tests.conformance.reference import TOLERANCE, Gradients, assert_same, batch, build, gradients, loss_of, my_part

F32 = torch.float32


def fp16_hook() -> Gradients:
    model = DistributedDataParallel(build(dtype=F32))
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    loss_of(model(my_part(batch(dtype=F32)))).backward()
    return gradients(model)


def power_sgd() -> Gradients:
    """Two compressed steps: the random start, the memory of errors and the warm start all enter."""
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    model = DistributedDataParallel(build(width=32, num_blocks=1))
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for seed in range(4):
        model.zero_grad()
        loss_of(model(my_part(batch(width=32, seed=seed)))).backward()
    return gradients(model)


def fsdp2_mixed_precision() -> Gradients:
    model = build(dtype=F32)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=F32)
    for block in model:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    loss_of(model(my_part(batch(dtype=F32)))).backward()
    return gradients(model)


def tensor_parallel() -> Gradients:
    mesh, model = dist.init_device_mesh("cpu", (dist.get_world_size(),)), build()
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    loss_of(model(batch())).backward()
    return gradients(model)


def pipelined(is_v: bool) -> Gradients:
    """1F1B with one stage a rank, or ZB-V with two."""
    rank, size = dist.get_rank(), dist.get_world_size()
    num_stages = 2 * size if is_v else size
    held = [rank, num_stages - 1 - rank] if is_v else [rank]
    blocks, each = list(build()), 4 // num_stages
    parts = {index: Sequential(*blocks[index * each : (index + 1) * each]) for index in held}
    stages = [PipelineStage(part, index, num_stages, torch.device("cpu")) for index, part in parts.items()]
    plan = ScheduleZBVZeroBubble(stages, 4, loss_of) if is_v else Schedule1F1B(stages[0], 4, loss_of)
    target = {"target": torch.zeros_like(batch())} if num_stages - 1 in held else {}
    plan.step(*([batch()] if 0 in held else []), **target)
    found: Gradients = {}
    for index, part in parts.items():
        for i, block in enumerate(part):
            found |= gradients(block, prefix=f"{index * each + i}.")
    return found


def one_f_one_b() -> Gradients:
    return pipelined(is_v=False)


def zb_v() -> Gradients:
    return pipelined(is_v=True)


@pytest.mark.parametrize(
    ("program", "tolerance"),
    [
        (fp16_hook, 2**-10),
        (power_sgd, TOLERANCE),
        (fsdp2_mixed_precision, 1e-6),
        (tensor_parallel, TOLERANCE),
        (one_f_one_b, TOLERANCE),
        (zb_v, TOLERANCE),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_raw_gradients_on_the_simulator_are_those_of_processes(program: Callable[[], Gradients], tolerance: float):
    simulated, real = (launch(program, ranks=2, backend=backend).values for backend in ("sim", "gloo"))
    for found, expected in zip(simulated, real, strict=True):
        assert_same(found, expected, tolerance)
