"""Parts that a configuration makes: schedules, loss scalers, optimizers, and a model of a learner's own."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from lablib import launch
from lablib.data import Corpus, ResumableBatches
from lablib.precision.loss_scaling import deepspeed_rule
from lablib.train import build, deepspeed_tables, make_model, make_scaler, make_schedule, parse_config, with_overrides

SMALL = ["model.num_layers=2", "model.d_model=16", "model.max_seq_len=16", "data.seq_len=16", "data.batch_size=4"]


@given(num_steps=st.integers(4, 60), num_warmup=st.integers(0, 3), final=st.sampled_from([0.0, 0.1]), data=st.data())
def test_schedules_rise_hold_and_fall_as_their_formulas(num_steps: int, num_warmup: int, final: float, data: Any):
    name = data.draw(st.sampled_from(["constant", "linear", "cosine", "wsd"]))
    optimizer: dict[str, Any] = {"schedule": name, "num_warmup": num_warmup, "final": final}
    if name == "wsd":
        optimizer["num_decay"] = data.draw(st.integers(1, num_steps - num_warmup))
    schedule = make_schedule(parse_config({"num_steps": num_steps, "optimizer": optimizer})) or (lambda step: 1.0)
    for step in range(num_warmup):
        assert schedule(step) == pytest.approx((step + 1) / (num_warmup + 1))
    assert schedule(num_warmup) == pytest.approx(1.0)
    half = (num_warmup + num_steps) / 2
    if name == "constant":
        assert schedule(10 * num_steps) == 1.0
    else:
        assert schedule(num_steps) == pytest.approx(final)
    if name in ("linear", "cosine") and half.is_integer():
        assert schedule(int(half)) == pytest.approx((1 + final) / 2)


@given(
    power=st.integers(0, 32), window=st.integers(1, 3000), hysteresis=st.integers(1, 5), least=st.sampled_from([1, 0.5])
)
def test_deepspeeds_fields_are_deepspeeds_rule(power: int, window: int, hysteresis: int, least: float):
    fp16 = {"initial_scale_power": power, "loss_scale_window": window, "hysteresis": hysteresis}
    fp16 |= {"enabled": True, "min_loss_scale": least, "loss_scale": 0}
    scaler = make_scaler(parse_config(deepspeed_tables({"train_batch_size": 1, "fp16": fp16}, {}).record).precision)
    assert scaler is not None and scaler.rule == deepspeed_rule(power, window, hysteresis, float(least))


def test_a_loss_scale_in_the_file_never_changes():
    scaler = make_scaler(parse_config({"precision": {"products": "float16", "loss_scale": 128.0}}).precision)
    assert scaler is not None and scaler.loss_scale == 128
    for overflow in (True, True, False):
        scaler.state = scaler.rule.after(scaler.state, overflow)
    assert scaler.loss_scale == 128
    assert make_scaler(parse_config({}).precision) is None


def losses(overrides: list[str], model: nn.Module | None = None) -> list[float]:
    config = parse_config(with_overrides({"precision": {"parameters": "float64"}}, [*SMALL, *overrides]))
    tokens = torch.arange(2000).remainder(5).to(torch.uint8)
    found: list[Any] = []
    loader = ResumableBatches(Corpus("made up", tokens, 2000, "0" * 64, "a test"), 4, 16)
    build(config, model=model, loader=loader, on_step=[found.append]).train(3)
    return [one["loss"] for one in found]


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # of torch, on its import of the compiler
@pytest.mark.parametrize(
    "more", [["optimizer.fused=true"], ["memory.compile=true"], ["memory.recompute=selective"]], ids=str
)
def test_faster_and_smaller_ways_have_the_same_losses(more: list[str]):
    plain = launch(losses, ["optimizer.lr=0.01"], ranks=1, trace=False).values[0]
    assert launch(losses, ["optimizer.lr=0.01", *more], ranks=1, trace=False).values[0] == pytest.approx(
        plain, rel=1e-9
    )


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd", "lion", "lamb"])
def test_every_optimizer_lowers_the_loss(name: str):
    lr = {"sgd": 0.5, "lion": 3e-3}.get(name, 0.02)
    found = losses([f"optimizer.name={name}", f"optimizer.lr={lr}"])
    assert found[0] == pytest.approx(math.log(256), abs=0.2) and found[-1] < found[0] - 0.1


class Bigram(nn.Module):
    """A learner's model: the next byte from this one."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Embedding(256, 256)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return self.scores(tokens_BT)


def test_a_model_of_a_learner_trains_unless_it_has_to_be_cut():
    found = losses(["optimizer.lr=0.5"], Bigram())
    assert found[-1] < found[0] - 1
    with pytest.raises(ValueError, match="memory.recompute must be none for a model without blocks: got full"):
        losses(["memory.recompute=full"], Bigram())
    assert losses(["memory.recompute=full"], make_model(parse_config(with_overrides({}, SMALL)))) != found
