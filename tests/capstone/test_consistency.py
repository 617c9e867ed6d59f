"""Findings: a finished report has none; each change of one number is found, with rule, value and remedy."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lablib.capstone import Report, findings

Change = Callable[[Report], Any]


def test_a_finished_report_has_no_findings(report: Report):
    assert findings(report) == []


def run(report: Report, name: str, **fields: Any) -> Report:
    return replace(report, **{name: replace(getattr(report, name), **fields)})


CASES: dict[str, tuple[Change, str, str]] = {
    "a reason of a word": (
        lambda r: replace(r, reasons={**r.reasons, "axes": "why"}),
        "missing",
        "4 words or more: got fewer for axes",
    ),
    "no conclusion": (lambda r: replace(r, conclusion=" "), "missing", "must have a conclusion: got none"),
    "no lock": (lambda r: replace(r, lock=None), "missing", "must be locked before the runs"),
    "no small run": (lambda r: replace(r, small_run=None), "missing", "must have the small run: got none"),
    "an error left out": (
        lambda r: replace(r, reconciled={k: v for k, v in r.reconciled.items() if k != "loss"}),
        "missing",
        "got nothing for loss",
    ),
    "axes": (
        lambda r: replace(r, large=replace(r.large, parallel=replace(r.large.parallel, tensor=3))),
        "consistency",
        "product 4, the ranks: got data 1",
    ),
    "gpu hours": (lambda r: run(r, "predicted", gpu_hours=7.0), "consistency", "GPUs x steps x predicted.step_s"),
    "a prediction after the lock": (
        lambda r: run(r, "predicted", small_loss=2.9),
        "consistency",
        "must be as they were locked",
    ),
    "a choice after the lock": (
        lambda r: replace(r, small=replace(r.small, num_steps=11)),
        "consistency",
        "as many as the steps, 11: got 10",
    ),
    "a run before the lock": (
        lambda r: run(r, "large_run", at="2026-01-31T09:00:00+01:00"),
        "consistency",
        "large_run must begin after the lock: got 2026-01-31T09",
    ),
    "another time zone": (
        lambda r: run(r, "small_run", at="2026-01-31T08:59:59+00:00"),
        "consistency",
        "small_run must begin after the lock",
    ),
    "no time": (lambda r: run(r, "small_run", at="yesterday"), "consistency", "times must be as 2026"),
    "a run of other predictions": (lambda r: run(r, "small_run", sha256="0"), "consistency", "got another digest"),
    "a curve that is too short": (
        lambda r: run(r, "small_run", losses=r.small_run.losses[:-1]),  # pyright: ignore
        "consistency",
        "as many as the steps, 10: got 9",
    ),
    "a curve that begins trained": (
        lambda r: run(r, "small_run", losses=(2.0, *r.small_run.losses[1:])),  # pyright: ignore
        "consistency",
        "got 2.000, and ln 256 is 5.545",
    ),
    "a simulated number": (
        lambda r: run(r, "large_run", step_s=r.large_run.step_s * 1.002),  # pyright: ignore
        "consistency",
        "large_run.step_s must equal the simulated one",
    ),
    "an error": (
        lambda r: replace(r, reconciled={**r.reconciled, "step_s": replace(r.reconciled["step_s"], error=0.2)}),
        "consistency",
        "reconciled.step_s.error must be predicted / measured - 1 = 0.0500",
    ),
    "an alternative's step": (
        lambda r: replace(r, alternatives=(replace(r.alternatives[0], step_s=9.0),)),
        "consistency",
        "step_s of alternative 1 must be the planner's: got 9",
    ),
    "an alternative that is the plan": (
        lambda r: replace(r, alternatives=(replace(r.alternatives[0], changes=("num_steps=1000",)),)),
        "consistency",
        "alternative 1 must differ from the plan",
    ),
    "an alternative that is impossible": (
        lambda r: replace(r, alternatives=(replace(r.alternatives[0], changes=("parallel.tensor=3",)),)),
        "consistency",
        "alternative 1: parallel must be axes with the product 4",
    ),
    "budget": (
        lambda r: replace(r, brief=replace(r.brief, gpu_hours=1e-4)),
        "brief",
        "must take at most 0.0001 GPU hours: got 0",
    ),
    "deadline": (lambda r: replace(r, brief=replace(r.brief, days=1e-6)), "brief", "must end in 1e-06 days"),
    "goal": (lambda r: replace(r, brief=replace(r.brief, goal_loss=1.9)), "brief", "must be at most 1.9: got"),
    "sizes": (
        lambda r: replace(r, brief=replace(r.brief, max_parameters=1e9, min_parameters=5e8)),
        "brief",
        "0.5 to 1 billion parameters: got 0.00",
    ),
    "sequence": (lambda r: replace(r, brief=replace(r.brief, seq_len=64)), "brief", "seq_len must be 64: got 128"),
    "small machine": (
        lambda r: replace(r, brief=replace(r.brief, small=replace(r.brief.small, ranks=1, steps=5))),
        "brief",
        "small_ranks must be at most 1: got 2",
    ),
    "small memory": (
        lambda r: replace(r, brief=replace(r.brief, small=replace(r.brief.small, memory_bytes=10.0))),
        "brief",
        "at most 10 B per rank: got 748 kB",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_change_is_found(report: Report, name: str):
    change, kind, text = CASES[name]
    found = findings(change(report))
    assert any(each.kind == kind and text in each.text for each in found), [str(each) for each in found]
    assert all(" must " in each.text or "alternative" in each.text for each in found)  # each has a rule


def test_without_simulation_only_the_simulated_numbers_are_taken_as_they_are(report: Report):
    other = run(report, "large_run", step_s=report.large_run.step_s * 1.002)  # pyright: ignore
    assert findings(other, simulate=False) == [] and findings(other) != []
