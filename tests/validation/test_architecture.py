"""What a row does not say of its model comes from rules: the published counts of parameters tell whether they hold."""

import pytest

from lablib.models import TRANSFORMERS, transformer_parameters
from lablib.validation.architecture import likely_heads, squeezed, transformer_of


def test_the_sizes_of_every_row_of_llm_foundry_have_the_parameters_that_it_prints(published):
    rows = [row for row in published if "params" in row.model]
    assert len(rows) == 67
    for row in rows:
        assert transformer_parameters(transformer_of(row, pads_vocabulary=False)).total == row.model["params"], row.id


def test_a_rounded_count_is_kept_within_three_percent(published):
    for row in published:
        if "params_b" in row.model:
            count = transformer_parameters(transformer_of(row, pads_vocabulary=True)).total / 1e9
            assert count == pytest.approx(row.model["params_b"], rel=0.03), row.id


def test_a_rounded_count_tells_of_the_head_only_where_its_digits_do(row):
    # 30 layers of 4096 and a vocabulary of 131,072 are 6.6 billion with a tied head and 7.1 without.
    sizes = {"model.layers": 30, "model.vocab": 131072, "model.seq": 4096}
    assert not transformer_of(row(sizes | {"model.params_b": 7.1}), True).tied_head
    assert transformer_of(row(sizes | {"model.params_b": 6.6}), True).tied_head
    assert transformer_of(row(sizes), True).tied_head


def test_the_name_says_the_kind(row):
    llama = transformer_of(row({"model.name": "Llama3.1-8B", "model.kv_heads": 8, "model.ffn": 14336}), False)
    assert (llama.activation, llama.positions, llama.norm) == ("swiglu", "rotary", "rms")
    assert not llama.tied_head and not llama.has_bias
    gpt = transformer_of(row(), False)
    assert (gpt.activation, gpt.positions, gpt.hidden_size, gpt.kv_heads) == ("gelu", "learned", 16384, 32)
    assert transformer_of(row({"source.title": "BLOOM chronicles"}), False).positions == "alibi"


@pytest.mark.parametrize(
    ("changes", "activation", "width"),
    [
        ({"model.ffn": 11008}, "swiglu", 11008),  # no name: a width of 4 x hidden is GPT's
        ({"model.ffn": 16384}, "gelu", 16384),
        ({"model.name": "Nobody", "model.params_b": 9.4, "model.ffn": 16384, "model.vocab": 103168}, "swiglu", 16384),
        ({"model.name": "Nobody", "model.params_b": 6.9, "model.vocab": 103168}, "gelu", 16384),
        ({"model.name": "GPT-3 shape", "model.ffn": 11008}, "gelu", 11008),
        ({"model.name": "InternLM-7B"}, "swiglu", 11008),
    ],
)
def test_width_or_count_tell_the_kind_of_an_unknown_model(row, changes, activation, width):
    """Of 4,096: 4 x hidden without a gate, or 8/3 x hidden in multiples of 256 with one (arXiv 2302.13971)."""
    found = transformer_of(row({"model.layers": 32, "model.hidden": 4096, "model.heads": 32, **changes}), False)
    assert (found.activation, found.hidden_size) == (activation, width)


def test_llama_by_its_stated_sizes_has_the_published_number_of_parameters(published):
    counts = {"Llama3.1-8B": 8_030_261_248, "Llama3.1-70B": 70_553_706_496, "Llama3.1-405B": 405_853_388_800}
    seen = set()
    for row in published:
        if row.model.get("name") in counts:
            model = transformer_of(row, pads_vocabulary=False)
            assert transformer_parameters(model).total == counts[row.model["name"]], row.id
            seen.add(row.model["name"])
    assert seen == set(counts)


def test_a_vocabulary_is_padded_to_128_times_the_tensor_ranks_where_the_software_does(row):
    assert transformer_of(row({"model.vocab": 50257}), pads_vocabulary=True).vocab_size == 50688  # 99 x 512
    assert transformer_of(row({"model.vocab": 50257}), pads_vocabulary=False).vocab_size == 50257


@pytest.mark.parametrize(
    ("hidden", "tensor", "heads"), [(4096, 1, 32), (12288, 8, 96), (14336, 8, 112), (14400, 8, 120), (13824, 8, 96)]
)
def test_heads_that_are_not_stated_are_as_near_128_wide_as_the_split_allows(hidden, tensor, heads):
    assert likely_heads(hidden, tensor) == heads
    assert hidden % heads == heads % tensor == 0


def test_heads_that_a_source_states_once_for_all_its_tables_hold_for_all_its_rows(published):
    rows = [row for row in published if "heads" not in row.model]
    assert len(rows) == 3 and {row.family for row in rows} == {"bloom"}
    assert {transformer_of(row, pads_vocabulary=True).num_heads for row in rows} == {64}


def test_a_name_is_enough_for_a_model_that_is_known(row):
    nothing = {"model.layers": None, "model.hidden": None, "model.heads": None, "model.vocab": None}
    model = transformer_of(row(nothing | {"model.name": "DeepSeek V3"}), False)
    assert model.experts == TRANSFORMERS["deepseek-v3"].experts and model.num_layers == 61
    with pytest.raises(ValueError, match="the sizes of 'Nobody 3B' are not stated, and not known here"):
        transformer_of(row(nothing | {"model.name": "Nobody 3B"}), False)


def test_a_truncated_mixture_keeps_its_experts_and_takes_its_layers_from_the_row(row):
    sizes = {"model.name": "Qwen3_30B_A3B, truncated", "model.layers": 4, "model.hidden": 2048, "model.kv_heads": 4}
    model = transformer_of(row(sizes), False)
    assert model.experts == TRANSFORMERS["qwen3-30b-a3b"].experts
    assert (model.num_layers, model.head_size, model.kv_heads) == (4, 128, 4)


def test_what_a_row_states_of_known_experts_holds_and_the_rest_is_known(row):
    model = transformer_of(
        row({"model.name": "Mixtral 8x7B", "model.experts_per_token": 1, "model.kv_heads": 8}), False
    )
    assert model.experts and (model.experts.num_experts, model.experts.num_active, model.experts.d_ff) == (8, 1, 14336)


def test_experts_that_are_stated_hold(row):
    experts = transformer_of(row({"model.experts": 16, "model.experts_per_token": 1, "model.ffn": 8192}), False).experts
    assert experts and (experts.num_experts, experts.num_active, experts.d_ff) == (16, 1, 8192)


@pytest.mark.parametrize(
    "name",
    ["Nemotron-H 56B", "Nemotron 3 Nano 30B-A3B", "Nemotron3 Super", "NVIDIA-Nemotron-Nano-9B-v2", "Falcon-Mamba 7B"]
    + ["Qwen3-Next-80B-A3B", "Jamba 1.5", "StripedHyena 7B", "nemotron_h_8b"],
)
def test_a_model_without_attention_is_refused(row, name):
    with pytest.raises(ValueError, match="has layers that are not attention"):
        transformer_of(row({"model.name": name}), False)


@pytest.mark.parametrize(
    "name",
    ["Nemotron-340B", "nemotron 340b", "Nemotron-4-340B", "Nemotron4 15B", "Nemotron-3-8B", "nemotron3_22b"]
    + ["Llama-3.1-Nemotron-Nano-8B", "Llama-3.3-Nemotron-Super-49B", "Nemotron-4-Mini-Hindi"],
)
def test_a_transformer_of_a_similar_name_is_not(row, name):
    assert transformer_of(row({"model.name": name}), False).num_layers == 32


@pytest.mark.parametrize("known", sorted(name for name in TRANSFORMERS if any(letter.isdigit() for letter in name)))
def test_a_name_is_its_own_model_and_none_of_another_size(row, known):
    nothing = {"model.layers": None, "model.hidden": None, "model.heads": None, "model.vocab": None}
    model = transformer_of(row(nothing | {"model.name": known}), False)
    assert model.d_model == TRANSFORMERS[known].d_model and model.num_layers == TRANSFORMERS[known].num_layers


@pytest.mark.parametrize("name", ["GPT-20B", "GPT 2.7B", "GPT-22B"])
def test_a_number_is_read_to_its_end(row, name):
    nothing = {"model.layers": None, "model.hidden": None, "model.heads": None, "model.vocab": None}
    with pytest.raises(ValueError, match="not known here"):
        transformer_of(row(nothing | {"model.name": name}), False)


def test_synonyms_of_one_name_are_one():
    assert squeezed("Llama3.1-70B") == squeezed("llama 3 70b") == squeezed("llama3_70b")
