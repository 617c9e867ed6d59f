"""A simulated run of the executor is the replay of its plan: every action's start and end, and what each rank holds."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from torch import nn
from torch.autograd.graph import get_gradient_edge

from lablib import CLUSTERS, launch
from lablib.hardware import Cluster, Link
from lablib.models import GPT, GPTConfig
from lablib.pipeline import Costs, Kind, Plan, executed, measured_costs, replay, schedules, with_communication
from lablib.pipeline.executor import Pipeline, WeightGradients, cut
from lablib.pipeline.schedules import SCHEDULES, make
from lablib.run import COMPUTE, Run
from tests.pipeline.drawn_plans import any_plan, plans
from tests.pipeline.test_executor import blocks, mean_square, rows

ROUNDING = 1e-12  # of the makespan
# An action of a replay has one duration. These are small: behind a host that launches them, the first would be longer.
NODE = CLUSTERS["dgx-h100"].replace(device=replace(CLUSTERS["dgx-h100"].device, launch_s=0.0))


def run_of(plan: Any, cluster: str | Cluster = NODE) -> Run:
    """A step of small blocks; gradients are there before it, so that every micro-batch adds to them."""
    plan_of = getattr(plan, "plan", plan)

    def program() -> None:
        pipeline = Pipeline(plan, cut(blocks(plan_of.num_pieces), plan_of.num_pieces), mean_square)
        for param in pipeline.parameters():
            param.grad = torch.zeros_like(param)
        dist.barrier()
        pipeline.step(*rows([3] * plan_of.num_microbatches))

    return launch(program, ranks=plan_of.num_stages, cluster=cluster)


def apart(run: Run, plan: Plan, costs: Costs) -> float:
    """How far the starts and ends of actions are from the replay's, at most, as a share of the makespan."""
    expected, done = replay(plan, costs), executed(run.timeline, plan)
    assert [span.name for span in done.spans] == [str(action) for row in plan for action in row]
    pairs = [
        pair
        for rank in range(plan.num_stages)
        for span, start_s, end_s in zip(done.select(rank), expected.start_s[rank], expected.end_s[rank], strict=True)
        for pair in ((span.start_s, start_s), (span.end_s, end_s))
    ]
    return max(abs(a - b) for a, b in pairs) / expected.makespan_s


INSTANT = Link("instant", 0.0, math.inf)
FREE = replace(NODE, name="free messages", intra=INSTANT, inter=INSTANT)
# A message takes nearly as long as F (26 us); longer ones would queue on a link, which the replay leaves out. There are
# two ranks a node, so that what comes from either neighbour has its own port.
SLOW = replace(
    FREE, name="slow", devices_per_node=2, intra=Link("slow", 1e-5, math.inf), inter=Link("slower", 2e-5, math.inf)
)


@pytest.mark.parametrize("name", SCHEDULES)
def test_each_action_starts_and_ends_as_in_the_replay(name):
    """With messages, laid for what the actions took in a first run."""
    plan = any_plan(name, 4, 6, 2)
    costs = measured_costs(run_of(plan).timeline, plan)
    assert min(costs.send_s) >= 0 and max(costs.send_s) > 1e-6  # pyright: ignore
    assert apart(run_of(with_communication(plan, costs)), plan, costs) < ROUNDING


@settings(max_examples=15, deadline=None)
@given(plan=plans())
def test_any_plan_takes_what_its_replay_says_where_messages_are_free(plan):
    run = run_of(plan, FREE)
    assert apart(run, plan, measured_costs(run.timeline, plan)) < ROUNDING


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb-h1", "zb-h2"])
def test_messages_as_long_as_actions_are_hidden_as_in_the_replay(name):
    plan = any_plan(name, 4, 5)
    costs = measured_costs(run_of(plan, SLOW).timeline, plan)
    assert costs.send_s == pytest.approx([1e-5, 2e-5, 1e-5], rel=0.01)
    run = run_of(with_communication(plan, costs), SLOW)
    assert apart(run, plan, costs) < ROUNDING
    # Laid for other costs it is right, too, and later or as late.
    default = executed(run_of(plan, SLOW).timeline, plan)
    assert default.makespan_s >= replay(plan, costs).makespan_s * (1 - ROUNDING)


@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
def test_an_action_has_the_work_of_all_its_operators(name):
    plan = any_plan(name, 3, 4)
    run = run_of(plan)
    done = executed(run.timeline, plan)
    for rank, row in enumerate(plan):
        for action, span in zip(row, done.select(rank), strict=True):
            phase = f"{action.kind.phase} {action}"
            own = [each for each in run.timeline.select(rank) if each.stream == COMPUTE and each.phase == phase]
            assert len(own) > 1
            assert span.flops == sum(each.flops for each in own) > 0
            assert span.size_bytes == sum(each.size_bytes for each in own)


def test_the_timeline_of_another_plan_or_step_is_refused():
    run = run_of(schedules.gpipe(2, 2))
    assert executed(run.timeline, schedules.gpipe(2, 2), 0) == executed(run.timeline, schedules.gpipe(2, 2))
    for step in (1, -2):
        with pytest.raises(ValueError, match=f"rank 0 did 1 steps of gpipe: got step={step}; give the plan"):
            executed(run.timeline, schedules.gpipe(2, 2), step)
    with pytest.raises(ValueError, match="rank 0 did not do 0I0 of zb-h1"):
        measured_costs(run.timeline, schedules.zb_h1(2, 2))


def test_of_a_plan_without_actions_nothing_was_done():
    timeline, empty = run_of(schedules.gpipe(2, 1)).timeline, Plan("empty", 2, 0, ((), ()), (0, 1))
    assert executed(timeline, empty).spans == () and executed(timeline, empty).num_ranks == 2
    assert measured_costs(timeline, empty, send_s=0.5) == Costs([0.0] * 2, [0.0] * 2, [0.0] * 2, [0.0] * 2, 0.5)


# ---- memory

WIDTH, ROWS = 64, 512
UNIT = WIDTH * ROWS * 4  # bytes of what travels between pieces
MESSAGES = 3  # units, at most, that are on their way at the peak


class Wide(nn.Module):
    """Between F and B it keeps its input (1 unit) and what tanh gave (4), from I to W also what came back (1 + 4)."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(x)))


def peaks(plan: Plan, recompute: bool = False) -> list[float]:
    """Of each rank, in units."""

    def program() -> None:
        pieces = cut(nn.Sequential(*(Wide() for _ in range(plan.num_pieces))), plan.num_pieces)
        pipeline = Pipeline(plan, pieces, mean_square, recompute=recompute)
        for param in pipeline.parameters():
            param.grad = torch.zeros_like(param)
        x = [torch.ones(ROWS, WIDTH)] * plan.num_microbatches
        dist.barrier()
        pipeline.step(x, x)

    run = launch(program, ranks=plan.num_stages, cluster=FREE)
    return [run.memory.peak_bytes(rank) / UNIT for rank in range(plan.num_stages)]


def held_before_backward(plan: Plan, rank: int) -> int:
    """The most units there are when a backward begins: 5 for a micro-batch between F and B or I, 10 between I and W."""
    most = now = 0
    for action in plan.actions[rank]:
        most = max(most, now if action.kind in (Kind.B, Kind.I) else 0)
        now += {Kind.F: 5, Kind.B: -5, Kind.I: 5, Kind.W: -10}[action.kind]
    return most


@pytest.mark.parametrize(("name", "v"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("breadth-first", 2)])
def test_the_peak_of_each_rank_is_the_micro_batches_that_the_replay_holds(name, v):
    """Beside those, what a rank with one micro-batch needs. In the middle of the model: the ends hold other things."""
    plan, one = any_plan(name, 4, 8, v), make("breadth-first", 4, 1, v)
    alone = peaks(one)
    for rank, peak in enumerate(peaks(plan)):
        if rank in (1, 2):
            more = (replay(plan).in_flight[rank] - replay(one).in_flight[rank]) * v
            assert 0 <= peak - alone[rank] - 5 * more <= MESSAGES


@pytest.mark.parametrize("name", ["zb-h1", "zb-h2"])
def test_between_input_and_weight_gradients_the_products_inputs_are_held(name):
    plan, alone = make(name, 4, 8), peaks(schedules.gpipe(4, 1))
    for rank, peak in enumerate(peaks(plan)):
        if rank in (1, 2):
            assert 0 <= peak - alone[rank] - (held_before_backward(plan, rank) - 5) <= MESSAGES


def test_recomputation_holds_the_inputs_of_pieces_alone():
    few, many = peaks(schedules.gpipe(3, 2), True), peaks(schedules.gpipe(3, 8), True)
    more = [after - before for before, after in zip(few, many, strict=True)]
    # The first piece's inputs are there anyway; the loss of the last piece keeps a unit of its own.
    assert more[0] == 0 and 6 <= more[1] <= 6 + MESSAGES and more[2] == pytest.approx(12, abs=0.01)


def test_a_block_of_a_gpt_holds_16_numbers_a_token_and_width_from_i_to_w():
    config = GPTConfig(num_layers=1, d_model=8, num_heads=2, vocab_size=16, max_seq_len=6)
    block, later = GPT(config).blocks[0], WeightGradients()
    x = torch.randn(2, 6, 8, requires_grad=True)
    with later.of_linear_layers():
        y = block(x)
        torch.autograd.backward(get_gradient_edge(y), torch.ones_like(y))
    kept = {tensor.untyped_storage().data_ptr(): tensor.numel() for tensor in later.kept()}
    assert len(later) == 6 and sum(kept.values()) == 16 * 2 * 6 * 8
