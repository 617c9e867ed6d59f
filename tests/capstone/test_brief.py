"""Briefs: those of the course are possible, others are read with their rules."""

from pathlib import Path

import pytest
import torch

from lablib.capstone import brief_names, find_brief
from lablib.capstone.brief import as_transformer, num_parameters, tokens_of
from lablib.models.llama import model_of
from lablib.models.sizes import GPTConfig
from lablib.models.sizes import num_parameters as parameters_of
from lablib.train.config import DataConfig, ModelConfig, TrainConfig


def test_the_course_has_briefs_of_different_character():
    briefs = [find_brief(name) for name in brief_names()]
    assert len(briefs) >= 3
    assert len({(each.cluster, each.seq_len) for each in briefs}) >= 3
    assert {each.measure for each in briefs} == {"loss", "gpu_hours"}


@pytest.mark.parametrize("name", brief_names())
def test_a_goal_is_within_the_budget_at_a_third_of_the_peak_and_not_at_a_tenth(name: str):
    """6 N D FLOPs for the smallest allowed model, on the GPU hours of budget and deadline."""
    brief = find_brief(name)
    peak = brief.machine.device.peak("bfloat16")
    hours = min(brief.gpu_hours, brief.days * 24 * brief.gpus)

    def loss(share: float) -> float:
        from lablib.models.scaling_law import REPLICATION

        tokens = share * peak * hours * 3600 / (6 * brief.min_parameters)
        return REPLICATION.loss(brief.min_parameters, tokens, brief.corpus_tokens)

    assert loss(1 / 3) < brief.goal_loss < loss(0.05)


def test_parameters_are_those_of_the_plain_gpt():
    model = ModelConfig(num_layers=3, d_model=96, num_heads=4, vocab_size=500, max_seq_len=64, tied_head=False)
    assert num_parameters(model) == parameters_of(GPTConfig(3, 96, 4, 500, 64, tied_head=False))
    mixture = ModelConfig(num_layers=2, d_model=64, num_heads=4, num_experts=4, num_active=2)
    experts = as_transformer(mixture).experts
    assert experts is not None and (experts.num_experts, experts.num_active) == (4, 2)


@pytest.mark.parametrize("heads", [{}, {"num_kv_heads": 2}, {"num_kv_heads": 1, "head_dim": 6}, {"tied_head": True}])
def test_the_planners_llama_has_the_parameters_of_the_trained_one(heads):
    model = ModelConfig("llama", 2, 64, 4, vocab_size=300, max_seq_len=32, **heads)
    with torch.device("meta"):
        trained = model_of(model.sizes)
    assert num_parameters(model) == sum(param.numel() for param in trained.parameters())


def test_tokens_and_loss_of_a_run_by_hand():
    config = TrainConfig(data=DataConfig(batch_size=4, seq_len=128), num_steps=50)
    assert tokens_of(config) == 25_600
    brief = find_brief("one-billion")
    more = TrainConfig(data=DataConfig(batch_size=4, seq_len=128), num_steps=500)
    assert brief.loss(more) < brief.loss(config)


def test_sizes_beyond_the_brief_are_named_with_a_remedy():
    broken = find_brief("one-billion").broken_sizes(ModelConfig())
    assert "1 to 2 billion parameters: got 0.00012" in broken[0] and "try 50304" in broken[1]


def test_a_brief_of_ones_own_is_read_next_to_its_report(brief_file: Path):
    brief = find_brief("tiny.toml", brief_file.parent)
    assert brief.gpus == 4 and brief.small.steps == 20


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("gpus = 0", "gpus must be a whole number, 1 or more: got 0"),
        ("gpu = 4", "unknown field 'gpu': did you mean 'gpus'"),
        ('cluster = "dgx-h10"', "unknown cluster 'dgx-h10': did you mean 'dgx-h100'"),
        ("max_parameters = 1e5", "min_parameters must be at most max_parameters"),
        ('measure = "speed"', "measure must be one of loss, gpu_hours"),
        ("small = 3", "small must be"),
    ],
)
def test_a_wrong_brief_is_one_error_with_the_file(brief_file: Path, line: str, message: str):
    text = brief_file.read_text()
    name = line.split(" = ")[0]
    kept = [each for each in text.splitlines() if not each.startswith(f"{name} = ")]
    if name == "small":
        kept = kept[: kept.index("[small]")]
    brief_file.write_text("\n".join([line, *kept]))
    with pytest.raises(ValueError, match=message) as error:
        find_brief(brief_file)
    assert str(brief_file) in str(error.value)


def test_an_unknown_brief_names_the_nearest():
    with pytest.raises(ValueError, match="unknown brief 'one-bilion': did you mean 'one-billion'"):
        find_brief("one-bilion")
