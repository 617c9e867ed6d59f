"""Published transformers by name, the error of an unknown name, and sizes that no transformer has."""

import pytest

from lablib.models import GPTConfig, model_config
from lablib.models.published import TRANSFORMERS, find_transformer
from lablib.models.transformer import Experts, Latent, Transformer


def test_a_name_of_the_gpt_catalogue_finds_the_same_sizes():
    found = find_transformer("gpt3-175b")
    assert found.name == "gpt3-175b"
    assert found == Transformer(
        "gpt3-175b", 96, 12288, 96, 50257, 2048, source="Brown et al. 2020, arXiv 2005.14165, Table 2.1"
    )


def test_a_transformer_is_returned_as_it_is_and_a_config_as_its_record():
    model = find_transformer("mixtral-8x7b")
    assert find_transformer(model) is model
    config = model_config("gpt2", d_ff=1000)
    assert find_transformer(config) == Transformer.of(config)
    assert find_transformer(GPTConfig(2, 8, 2)).num_layers == 2


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="unknown model 'gpt3-175': did you mean 'gpt3-175b'"):
        find_transformer("gpt3-175")
    with pytest.raises(ValueError, match="did you mean 'llama-3-8b'"):
        find_transformer("Llama-3-8B-")


@pytest.mark.parametrize("name", list(TRANSFORMERS))
def test_every_model_has_its_name_and_says_where_its_sizes_were_printed(name):
    model = find_transformer(name)
    assert model.name == name
    assert model.source


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"num_layers": True}, "num_layers must be a whole number, 1 or more: got True for 'm'"),
        ({"d_head": 0}, "d_head must be a whole number, 1 or more: got 0"),
        ({"d_head": -64}, "d_head must be a whole number, 1 or more: got -64"),
        ({"latent": Latent(-1, 64, 16, 32, 32)}, "query_rank must be a whole number, 0 or more: got -1"),
        ({"latent": Latent(0, 0, 16, 32, 32)}, "kv_rank must be a whole number, 1 or more: got 0"),
        ({"experts": Experts(8, 9, 64)}, "num_active must be 1 to num_experts: got 9 of 8"),
        ({"experts": Experts(8, 2, 0)}, "d_ff must be a whole number, 1 or more: got 0"),
        ({"experts": Experts(8, 2, 64, num_shared=-1)}, "num_shared must be a whole number, 0 or more: got -1"),
        ({"experts": Experts(8, 2, 64, num_dense_layers=3)}, "num_dense_layers must be 0 to num_layers: got 3 of 2"),
    ],
)
def test_sizes_that_cannot_be_are_refused_by_name(sizes, words):
    usual = {"num_layers": 2, "d_model": 512, "num_heads": 8, "vocab_size": 100, "max_seq_len": 128}
    with pytest.raises(ValueError, match=words):
        Transformer("m", **{**usual, **sizes})
