# pyright: reportPrivateImportUsage=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportOptionalMemberAccess=false
"""Loss scaling and batch statistics across ranks: what every rank must decide together."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.nn.parallel import DistributedDataParallel

from lablib import launch
from lablib.errors import RankError
from tests.conformance.reference import Gradients, assert_same, batch, build, gradients, loss_of, my_part, parameters


def scaled_steps(model: nn.Module, scaler: Any, overflow_in_step: int | None) -> tuple[Gradients, list[float]]:
    """Three steps of SGD with a loss scale; in one of them a gradient of rank 1 is infinite."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scales = []
    for step in range(3):
        optimizer.zero_grad()
        loss = loss_of(model(my_part(batch(seed=step, dtype=torch.float32))))
        if step == overflow_in_step and dist.get_rank() == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return parameters(model), scales


def on_one_device(skipped: int | None) -> Gradients:
    model = build(dtype=torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model(batch(seed=step, dtype=torch.float32))).backward()
        if step != skipped:
            optimizer.step()
    return parameters(model)


OPTIONS: dict[str, Any] = {"init_scale": 2.0**10, "growth_interval": 2}


@pytest.mark.parametrize("overflow_in_step", [None, 1])
def test_with_ddp_every_rank_sees_the_overflow_that_the_average_carries(overflow_in_step: int | None):
    def program() -> tuple[Gradients, list[float]]:
        model = DistributedDataParallel(build(dtype=torch.float32))
        return scaled_steps(model, torch.amp.GradScaler("cpu", **OPTIONS), overflow_in_step)

    scales = [1024.0, 2048.0, 2048.0] if overflow_in_step is None else [1024.0, 512.0, 512.0]
    for found, seen in launch(program, ranks=4).values:
        assert seen == scales
        assert_same(found, on_one_device(overflow_in_step), tolerance=1e-5)


@pytest.mark.parametrize("overflow_in_step", [None, 1])
@pytest.mark.parametrize("make_scaler", [partial(ShardedGradScaler, "cpu"), partial(torch.amp.GradScaler, "cpu")])
# torch's own: its scaler hands DTensor a scale of shape [1]
@pytest.mark.filterwarnings("ignore:Found a non-scalar tensor with numel=1:UserWarning")
def test_with_shards_the_scaler_asks_the_other_ranks(overflow_in_step: int | None, make_scaler: Any):
    """One rank's shard may overflow and the others' not: what was found is reduced, by the scaler or by DTensor."""

    def program() -> tuple[Gradients, list[float]]:
        model = build(dtype=torch.float32)
        fully_shard(model)
        return scaled_steps(model, make_scaler(**OPTIONS), overflow_in_step)

    scales = [1024.0, 2048.0, 2048.0] if overflow_in_step is None else [1024.0, 512.0, 512.0]
    for found, seen in launch(program, ranks=4).values:
        assert seen == scales
        assert_same(found, on_one_device(overflow_in_step), tolerance=1e-5)


def test_autocast_is_a_ranks_own():
    """One rank computes in bfloat16 while the others, whose turns come in between, do not."""

    def program() -> list[torch.dtype]:
        model, seen = build(dtype=torch.float32), []
        with torch.autocast("cpu", torch.bfloat16, enabled=dist.get_rank() == 1):
            for _ in range(2):
                seen.append(model[0].up(batch(dtype=torch.float32)).dtype)
                dist.barrier()
        return seen

    expected = [[torch.bfloat16 if rank == 1 else torch.float32] * 2 for rank in range(3)]
    assert launch(program, ranks=3).values == expected


def test_gradients_under_autocast_are_those_of_the_same_casts_on_one_device():
    def step(part: Tensor, wrap: Any) -> Gradients:
        model = wrap(build(dtype=torch.float32))
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model(part))
        loss.backward()
        return gradients(model)

    alone = [step(part, lambda model: model) for part in batch(dtype=torch.float32).chunk(4)]
    expected = {name: torch.stack([g[name] for g in alone]).mean(0) for name in alone[0]}
    run = launch(lambda: step(my_part(batch(dtype=torch.float32)), DistributedDataParallel), ranks=4)
    for found in run.values:
        assert_same(found, expected, tolerance=1e-6)


# ---- batch statistics ----


def test_torchs_synchronized_batch_norm_needs_an_accelerator():
    """It refuses CPU tensors before it communicates, on every backend. When it takes them, prove it here."""

    def program() -> None:
        torch.nn.SyncBatchNorm(8)(my_part(batch(dtype=torch.float32)))

    with pytest.raises(RankError, match="SyncBatchNorm expected input tensor to be on"):
        launch(program, ranks=2)
