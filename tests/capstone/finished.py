"""A small brief, and finished reports."""

from dataclasses import replace
from math import log

from lablib import capstone
from lablib.capstone.large_run import StepCost
from lablib.capstone.report import CHOICES
from lablib.train.config import DataConfig, ModelConfig, TrainConfig

LOCKED, BEGUN = "2026-01-31T10:00:00+01:00", "2026-01-31T10:05:00+01:00"
BRIEF_TOML = """
name = "tiny"
title = "A tiny model"
text = "Train a model of a million parameters on four GPUs."
cluster = "dgx-h100"
gpus = 4
gpu_hours = 1.0
days = 1
corpus_tokens = 1e8
min_parameters = 1e6
max_parameters = 3e6
vocab_size = 512
seq_len = 128
goal_loss = 20.0
[small]
ranks = 2
memory_bytes = 100e6
steps = 20
"""
BRIEF = capstone.Brief(
    name="tiny",
    title="A tiny model",
    text="Train a model of a million parameters on four GPUs.",
    cluster="dgx-h100",
    gpus=4,
    gpu_hours=1.0,
    days=1.0,
    corpus_tokens=1e8,
    min_parameters=1e6,
    max_parameters=3e6,
    vocab_size=512,
    seq_len=128,
    goal_loss=20.0,
    small=capstone.SmallMachine(2, 100e6, 20),
)
LARGE = TrainConfig(
    model=ModelConfig(num_layers=2, d_model=192, num_heads=4, vocab_size=512),
    data=DataConfig(batch_size=8, micro_batch=1),
    num_steps=1000,
)
SMALL = TrainConfig(
    model=ModelConfig(num_layers=1, d_model=32, num_heads=2), data=DataConfig(batch_size=4, seq_len=32), num_steps=10
)


def finished(
    brief: capstone.Brief,
    large: TrainConfig,
    changes: tuple[tuple[str, ...], ...],
    factor: float = 1.05,
    cost: StepCost | None = None,
) -> capstone.Report:
    """A report whose predictions are `factor` times the simulation, and whose small run is made up.

    `cost`: of the large step, where it has been simulated.
    """
    cost = cost or capstone.simulate_step(large, brief.cluster, brief.gpus)
    small_bytes = capstone.simulate_step(SMALL, "laptop", 2).memory_bytes
    losses = tuple(log(256) - 0.2 * step for step in range(SMALL.num_steps))
    report = capstone.Report(
        title="A report",
        author="Ada",
        brief=brief,
        large=large,
        small=SMALL,
        small_ranks=2,
        reasons=dict.fromkeys(CHOICES, "a reason of five words"),
        conclusion="The plan is good.",
    )
    step_s = cost.step_s * factor
    said = capstone.Predicted(
        step_s=step_s,
        memory_bytes=cost.memory_bytes / factor,
        gpu_hours=capstone.gpu_hours(report, step_s),
        loss=brief.loss(large),
        small_loss=losses[-1] + 0.1,
        small_step_s=0.012,
        small_memory_bytes=small_bytes * factor,
        method="made for a test",
    )
    report = capstone.locked(replace(report, predicted=said), LOCKED)
    assert report.lock is not None
    digest = report.lock.sha256
    plans = [(each, capstone.plan_step(capstone.changed(large, each), brief.cluster, brief.gpus)) for each in changes]
    alternatives = tuple(capstone.Alternative(c, p.step_time_s, p.peak_memory_bytes, "it is slower") for c, p in plans)
    small = capstone.SmallRun(BEGUN, digest, "gloo", 0.01, small_bytes, losses)
    run = capstone.LargeRun(BEGUN, digest, cost.step_s, cost.memory_bytes)
    return capstone.with_runs(replace(report, alternatives=alternatives), small, run)
