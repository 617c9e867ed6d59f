"""Our plans are torch's own schedules, action by action, where torch generates the same thing.

torch makes the order of every rank when a schedule is made, from sizes alone: stages that say their sizes are enough,
and no process is started. Its None entries are idle steps, which a plan does not have.
"""

from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.pipelining import schedules as torch_schedules

from lablib.pipeline import Plan, naive_communication, schedules, with_communication

SIZES = [(1, 2), (2, 4), (3, 6), (4, 8), (4, 12), (6, 12), (8, 32)]


def stage(index: int, p: int, v: int) -> Any:
    """Of a torch pipeline stage, what a schedule asks when it is made."""
    return SimpleNamespace(
        stage_index=index,
        num_stages=p * v,
        group_size=p,
        group_rank=0,
        is_first=index == 0,
        is_last=index == p * v - 1,
        submod=None,
    )


def made_by_torch(name: str, p: int, m: int, v: int) -> Any:
    schedule: Any = getattr(torch_schedules, name)
    if issubclass(schedule, torch_schedules.PipelineScheduleSingle):
        return schedule(stage(0, p, 1), m)
    return schedule([stage(index, p, v) for index in range(v)], m)


def run_by_torch(name: str, rank: int, p: int, m: int) -> list[str]:
    """What a schedule calls on its stage, on one rank, when it runs a step."""
    ran: list[str] = []
    recorder = stage(rank, p, 1)
    recorder.forward_one_chunk = lambda microbatch, *_, **__: ran.append(f"{rank}F{microbatch}")
    recorder.backward_one_chunk = lambda microbatch, **__: ran.append(f"{rank}B{microbatch}")
    recorder.get_fwd_recv_ops = recorder.get_fwd_send_ops = lambda _: []
    recorder.get_bwd_recv_ops = recorder.get_bwd_send_ops = lambda _: []
    recorder.perform_reduce_grad = lambda _: None
    schedule = getattr(torch_schedules, name)(recorder, m)
    schedule._has_backward = True
    schedule._initialize_stage = lambda *_: None  # would shake hands with the neighbours
    schedule._step_microbatches([()] * m, [{}] * m)
    return ran


def actions_of(order: Any, kinds: str = "FBIW") -> list[str]:
    """The actions of a rank, pairs that torch overlaps one after the other, without idle steps and reductions."""
    flat = [each for action in order if action is not None for each in (action.sub_actions or (action,))]
    return [str(action) for action in flat if action.computation_type.value in kinds]


def assert_same(plan: Plan, name: str, v: int = 1) -> None:
    order = made_by_torch(name, plan.num_stages, plan.num_microbatches, v).pipeline_order
    assert len(order) == plan.num_stages
    for rank, actions in enumerate(plan):
        assert list(map(str, actions)) == actions_of(order[rank])


@pytest.mark.parametrize(("p", "m"), [*SIZES, (4, 2)])
def test_gpipe_is_torchs(p, m):
    assert_same(schedules.gpipe(p, m), "ScheduleGPipe")


@pytest.mark.parametrize(("name", "make"), [("ScheduleGPipe", "gpipe"), ("Schedule1F1B", "one_f_one_b")])
@pytest.mark.parametrize(("p", "m"), [*SIZES, (4, 5)])
def test_gpipe_and_1f1b_are_what_torch_runs(name, make, p, m):
    # What Schedule1F1B runs, and not the order that it prints: in torch 2.13 that of the last rank starts at 3F1.
    plan = getattr(schedules, make)(p, m)
    for rank, actions in enumerate(plan):
        assert list(map(str, actions)) == run_by_torch(name, rank, p, m)


@pytest.mark.parametrize(("p", "m"), SIZES)
@pytest.mark.parametrize("v", [2, 3])
def test_interleaved_1f1b_is_torchs(p, m, v):
    assert_same(schedules.interleaved_1f1b(p, m, v), "ScheduleInterleaved1F1B", v)


@pytest.mark.parametrize(("p", "m"), [*SIZES, (4, 3), (4, 7)])
@pytest.mark.parametrize("v", [1, 2, 3])
def test_breadth_first_is_torchs(p, m, v):
    assert_same(schedules.breadth_first(p, m, v), "ScheduleLoopedBFS", v)


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_zb_h1_is_torchs_interleaved_zero_bubble_with_one_stage_a_rank(p, m):
    assert_same(schedules.zb_h1(p, m), "ScheduleInterleavedZeroBubble")


@pytest.mark.parametrize(("p", "m"), [*SIZES, (4, 1), (4, 3), (5, 17)])
def test_zb_v_is_torchs(p, m):
    assert_same(schedules.zb_v(p, m), "ScheduleZBVZeroBubble", 2)


@pytest.mark.parametrize(("p", "m"), [*SIZES, (5, 17), (3, 7)])
def test_dualpipe_v_is_torchs_with_its_pairs_one_after_the_other(p, m):
    assert_same(schedules.dualpipe_v(p, m), "ScheduleDualPipeV", 2)


@pytest.mark.parametrize(
    ("plan", "name", "v"),
    [
        pytest.param(schedules.interleaved_1f1b(3, 6, 2), "ScheduleInterleaved1F1B", 2, id="interleaved"),
        pytest.param(schedules.breadth_first(3, 5, 2), "ScheduleLoopedBFS", 2, id="breadth-first"),
        pytest.param(schedules.zb_v(3, 6), "ScheduleZBVZeroBubble", 2, id="zb-v"),
    ],
)
def test_each_rank_sends_and_receives_what_torch_does(plan, name, v):
    # Which moment is a matter of choice; what, and each once, is not.
    order = made_by_torch(name, plan.num_stages, plan.num_microbatches, v).pipeline_order_with_comms
    for lowered in (with_communication(plan, batched=False), naive_communication(plan)):
        for rank, steps in enumerate(lowered.steps):
            assert sorted(map(str, steps)) == sorted(actions_of(order[rank], "FBIW SEND_F RECV_F SEND_B RECV_B"))
