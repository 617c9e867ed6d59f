# pyright: reportPrivateImportUsage=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportOptionalMemberAccess=false
"""`torch.distributed.pipelining`: every schedule gives the gradients of one device, over many sizes.

Legend: p ranks, v stages on each, m micro-batches; s = p v stages.

    loop     rank r holds stages r, r + p, r + 2 p, ...            (Narayanan et al. 2021)
    V        rank r holds stages r and s - 1 - r                    (Qi et al. 2024, ZB-V; DualPipe-V)
"""

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
    SplitPoint,
    schedules,
)
from torch.distributed.pipelining import pipeline as trace
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime, get_schedule_class

from lablib import launch
from tests.conformance.reference import Gradients, assert_same, batch, build, gradients, loss_of, one_device

CPU = torch.device("cpu")
ROWS = 24
thorough = partial(pytest.param, marks=pytest.mark.thorough)  # sizes that the others have, in other pairs
V_SHAPED = (ScheduleZBVZeroBubble, ScheduleDualPipeV)


def stages_of(rank: int, ranks: int, stages_per_rank: int, is_v: bool) -> list[int]:
    num_stages = ranks * stages_per_rank
    return [rank, num_stages - 1 - rank] if is_v else list(range(rank, num_stages, ranks))


def pipelined(
    schedule: type, stages_per_rank: int, num_micro_batches: int, num_blocks: int, num_steps: int = 1
) -> tuple[Gradients, list[float]]:
    """The gradients of this rank's stages, and on the last stage's rank the losses of the micro-batches."""
    rank, size = dist.get_rank(), dist.get_world_size()
    num_stages, blocks = size * stages_per_rank, list(build(num_blocks=num_blocks))
    per_stage = num_blocks // num_stages
    held = stages_of(rank, size, stages_per_rank, schedule in V_SHAPED)
    parts = {index: nn.Sequential(*blocks[index * per_stage : (index + 1) * per_stage]) for index in held}
    stages = [PipelineStage(part, index, num_stages, CPU) for index, part in parts.items()]
    plan = schedule(stages[0] if stages_per_rank == 1 else stages, num_micro_batches, loss_fn=loss_of)
    is_last = num_stages - 1 in held
    losses: list[Tensor] = []
    for _ in range(num_steps):
        for part in parts.values():
            part.zero_grad()
        losses.clear()
        target = {"target": torch.zeros(ROWS, 8, dtype=torch.float64), "losses": losses} if is_last else {}
        plan.step(*([batch(ROWS)] if 0 in held else []), **target)
    found: Gradients = {}
    for index, part in parts.items():
        for i, block in enumerate(part):
            found |= gradients(block, prefix=f"{index * per_stage + i}.")
    return found, [loss.item() for loss in losses]


def assert_pipeline(schedule: type, ranks: int, stages_per_rank: int, num_micro_batches: int, num_steps: int = 1):
    num_blocks = max(4, ranks * stages_per_rank)
    num_blocks += -num_blocks % (ranks * stages_per_rank)
    run = launch(pipelined, schedule, stages_per_rank, num_micro_batches, num_blocks, num_steps, ranks=ranks)
    found: Gradients = {}
    for of_rank, losses in run.values:
        found |= of_rank
        if losses:
            with torch.no_grad():
                expected = [
                    loss_of(build(num_blocks=num_blocks)(x)).item() for x in batch(ROWS).chunk(num_micro_batches)
                ]
            assert losses == pytest.approx(expected, rel=1e-12)
    assert_same(found, one_device(build(num_blocks=num_blocks), batch(ROWS)))
    # Between two stages that sit on two ranks, every micro-batch is sent once forward and once backward.
    crossings = sum(
        rank_of(i, ranks, schedule) != rank_of(i + 1, ranks, schedule) for i in range(ranks * stages_per_rank - 1)
    )
    sends = [
        t for t in run.traffic.transfers if t.name == "send" and t.tensor_bytes == ROWS * 8 * 8 / num_micro_batches
    ]
    assert len(sends) == 2 * num_micro_batches * crossings * num_steps


def rank_of(stage: int, ranks: int, schedule: type) -> int:
    return (stage if stage < ranks else 2 * ranks - 1 - stage) if schedule in V_SHAPED else stage % ranks


@pytest.mark.parametrize("schedule", [ScheduleGPipe, Schedule1F1B])
@pytest.mark.parametrize(
    ("ranks", "num_micro_batches"), [(1, 2), thorough(2, 2), (2, 4), (3, 6), thorough(4, 4), (4, 8)]
)
def test_one_stage_a_rank(schedule: type, ranks: int, num_micro_batches: int):
    assert_pipeline(schedule, ranks, 1, num_micro_batches)


@pytest.mark.parametrize("schedule", [ScheduleInterleaved1F1B, ScheduleLoopedBFS, ScheduleInterleavedZeroBubble])
@pytest.mark.parametrize(
    ("ranks", "stages_per_rank", "num_micro_batches"),
    [(2, 2, 2), thorough(2, 2, 4), (2, 3, 4), thorough(4, 2, 4), (4, 2, 8), (3, 2, 6)],
)
def test_several_stages_a_rank_in_a_loop(schedule: type, ranks: int, stages_per_rank: int, num_micro_batches: int):
    assert_pipeline(schedule, ranks, stages_per_rank, num_micro_batches)


@pytest.mark.parametrize("schedule", V_SHAPED)
@pytest.mark.parametrize(("ranks", "num_micro_batches"), [(2, 4), thorough(2, 6), (3, 6), (4, 8)])
def test_two_stages_a_rank_in_a_v(schedule: type, ranks: int, num_micro_batches: int):
    assert_pipeline(schedule, ranks, 2, num_micro_batches)


@pytest.mark.parametrize("schedule", [Schedule1F1B, ScheduleInterleaved1F1B, ScheduleZBVZeroBubble])
def test_the_second_step_gives_the_same_gradients_again(schedule: type):
    assert_pipeline(schedule, 2, 1 if schedule is Schedule1F1B else 2, 4, num_steps=2)


def test_every_schedule_that_torch_names_is_in_this_file():
    """A name that torch adds must be proven above."""
    names = "1F1B GPipe Interleaved1F1B LoopedBFS InterleavedZeroBubble ZBVZeroBubble DualPipeV"
    proven = {get_schedule_class(name) for name in names.split()}
    offered = {
        value
        for name, value in vars(schedules).items()
        if name.startswith("Schedule") and isinstance(value, type) and value.__module__ == schedules.__name__
    }
    assert offered == proven


def test_a_forward_without_gradients_returns_the_output_of_the_whole_batch():
    def program() -> Tensor | None:
        rank, size = dist.get_rank(), dist.get_world_size()
        stage = PipelineStage(nn.Sequential(*list(build())[rank * 2 : rank * 2 + 2]), rank, size, CPU)
        plan = ScheduleGPipe(stage, 4)
        return plan.eval(*([batch()] if rank == 0 else []))

    with torch.no_grad():
        expected = build()(batch())
    torch.testing.assert_close(launch(program, ranks=2).values[1], expected, rtol=1e-12, atol=0)


def test_a_schedule_written_down_as_a_table_runs(tmp_path: Any):
    """GPipe for 2 stages and 2 micro-batches, in torch's own format: one line a rank, F and B with stage and batch."""
    table = tmp_path / "gpipe.csv"
    table.write_text("0F0,0F1,,,,0B0,0B1\n,1F0,1F1,1B0,1B1,,\n")

    def program() -> Gradients:
        rank = dist.get_rank()
        part = nn.Sequential(*list(build())[rank * 2 : rank * 2 + 2])
        plan = _PipelineScheduleRuntime([PipelineStage(part, rank, 2, CPU)], 2, loss_fn=loss_of)
        plan._load_csv(str(table), format="compute_only")
        target = {"target": torch.zeros_like(batch())} if rank == 1 else {}
        plan.step(*([batch()] if rank == 0 else []), **target)
        found: Gradients = {}
        for i, block in enumerate(part):
            found |= gradients(block, prefix=f"{rank * 2 + i}.")
        return found

    first, second = launch(program, ranks=2).values
    assert_same(first | second, one_device())


@pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.* is deprecated")  # torch's own, in its tracer
def test_a_model_that_torch_traces_and_splits_itself():
    """`pipeline(...)` traces the module with torch.export and cuts it where it is told."""

    def program() -> Gradients:
        rank = dist.get_rank()
        pipe = trace(build(), mb_args=(batch(4),), split_spec={"2": SplitPoint.BEGINNING})
        stage = pipe.build_stage(rank, CPU)
        plan = Schedule1F1B(stage, 4, loss_fn=loss_of)
        target = {"target": torch.zeros_like(batch())} if rank == 1 else {}
        plan.step(*([batch()] if rank == 0 else []), **target)
        return gradients(stage.submod)

    first, second = launch(program, ranks=2).values
    assert_same(first | second, one_device())
