"""Scaling laws next to published values and to a search of the least loss."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.models.scaling_law import CHINCHILLA, REPLICATION, ScalingLaw, effective_tokens


def test_chinchilla_and_gopher_have_the_terms_that_others_computed():
    """1.69 + 0.083 + 0.163 and 1.69 + 0.052 + 0.251: nostalgebraist, "chinchilla's wild implications", 2022."""
    assert CHINCHILLA.loss(70e9, 1.4e12) == pytest.approx(1.936, abs=1e-3)
    assert CHINCHILLA.loss(280e9, 300e9) == pytest.approx(1.993, abs=1e-3)


def test_the_replication_gives_chinchillas_twenty_tokens_per_parameter():
    """Besiroglu et al.: about 20 tokens per parameter for Chinchilla's 5.76e23 FLOPs."""
    flops = 5.76e23
    size = REPLICATION.best_parameters(flops)
    assert flops / (6 * size) / size == pytest.approx(20, abs=8)
    assert CHINCHILLA.best_parameters(flops) < size  # the first fit asks for more tokens


@pytest.mark.parametrize("law", [CHINCHILLA, REPLICATION])
@given(flops=st.floats(1e18, 1e26), factor=st.floats(0.1, 10))
def test_no_other_size_has_a_lower_loss_for_the_same_flops(law: ScalingLaw, flops: float, factor: float):
    size = law.best_parameters(flops)
    best = law.loss(size, flops / (6 * size))
    other = size * factor
    assert law.loss(other, flops / (6 * other)) >= best - 1e-12


@given(tokens=st.floats(1e3, 1e15), corpus=st.floats(1e3, 1e13))
def test_repeated_tokens_teach_no_more_than_new_ones_and_ever_less(tokens: float, corpus: float):
    seen = effective_tokens(tokens, corpus)
    assert seen <= tokens * (1 + 1e-12) and seen <= corpus * (1 + 15.4)
    assert effective_tokens(tokens * 1.1, corpus) >= seen
    assert (seen == tokens) == (tokens <= corpus) or tokens == pytest.approx(corpus)


def test_four_epochs_are_nearly_as_good_as_new_tokens():
    """Muennighoff et al., section 5: repetition up to four epochs changes the loss little."""
    assert effective_tokens(4e9, 1e9) / 4e9 == pytest.approx(0.93, abs=0.02)
    assert REPLICATION.loss(1e9, 4e9, 1e9) - REPLICATION.loss(1e9, 4e9) < 0.02
