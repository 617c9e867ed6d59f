"""6 N D: the totals that papers print, and its error by sequence and width."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.models.published import find_transformer
from lablib.models.training_compute import over_six_n_d, six_n_d, training_days
from lablib.models.transformer import Transformer

SIZES = st.integers(1, 300)


@pytest.mark.parametrize(
    ("millions", "flops"),
    [
        (125, 2.25e20),
        (356, 6.41e20),
        (760, 1.37e21),
        (1320, 2.38e21),
        (6660, 1.20e22),
        (12850, 2.31e22),
        (174600, 3.14e23),
    ],
)
def test_gpt3_totals_of_table_d_1(millions, flops):
    """Brown et al., 2020, appendix D: 300 billion tokens each."""
    assert six_n_d(millions * 1e6, 300e9) == pytest.approx(flops, rel=0.005)


def test_llama_3_405b_took_3_8e25():
    """Grattafiori et al., 2024, arXiv 2407.21783, section 1: 15.6 trillion tokens."""
    assert six_n_d(405e9, 15.6e12) == pytest.approx(3.8e25, rel=0.005)


@pytest.mark.parametrize(
    ("parameters", "tokens", "gpus", "flops_per_s", "days"),
    [(175e9, 300e9, 1024, 140e12, 34), (1008e9, 450e9, 3072, 163e12, 84)],
)
def test_days_of_sc21_section_5_1(parameters, tokens, gpus, flops_per_s, days):
    """8 T P / (n X): with the forward pass that recomputation repeats, a third more than 6 N D."""
    assert training_days(six_n_d(parameters, tokens) * 8 / 6, gpus, flops_per_s) == pytest.approx(days, abs=0.5)


@given(layers=SIZES, heads=SIZES, d_head=SIZES, vocab_size=SIZES, seq_len=SIZES)
def test_the_error_is_its_closed_form(layers, heads, d_head, vocab_size, seq_len):
    d = heads * d_head
    model = Transformer("gpt", layers, d, heads, vocab_size, seq_len)
    products = 12 * layers * d * d + vocab_size * d + 2 * layers * seq_len * d
    parameters = 12 * layers * d * d + 13 * layers * d + (vocab_size + seq_len + 2) * d
    assert over_six_n_d(model) == pytest.approx(products / parameters, rel=1e-12)


def test_the_rule_is_two_percent_off_for_gpt3_and_useless_for_long_sequences_of_a_small_model():
    gpt3 = find_transformer("gpt3-175b")
    assert over_six_n_d(gpt3, 2048) == pytest.approx(1 + 2048 / (6 * 12288), rel=2e-3)
    assert over_six_n_d(find_transformer("gpt2"), 32768) > 5
    assert np.all(np.diff(over_six_n_d(gpt3, np.array([128, 1024, 8192]))) > 0)


def test_a_head_of_its_own_makes_parameters_that_are_looked_up():
    tied = Transformer("gpt", 2, 64, 2, 50_000, 16)
    assert over_six_n_d(replace(tied, tied_head=False)) < 0.6 < 0.9 < over_six_n_d(tied)


def test_a_mixture_counts_what_a_token_visits():
    assert over_six_n_d(find_transformer("mixtral-8x7b"), 128) == pytest.approx(1.0, abs=0.02)
