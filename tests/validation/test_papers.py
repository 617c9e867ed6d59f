"""The tables of the papers that the course cites, figure by figure."""

from math import isclose

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.models.published import find_transformer
from lablib.models.transformer import Transformer
from lablib.models.transformer_sizes import transformer_parameters
from lablib.plan.optimizers import find_optimizer
from tests.validation import papers

GIB = 2**30

# ZeRO, table 1: GB on each rank, for stages 1, 2 and 3.
ZERO_TABLE_1 = {
    7.5e9: {
        1: ("120", "120", "120"),
        4: ("52.5", "41.3", "30"),
        16: ("35.6", "21.6", "7.5"),
        64: ("31.4", "16.6", "1.88"),
        256: ("30.4", "15.4", "0.47"),
        1024: ("30.1", "15.1", "0.12"),
    },
    128e9: {
        1: ("2048", "2048", "2048"),
        4: ("896", "704", "512"),
        16: ("608", "368", "128"),
        64: ("536", "284", "32"),
        256: ("518", "263", "8"),
        1024: ("513", "257", "2"),
    },
    1e12: {
        1: ("16000", "16000", "16000"),
        4: ("7000", "5500", "4000"),
        16: ("4750", "2875", "1000"),
        64: ("4187", "2218", "250"),
        256: ("4046", "2054", "62.5"),
        1024: ("4011", "2013", "15.6"),
    },
}


@pytest.mark.parametrize(("params", "rows"), ZERO_TABLE_1.items(), ids=["7.5B", "128B", "1T"])
def test_zero_table_1_on_1_to_1024_ranks(params, rows):
    for ranks, printed in rows.items():
        for stage, figure in enumerate(printed, start=1):
            total_gb = sum(papers.zero_states_bytes(params, stage, ranks).values()) / 1e9
            # Some figures are rounded, some cut off: within one of the last digit printed.
            digit = 10.0 ** -len(figure.partition(".")[2])
            assert abs(total_gb - float(figure)) < digit, (ranks, stage)


@pytest.mark.parametrize(("stage", "gb"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_zero_figure_1_is_7_5_billion_parameters_on_64_ranks(stage, gb):
    assert sum(papers.zero_states_bytes(7.5e9, stage, 64).values()) / 1e9 == pytest.approx(gb, abs=0.05)


def test_zero_counts_for_adam_what_the_optimizer_of_that_name_keeps():
    assert papers.zero_states_bytes(1000, 0, 1)["optimizer"] == find_optimizer("adamw").state_bytes(1000)


@given(params=st.integers(1, 10**12), ranks=st.integers(1, 10**5))
def test_each_stage_of_zero_keeps_no_more_than_the_one_before(params, ranks):
    totals = [sum(papers.zero_states_bytes(params, stage, ranks).values()) for stage in range(4)]
    assert totals == sorted(totals, reverse=True)
    assert isclose(totals[3] * ranks, totals[0], rel_tol=1e-12)


def test_zero_sends_half_as_much_again_in_stage_3():
    assert [papers.zero_sent_numbers(100, stage) for stage in range(4)] == [200, 200, 200, 300]


def test_zero_has_four_stages_and_takes_arrays():
    assert papers.zero_states_bytes(np.array([8, 16]), 3, np.array([2, 4]))["parameters"].tolist() == [8, 8]


# Korthikanti, figure 1: GiB a GPU, as github.com/calculon-ai/calculon (llm/validation.py) reads it.
KORTHIKANTI_FIGURE_1 = {
    #                   t  p  m  b   none         sequence parallel + selective
    "megatron-22b": (8, 1, 1, 4, 59.25, 9.5625),
    "megatron-175b": (8, 8, 3, 1, 66.84375, 12.3515625),
    "megatron-529.6b": (8, 35, 3, 1, 114.0234375, 23.076171875),
    "megatron-1008b": (8, 64, 1, 1, 131.25, 26.5625),
}


@pytest.mark.parametrize(("name", "row"), KORTHIKANTI_FIGURE_1.items(), ids=list(KORTHIKANTI_FIGURE_1))
def test_korthikanti_figure_1_activations(name, row):
    model, (tensor, pipeline, chunks, batch, plain_gib, best_gib) = find_transformer(name), row
    sizes = (2048, batch, model.d_model, model.num_heads, model.num_layers)
    split = {"tensor": tensor, "pipeline": pipeline, "chunks": chunks}
    plain = papers.first_stage_activation_bytes(*sizes, **split)
    best = papers.first_stage_activation_bytes(*sizes, **split, sequence_parallel=True, recompute="selective")
    assert plain / GIB == pytest.approx(plain_gib, rel=1e-12)
    assert best / GIB == pytest.approx(best_gib, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "tensor", "pipeline", "gib"),
    [
        ("megatron-22b", 8, 1, 45.5625),
        ("megatron-175b", 8, 8, 45.5625),
        ("megatron-529.6b", 8, 35, 31.640625),
        ("megatron-1008b", 8, 64, 32.958984375),
    ],
)
def test_korthikanti_figure_1_model_states(name, tensor, pipeline, gib):
    model = find_transformer(name)
    states = papers.megatron_layer_states_bytes(model.num_layers, model.d_model, tensor=tensor, pipeline=pipeline)
    assert states / GIB == pytest.approx(gib, rel=1e-12)


@pytest.mark.parametrize(("name", "share"), [pytest.param("megatron-175b", 0.70, id="GPT-3"), ("mt-nlg-530b", 0.65)])
def test_korthikanti_section_5_selective_recomputation_saves_the_scores(name, share):
    model = find_transformer(name)
    sizes = (2048, 1, model.d_model, model.num_heads)
    kept, all_of_it = (papers.layer_activation_bytes(*sizes, recompute=word) for word in ("selective", "none"))
    assert 1 - kept / all_of_it == pytest.approx(share, abs=0.005)


def test_korthikanti_table_2_row_by_row():
    s, b, h, a, t = 2048, 4, 6144, 64, 8
    sbh, scores = s * b * h, 5 * 64 * 2048 / 6144
    kept = {
        (parallel, recompute): papers.layer_activation_bytes(
            s, b, h, a, tensor=t, sequence_parallel=parallel, recompute=recompute
        )
        / sbh
        for parallel in (False, True)
        for recompute in ("none", "selective", "full")
    }
    assert papers.layer_activation_bytes(s, b, h, a) / sbh == pytest.approx(34 + scores)
    assert kept == {
        (False, "none"): pytest.approx(13 + scores / 8),
        (False, "selective"): pytest.approx(13),
        (False, "full"): pytest.approx(2),
        (True, "none"): pytest.approx((34 + scores) / 8),
        (True, "selective"): pytest.approx(34 / 8),
        (True, "full"): pytest.approx(2),
    }


@given(s=st.integers(1, 4096), b=st.integers(1, 8), a=st.integers(1, 64), d_head=st.integers(1, 128))
def test_korthikanti_34_are_the_tensors_of_a_layer_that_backward_needs(s, b, a, d_head):
    # Section 4.1, tensor by tensor, in bytes; numbers have 2, masks of dropout 1.
    h = a * d_head
    attention = [2, 2 * 2, 2, 2, 1]  # shared input; queries and keys; values; the output's input; its mask
    scores = [2, 1, 2]  # softmax, its mask, what the mask left: for each head and pair
    mlp, norms = [2, 2 * 4, 2 * 4, 1], [2, 2]  # input, GELU's input, its output, mask; the two norms' inputs
    total = s * b * h * sum(attention + mlp + norms) + a * s * s * b * sum(scores)
    assert isclose(papers.layer_activation_bytes(s, b, h, a), total, rel_tol=1e-12)


def test_korthikanti_section_4_3_adds_embedding_and_head():
    # The 22B model of table 3, tensor by tensor: logits are in 32 bits, and only where there is one stage.
    s, b, h, v, t = 2048, 4, 6144, 51200, 8
    masks, norm, head, logits = s * b * h, 2 * s * b * h, 2 * s * b * h, 4 * s * b * v
    assert papers.outer_activation_bytes(s, b, h, v, tensor=t) == pytest.approx((masks + norm + head + logits) / t)
    assert papers.outer_activation_bytes(s, b, h, v, tensor=t, pipeline=8) == pytest.approx(8 * masks / t)


def test_interleaving_keeps_more_on_the_first_stage_and_no_chunks_keep_as_much():
    assert papers.interleaving_factor(8, 3) == 1 + 7 / 24
    assert papers.interleaving_factor(64, 1) == 1
    assert papers.interleaving_factor(np.array([8, 64]), np.array([3, 1])).tolist() == [1 + 7 / 24, 1]


# SC21, table 1: billions of parameters.
@pytest.mark.parametrize("printed", ["1.7", "3.6", "7.5", "18.4", "39.1", "76.1", "145.6", "310.1", "529.6", "1008.0"])
def test_megatron_table_1_parameters(printed):
    model = find_transformer(f"megatron-{printed.removesuffix('.0')}b")
    sizes = (model.num_layers, model.d_model, model.vocab_size, model.max_seq_len)
    assert f"{papers.megatron_parameters(*sizes) / 1e9:.1f}" == printed


@given(layers=st.integers(1, 200), h=st.integers(1, 300), v=st.integers(1, 10**5), s=st.integers(1, 4096))
def test_megatron_counts_all_of_a_gpt_but_its_last_norm(layers, h, v, s):
    counted = transformer_parameters(Transformer("gpt", layers, h, 1, v, s)).total
    assert isclose(papers.megatron_parameters(layers, h, v, s), counted - 2 * h, rel_tol=1e-12)
