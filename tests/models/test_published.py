"""Names of published transformers: what they find, and what an unknown one is told."""

import pytest

from lablib.models import GPTConfig, model_config
from lablib.models.published import TRANSFORMERS, find_transformer
from lablib.models.transformer import Transformer


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
