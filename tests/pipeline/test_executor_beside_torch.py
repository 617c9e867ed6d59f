"""The executor beside torch.distributed.pipelining: the same plans, the same gradients, the same simulated time."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as torch_schedules

from lablib import launch
from lablib.models import GPT, GPTConfig, next_token_loss
from lablib.pipeline import Plan
from lablib.pipeline.executor import Pipeline, cut_at
from lablib.pipeline.schedules import make
from lablib.run import Run
from tests.pipeline.test_executor import tokens

CONFIG = GPTConfig(num_layers=4, d_model=64, num_heads=2, vocab_size=16, max_seq_len=6, tied_head=False)


def gradients(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: param.grad for name, param in model.named_parameters() if param.grad is not None}


def ours(plan: Plan) -> dict[str, Tensor]:
    model = GPT(CONFIG, dtype=torch.float64)
    pipeline = Pipeline(plan, cut_at(model, list(range(plan.num_pieces))), next_token_loss)
    for _ in range(2):  # torch's first step also tells shapes
        model.zero_grad()
        dist.barrier()
        pipeline.step(*tokens(plan.num_microbatches, 16))
    dist.barrier()
    return gradients(model)


def torchs(plan: Plan, name: str) -> dict[str, Tensor]:
    model, count = GPT(CONFIG, dtype=torch.float64), plan.num_pieces
    pieces = cut_at(model, list(range(count)))
    own = [i for i, rank in enumerate(plan.rank_of) if rank == dist.get_rank()]
    stages = [PipelineStage(pieces[i], i, count, torch.device("cpu")) for i in own]
    kind: Any = getattr(torch_schedules, name)
    is_single = issubclass(kind, torch_schedules.PipelineScheduleSingle)
    schedule = kind(stages[0] if is_single else stages, plan.num_microbatches, loss_fn=next_token_loss)
    inputs, targets = map(torch.cat, tokens(plan.num_microbatches, 16))
    for _ in range(2):
        model.zero_grad()
        dist.barrier()
        schedule.step(*([inputs] if 0 in own else []), **({"target": targets} if count - 1 in own else {}))
    dist.barrier()
    return gradients(model)


def step_s(run: Run) -> float:
    """Seconds between the last two barriers."""
    barriers = [span for span in run.timeline.select(0) if span.is_communication and span.name == "barrier"]
    return barriers[-1].start_s - barriers[-2].end_s


@pytest.mark.parametrize(
    ("name", "m", "v", "theirs", "least"),
    [
        ("1f1b", 4, 1, "Schedule1F1B", 0.95),
        ("interleaved", 4, 2, "ScheduleInterleaved1F1B", 0.95),
        # torch enters autograd once more for each layer.
        ("zb-v", 4, 1, "ScheduleZBVZeroBubble", 0.95),
        pytest.param("gpipe", 4, 1, "ScheduleGPipe", 0.95, marks=pytest.mark.thorough),
        pytest.param("breadth-first", 4, 2, "ScheduleLoopedBFS", 0.95, marks=pytest.mark.thorough),
        pytest.param("zb-h1", 4, 1, "ScheduleInterleavedZeroBubble", 0.95, marks=pytest.mark.thorough),
        pytest.param("dualpipe-v", 4, 1, "ScheduleDualPipeV", 0.95, marks=pytest.mark.thorough),
    ],
)
def test_a_schedule_of_torchs_gives_the_same_gradients_and_is_no_faster(name, m, v, theirs, least):
    plan = make(name, 2, m, v)
    own = launch(ours, plan, ranks=2, cluster="laptop")
    other = launch(torchs, plan, theirs, ranks=2, cluster="laptop")
    for found, expected in zip(own.values, other.values, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-15)
    assert least < step_s(own) / step_s(other) < 1.05
