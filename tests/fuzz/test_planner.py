"""Any value of any type into the planner and the pipelines: an answer, or one sentence of ours."""

import dataclasses
import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lablib import Timeline, pipeline
from lablib.pipeline import Costs, replay, schedules, validate
from lablib.plan import Derating, Parallel, Stack, predict, predict_many, search
from lablib.plan.gradient_compression import GradientCompression, find_compression
from lablib.plan.optimizers import Optimizer, find_optimizer
from lablib.plan.recompute import recompute_policy
from lablib.plan.stack import find_stack
from tests.fuzz.anything import anything, like
from tests.fuzz.held import outcome
from tests.fuzz.samples import SAMPLES

EXAMPLES = settings().max_examples // 5  # of each of a thousand calls: 8, and 20 new ones with --all


def as_run(plan: pipeline.Plan) -> Timeline:
    """The timeline of a run of the executor with this plan: each action under its name there."""
    spans = replay(plan).timeline.spans
    named = (dataclasses.replace(each, phase=f"{each.phase} {each.name}") for each in spans)
    return Timeline(tuple(named), plan.num_stages)


# Small enough that an answer takes no time.
PLAN = {"model": "gpt2", "cluster": "dgx-a100"}
SEARCH = PLAN | {"batch": 8, "nodes": 1, "tensor": 1, "recompute": "none", "schedule": "1f1b", "context": 1}
BASES: dict[Callable[..., Any], dict[str, Any]] = {
    predict: PLAN,
    predict_many: PLAN,
    search: SEARCH,
    Parallel: {},
    Derating: {},
    Stack: {"name": "mine"},
    Optimizer: {"name": "mine", "source": ""},
    GradientCompression: {"name": "mine", "source": ""},
    Costs: {},
    find_stack: {"name": "torch"},
    find_optimizer: {"name": "adamw"},
    find_compression: {"name": "none"},
    recompute_policy: {"text": "none"},
    schedules.make: {"name": "1f1b", "num_stages": 2, "num_microbatches": 4},
    replay: {"plan": schedules.one_f_one_b(2, 4)},
    pipeline.steady_state: {"plan_of": lambda m: schedules.one_f_one_b(2, m), "num_microbatches": 40},
    validate: {"plan": schedules.one_f_one_b(2, 4)},
    pipeline.check: {"plan": schedules.one_f_one_b(2, 4)},
    pipeline.peak_in_flight: {"plan": schedules.one_f_one_b(2, 4)},
    pipeline.naive_communication: {"plan": schedules.one_f_one_b(2, 4)},
    pipeline.with_communication: {"plan": schedules.one_f_one_b(2, 4)},
    pipeline.executed: {"timeline": as_run(schedules.one_f_one_b(2, 4)), "plan": schedules.one_f_one_b(2, 4)},
    pipeline.measured_costs: {"timeline": as_run(schedules.zb_h1(2, 4)), "plan": schedules.zb_h1(2, 4), "send_s": 0.5},
    pipeline.critical_path: {"replay": replay(schedules.one_f_one_b(2, 4))},
    pipeline.simulate: {"plan": schedules.one_f_one_b(2, 4), "costs": Costs(), "max_in_flight": [2.0, 1.0]},
    pipeline.read_plan: {"text": "rank 0: F0 B0"},
    pipeline.leader_board: {"plans": {"mine": "rank 0: F0 B0"}, "costs": pipeline.Costs(), "max_in_flight": 2.0},
    pipeline.equal_memory: {"num_stages": 2, "num_microbatches": 4, "memory": 2.0},
    pipeline.pairs_bubble_s: {"num_stages": 2, "forward_s": 1.0, "input_s": 1.0, "weight_s": 1.0, "pair_s": 3.0},
    pipeline.pairs_of: {"plan": schedules.dualpipe_v(2, 4)},
    pipeline.replay_pairs: {"plan": schedules.dualpipe_v(2, 4), "costs": Costs(), "pair_s": 3.0},
    pipeline.balanced_cut: {"costs": [1.0, 2.0], "num_pieces": 2},
    pipeline.Plan: {"name": "mine", "num_stages": 1, "num_microbatches": 1, "actions": (), "rank_of": (0,)},
    pipeline.Plan.parse: {"name": "mine", "lines": ["0F0 0B0"]},
    pipeline.Action: {"stage": 0, "kind": pipeline.Kind.F, "microbatch": 0},
    pipeline.Action.parse: {"text": "0F0"},
} | {
    each.plan: {"num_stages": 2, "num_microbatches": 4}
    for each in schedules.SCHEDULES.values()
    if not each.takes_chunks
}
BASES |= {
    each.plan: {"num_stages": 2, "num_microbatches": 4, "num_chunks": 2}
    for each in schedules.SCHEDULES.values()
    if each.takes_chunks
}
CASES = [(call, name) for call in BASES for name in inspect.signature(call).parameters if name != "others"]


def called(call: Callable[..., Any]) -> str:
    return getattr(call, "__qualname__", str(call))


@pytest.mark.parametrize(("call", "name"), CASES, ids=[f"{called(call)}-{name}" for call, name in CASES])
def test_any_value_of_a_parameter_is_answered_or_explained(call, name, counts: Counter[str]):
    hint = get_type_hints(call).get(name, Any) if not inspect.isclass(call) else get_type_hints(call)[name]

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        phases=[Phase.generate],
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=[*HealthCheck],  # pyright: ignore[reportArgumentType]
    )
    @given(st.one_of(anything(), like(hint, SAMPLES)))
    def every_value(value: Any) -> None:
        outcome(counts, call, **(BASES[call] | {name: value}))

    every_value()


@pytest.mark.parametrize("call", BASES, ids=called)
def test_the_calls_that_are_changed_are_answered(call):
    call(**BASES[call])


@pytest.mark.parametrize(
    ("call", "changes", "said"),
    [
        (Costs, {"overlap": "8"}, "overlap must be True or False: got '8'"),
        (Costs, {"forward_s": "8"}, "forward_s must be a finite number, 0 or more, or a list"),
        (Costs, {"send_s": {}}, "send_s must be a finite number, 0 or more, or a list"),
        (replay, {"plan": {}}, r"plan must be a Plan: got \{\}"),
        (replay, {"costs": "8"}, "costs must be a Costs or None: got '8'"),
        (schedules.make, {"name": []}, "unknown schedule"),
        (schedules.make, {"num_stages": 10**9, "num_microbatches": 10**9}, "must be 20,000,000 or less"),
        (pipeline.Action.parse, {"text": "9" * 40 + "F0"}, "an action is written as"),
        (predict, {"batch": 2**63}, r"batch must be a number below 2\*\*63"),
        (predict, {"batch": True}, "batch must be a whole number, 1 or more: got True"),
        (predict, {"batch": float("nan")}, "batch must be a whole number, 1 or more: got nan"),
        (predict, {"model": {}}, "model must be a name, a Transformer or a GPTConfig"),
        (predict, {"precision": []}, "precision must be one of"),
        (predict_many, {"batch": [2**70, 1]}, "batch must be 1,000,000,000 or less"),
        (predict_many, {"schedule": [["1f1b"]]}, "a choice of each plan is a name or a number"),
        (search, {"tensor": [[1]]}, "tensor must be whole numbers, 1 or more"),
        (search, {"batch": 2**63}, r"batch must be below 2\*\*63: got .*; try batch=8"),
        (Derating, {"memory_share": 0.0}, "memory_share must be a number, above 0 and at most 1: got 0.0"),
        (Stack, {"attention": "flahs"}, "attention must be one of flash, unfused: got 'flahs'; did you mean 'flash'"),
    ],
)
def test_what_was_accepted_or_broke_inside_is_one_sentence(call, changes, said):
    with pytest.raises((ValueError, TypeError), match=said):
        call(**(BASES[call] | changes))
