"""The closed form counts what a model has, and what the papers and checkpoints say it has."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.models import GPT, MODELS, GPTConfig, model_config, num_parameters, parameter_counts
from lablib.models.published import find_transformer
from lablib.models.transformer_sizes import transformer_parameters


@given(
    layers=st.integers(1, 5),
    heads=st.integers(1, 4),
    d_head=st.integers(1, 8),
    vocab_size=st.integers(1, 300),
    max_seq_len=st.integers(1, 64),
    d_ff=st.none() | st.integers(1, 40),
    tied_head=st.booleans(),
)
def test_closed_form_equals_the_model_for_any_sizes(layers, heads, d_head, vocab_size, max_seq_len, d_ff, tied_head):
    config = GPTConfig(layers, heads * d_head, heads, vocab_size, max_seq_len, d_ff, tied_head)
    assert num_parameters(config) == sum(param.numel() for param in GPT(config, device="meta").parameters())


def test_each_part_equals_that_part_of_the_model():
    config = model_config("tiny", tied_head=False)
    counted = dict.fromkeys(parameter_counts(config), 0)
    for name, param in GPT(config, device="meta").named_parameters():
        part = next(p for p, word in _WORDS.items() if word in name)
        counted[part] += param.numel()
    assert parameter_counts(config) == counted


_WORDS = {"norms": "norm", "embeddings": "embedding", "attention": "attention.", "mlp": "mlp.", "head": "head"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [("gpt2", 124_439_808), ("gpt2-medium", 354_823_168), ("gpt2-large", 774_030_080), ("gpt2-xl", 1_557_611_200)],
)
def test_gpt2_sizes_are_those_of_the_released_checkpoints(name, expected):
    assert num_parameters(model_config(name)) == expected


@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith("gpt3")])
def test_gpt3_sizes_are_within_two_percent_of_the_papers_names(name):
    size = name.removeprefix("gpt3-")
    published = float(size[:-1]) * {"m": 1e6, "b": 1e9}[size[-1]]
    assert num_parameters(model_config(name)) == pytest.approx(published, rel=0.02)


# Narayanan et al., SC21, table 1: billions of parameters.
@pytest.mark.parametrize("printed", ["1.7", "3.6", "7.5", "18.4", "39.1", "76.1", "145.6", "310.1", "529.6", "1008.0"])
def test_megatron_sizes_are_those_of_the_papers_table(printed):
    counted = transformer_parameters(find_transformer(f"megatron-{printed.removesuffix('.0')}b"))
    assert f"{counted.total / 1e9:.1f}" == printed


def test_an_unknown_model_is_answered_with_the_nearest_names():
    with pytest.raises(ValueError, match="unknown model 'gpt2-larg': did you mean 'gpt2-large'"):
        model_config("gpt2-larg")


def test_a_catalogue_size_can_be_changed_and_the_catalogue_stays():
    assert model_config("tiny", num_layers=8).num_layers == 8
    assert model_config("tiny").num_layers == 2
