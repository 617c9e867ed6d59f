"""The small run with the learner's parts: the same losses as with the library's, since the parts compute the same."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from lablib.batches.schedules import warmup_stable_decay
from lablib.capstone import Parts, locked, now, train_small
from lablib.capstone.small_run import check_parts
from lablib.course.answers import answer_of
from lablib.parallel import ring_all_reduce
from lablib.train.config import DataConfig, MemoryConfig, ModelConfig, OptimizerConfig, ParallelConfig, TrainConfig
from tests.course.test_answers import solved

SMALL = TrainConfig(
    model=ModelConfig(num_layers=1, d_model=32, num_heads=2),
    data=DataConfig(batch_size=4, seq_len=32),
    optimizer=OptimizerConfig(lr=1e-2, schedule="wsd", num_warmup=2, num_decay=4, max_norm=1.0),
    num_steps=8,
)


def wsd(step, num_steps, num_warmup, num_decay):
    return warmup_stable_decay(step, num_steps=num_steps, num_warmup=num_warmup, num_decay=num_decay)


def adamw_step(w, g, state, lr, betas, eps, decay):
    state["t"] += 1
    for name, beta, value in (("m", betas[0], g), ("v", betas[1], g * g)):
        state[name] = beta * state[name] + (1 - beta) * value
    m, v = (state[name] / (1 - beta ** state["t"]) for name, beta in zip("mv", betas, strict=True))
    w.sub_(lr * decay * w + lr * m / (v.sqrt() + eps))


def average_gradients(module):
    for param in module.parameters():
        param.grad.div_(dist.get_world_size())
        dist.all_reduce(param.grad)


@pytest.fixture(scope="module")
def prepared(report):
    return locked(replace(report, small=SMALL), now())


@pytest.fixture(scope="module")
def plain(prepared):
    return train_small(prepared, "sim")


@pytest.mark.parametrize(
    "parts",
    [
        *(pytest.param(one, marks=pytest.mark.thorough) for one in (Parts(wsd), Parts(optimizer_step=adamw_step))),
        Parts(average_gradients=average_gradients),
        Parts(wsd, adamw_step, ring_all_reduce),
    ],
    ids=lambda parts: "-".join(parts.names),
)
def test_the_learners_parts_run_and_give_the_librarys_losses(prepared, plain, parts: Parts):
    run = train_small(prepared, "sim", parts)
    assert run.own_code == parts.names and plain.own_code == ()
    assert run.losses == pytest.approx(plain.losses, abs=2e-4)  # float32, in another order


def test_gloo_runs_an_answer_of_a_notebook_with_the_losses_of_the_simulator(prepared, plain, tmp_path: Path):
    solved(tmp_path, ["08"])
    answer = answer_of(tmp_path / "08_collectives.ipynb", "ring_all_reduce")
    run = train_small(prepared, "gloo", Parts(all_reduce=answer))
    assert (run.backend, run.own_code) == ("gloo", ("all_reduce",))
    assert run.losses == pytest.approx(plain.losses, abs=2e-4)
    assert run.memory_bytes == plain.memory_bytes


def test_a_wrong_part_is_seen_in_the_losses(prepared, plain):
    def no_average(module):
        for param in module.parameters():
            param.grad.mul_(dist.get_rank())

    run = train_small(prepared, "sim", Parts(average_gradients=no_average))
    assert max(abs(a - b) for a, b in zip(run.losses, plain.losses, strict=True)) > 1e-2


def test_a_run_has_a_loss_for_each_step_and_the_lock(prepared, plain):
    assert len(plain.losses) == 8 and plain.losses[0] == pytest.approx(math.log(256), abs=0.5)
    assert plain.sha256 == prepared.lock.sha256 and plain.at >= prepared.lock.at
    assert plain.memory_bytes > 4 * 4 * sum(p.numel() for p in [torch.zeros(256, 32)])


def test_parts_that_a_configuration_cannot_take_are_refused():
    with pytest.raises(ValueError, match='schedule must be wsd .* got constant; try small.optimizer.schedule="wsd"'):
        check_parts(TrainConfig(), Parts(schedule=wsd))
    with pytest.raises(ValueError, match="name must be adamw .* got sgd"):
        check_parts(TrainConfig(optimizer=OptimizerConfig("sgd")), Parts(optimizer_step=adamw_step))
    with pytest.raises(ValueError, match="one of all_reduce and average_gradients: got both"):
        check_parts(TrainConfig(), Parts(all_reduce=ring_all_reduce, average_gradients=average_gradients))
    for other in (TrainConfig(parallel=ParallelConfig(zero_stage=2)), TrainConfig(memory=MemoryConfig("full"))):
        with pytest.raises(ValueError, match="needs plain data parallelism"):
            check_parts(other, Parts(all_reduce=ring_all_reduce))
