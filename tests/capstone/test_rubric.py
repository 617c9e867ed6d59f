"""The rubric: several plans of each brief get all points of the program; each weakness costs its own points."""

from collections.abc import Callable
from dataclasses import replace
from math import floor
from typing import Any

import pytest

from lablib.capstone import Report, changed, find_brief, findings, machine_points, rubric, simulate_step
from lablib.capstone.large_run import StepCost
from lablib.train.config import TrainConfig
from tests.capstone.finished import finished

_VOCABULARY = ("model.vocab_size=50304", "precision.products=bfloat16")
SIZES = {
    "one-billion": ("num_layers=24", "d_model=2048", "num_heads=16", "max_seq_len=2048", 512),
    "thirteen-billion": ("num_layers=40", "d_model=5120", "num_heads=40", "max_seq_len=2048", 512),
    "long-context": ("num_layers=32", "d_model=2560", "num_heads=32", "max_seq_len=32768", 64),
}
# Different axes, ZeRO stages, precisions, recomputation and schedules.
PLANS = {
    "one-billion": [
        ("parallel.zero_stage=1", "data.micro_batch=4"),
        ("parallel.zero_stage=2", "precision.master=true", "data.micro_batch=4"),
        ("parallel.zero_stage=3", "memory.recompute=full", "data.micro_batch=8"),
        ("parallel.tensor=2", "data.micro_batch=4", "model.num_layers=20"),
    ],
    "thirteen-billion": [
        ("parallel.zero_stage=3", "memory.recompute=full", "data.micro_batch=2"),
        ("parallel.tensor=8",),
        ("parallel.zero_stage=2", "precision.master=true", "memory.recompute=full", "data.micro_batch=4"),
    ],
    "long-context": [
        ("parallel.zero_stage=3", "memory.recompute=full"),
        ("parallel.zero_stage=2", "precision.master=true", "memory.recompute=full"),
        ("parallel.tensor=8",),
    ],
}


def points_of(report: Report) -> dict[str, float | None]:
    return {each.name: each.points for each in rubric(report, findings(report))}


def planned(name: str, changes: tuple[str, ...]) -> tuple[TrainConfig, StepCost]:
    """The plan with as many steps as 95% of budget and deadline allow, and the cost of a step."""
    brief = find_brief(name)
    *sizes, batch = SIZES[name]
    fields = [*_VOCABULARY, *(f"model.{each}" for each in sizes), f"data.seq_len={brief.seq_len}"]
    config = changed(TrainConfig(), [*fields, f"data.batch_size={batch}", "data.micro_batch=1", *changes])
    cost = simulate_step(config, brief.cluster, brief.gpus)
    hours = 0.95 * min(brief.gpu_hours, brief.days * 24 * brief.gpus)
    return replace(config, num_steps=floor(hours * 3600 / brief.gpus / cost.step_s)), cost


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        pytest.param(name, each, marks=() if name == "one-billion" and number > 1 else pytest.mark.thorough)
        for name, plans in PLANS.items()
        for number, each in enumerate(plans)
    ],
)
def test_several_plans_of_a_brief_get_all_points_that_a_program_gives(name: str, changes: tuple[str, ...]):
    brief = find_brief(name)
    config, cost = planned(name, changes)
    others = (("memory.recompute=none",) if config.memory.recompute == "full" else ("memory.recompute=full",),)
    others += (("parallel.schedule=gpipe", "data.micro_batch=1"),)
    report = finished(brief, config, others, cost=cost)
    assert [str(each) for each in findings(report)] == []
    assert machine_points(rubric(report, [])) == (60.0, 60)


def test_a_finished_report_gets_all_points(report: Report):
    assert machine_points(rubric(report, findings(report))) == (60.0, 60)
    names = [each.name for each in rubric(report, []) if each.points is None]
    assert names == ["reasons", "explanations", "conclusion"]


def changed_fields(report: Report, name: str, **fields: Any) -> Report:
    return replace(report, **{name: replace(getattr(report, name), **fields)})


WEAK: dict[str, tuple[Callable[[Report], Report], dict[str, float]]] = {
    "no conclusion": (lambda r: replace(r, conclusion=""), {"consistent": 7.5}),
    "one alternative": (lambda r: replace(r, alternatives=r.alternatives[:1]), {"alternatives": 2.5}),
    "the same alternative twice": (
        lambda r: replace(r, alternatives=(r.alternatives[0], r.alternatives[0])),
        {"alternatives": 2.5},
    ),
    "no alternative": (lambda r: replace(r, alternatives=()), {"alternatives": 0.0}),
    "over the budget": (lambda r: changed_fields(r, "brief", gpu_hours=1e-4), {"within": 0.0}),
    "just over the goal": (lambda r: changed_fields(r, "brief", goal_loss=r.brief.loss(r.large) - 0.04), {"goal": 5.0}),
    "far over the goal": (lambda r: changed_fields(r, "brief", goal_loss=1.9), {"goal": 0.0}),
    "a step of 1.4 times": (
        lambda r: changed_fields(r, "predicted", step_s=1.4 * r.large_run.step_s),  # pyright: ignore
        {"predictions": 12.5, "reconciled": 0.0},
    ),
    "a step of half": (
        lambda r: changed_fields(r, "predicted", step_s=0.5 * r.large_run.step_s),  # pyright: ignore
        {"predictions": 10.0, "reconciled": 0.0},
    ),
    "no runs": (lambda r: replace(r, small_run=None, large_run=None), {"within": 0.0, "reconciled": 0.0}),
}


@pytest.mark.parametrize("name", WEAK)
def test_a_weakness_costs_its_points(report: Report, name: str):
    change, wanted = WEAK[name]
    points = points_of(change(report))
    assert {each: points[each] for each in wanted} == wanted


def test_a_bad_prediction_that_is_explained_is_reconciled(report: Report):
    bad = changed_fields(report, "predicted", step_s=3 * report.large_run.step_s)  # pyright: ignore
    row = replace(bad.reconciled["step_s"], explanation="the all-reduces of the tensor axis were left out of my sum")
    assert points_of(replace(bad, reconciled={**bad.reconciled, "step_s": row}))["reconciled"] == 5.0
    assert points_of(bad)["reconciled"] == 0.0
