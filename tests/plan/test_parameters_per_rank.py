"""Parameters on one rank: those of all ranks together are the model's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.models.published import TRANSFORMERS
from lablib.models.transformer_sizes import transformer_parameters
from lablib.plan.parameters_per_rank import parameters_per_rank


@given(st.sampled_from(sorted(TRANSFORMERS)), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]))
def test_the_ranks_together_hold_the_model(name, tensor, expert):
    model = TRANSFORMERS[name]
    sizes, parameters = transformer_parameters(model), parameters_per_rank(model, tensor, expert)
    # On every tensor rank, and so counted once: routers and norms, positions, the final norm.
    whole = sum(
        count * (layer.router + layer.norms)
        for layer, count in ((sizes.dense_layer, sizes.num_dense_layers), (sizes.expert_layer, sizes.num_expert_layers))
    )
    layers = tensor * (model.num_layers * parameters.layer - whole) + whole
    experts = tensor * expert * model.num_layers * parameters.expert_layer
    ends = tensor * (parameters.embedding - sizes.positions + parameters.head - sizes.final_norm)
    total = layers + experts + ends + sizes.positions + sizes.final_norm
    assert total == pytest.approx(sizes.total, rel=1e-12)


def test_a_tied_head_is_a_second_copy_of_the_embedding_and_an_untied_one_is_none():
    gpt, llama = TRANSFORMERS["gpt3-175b"], TRANSFORMERS["llama-3-70b"]
    tied, own = parameters_per_rank(gpt, 8, 1), parameters_per_rank(llama, 8, 1)
    assert (tied.tied, tied.head) == (gpt.vocab_size * gpt.d_model / 8, 2 * gpt.d_model)
    assert (own.tied, own.head) == (0, llama.vocab_size * llama.d_model / 8 + llama.d_model)
