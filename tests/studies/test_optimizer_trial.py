"""Trials: the same for every optimizer, repeatable, and honest about divergence."""

import math

import pytest
import torch

from lablib.models import GPT, GPTConfig
from lablib.optim.memory import OPTIMIZERS
from lablib.optim.muon import Muon
from lablib.studies.optimizer_trial import CURVATURE_EVERY, Training, held_out_loss, kinds, make_optimizers, train

CONFIG = GPTConfig(1, 8, 2, vocab_size=11, max_seq_len=6)


def text(num_batches: int) -> list:
    drawn = torch.randint(0, 11, (num_batches, 4, 7), generator=torch.Generator().manual_seed(0))
    return [(tokens[:, :-1], tokens[:, 1:]) for tokens in drawn]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_learns_a_batch_the_same_way_each_time(name):
    batch = text(1)[0]
    rate = {"adafactor": 0.2, "lamb": 0.02}.get(name, 0.01)
    runs = [train(Training(GPT(CONFIG), name, rate, 0.1), [batch] * 20, batch, 20, 5) for _ in range(2)]
    assert runs[0] == runs[1], "the same to the bit"
    assert [look.step for look in runs[0]] == [0, 5, 10, 15, 20]
    assert runs[0][-1].loss < runs[0][0].loss - 0.02


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_parameter_has_one_optimizer_and_vectors_do_not_decay(name):
    model = GPT(CONFIG)
    optimizers = make_optimizers(name, model, 1e-3, 0.5)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    held = [param for group in groups for param in group["params"]]
    assert sorted(map(id, held)) == sorted(map(id, model.parameters()))
    for group in groups:
        assert all((group["weight_decay"] == 0.0) is (param.ndim == 1) for param in group["params"])
    of_muon = [p for one in optimizers if isinstance(one, Muon) for group in one.param_groups for p in group["params"]]
    assert len(of_muon) == (6 if name == "muon" else 0), "the matrices of the one block"


def test_the_schedule_is_followed():
    training = Training(GPT(CONFIG), "muon", 0.5, 0.0, lambda step: 1 / (1 + step))
    for number, batch in enumerate(text(3)):
        assert {group["lr"] for one in training.optimizers for group in one.param_groups} == {0.5 / (1 + number)}
        training.step(*batch)


def test_sophia_estimates_curvature_now_and_then(monkeypatch):
    training = Training(GPT(CONFIG), "sophia", 1e-3, 0.0)
    (optimizer,) = training.optimizers
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(optimizer, "update_curvature", lambda tokens: seen.append((training.step_number, tokens)))
    for batch in text(1) * (CURVATURE_EVERY + 1):
        training.step(*batch)
    assert seen == [(0, 24), (CURVATURE_EVERY, 24)]


def test_gradients_are_clipped_to_1():
    training = Training(GPT(CONFIG), "adamw", 1e-3, 0.0)
    with torch.no_grad():
        training.model.get_parameter("final_norm.weight").mul_(1e3)
    training.step(*text(1)[0])
    norms = [param.grad.norm() for param in training.model.parameters() if param.grad is not None]
    assert torch.stack(norms).norm() == pytest.approx(1.0, abs=1e-4)


def test_divergence_ends_a_run_with_an_infinite_loss():
    training = Training(GPT(CONFIG), "adamw", 1e-3, 0.0)
    with torch.no_grad():
        training.model.get_parameter("final_norm.weight").fill_(math.nan)
    looks = train(training, text(5), text(1)[0], 5, 1)
    assert (looks[-1].step, looks[-1].loss, len(looks)) == (1, math.inf, 2)
    assert held_out_loss(training.model, text(1)[0]) == math.inf


def test_an_unknown_optimizer():
    assert set(kinds(64)) == set(OPTIMIZERS)
    with pytest.raises(ValueError, match="adamw"):
        make_optimizers("adamv", GPT(CONFIG), 1e-3, 0.0)
