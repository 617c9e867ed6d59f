"""A global batch and its parts; laws of the best batch give the batches of their papers' models."""

import pytest

from lablib.batches.batch import BatchSize
from lablib.batches.batch_rules import deepseek_batch, kaplan_critical_batch, step_law_batch


def test_the_batch_of_gpt3_in_tokens():
    # Brown et al., 2020, arXiv 2005.14165, table 2.1: 3.2M tokens of sequences of 2048, here over 96 ranks.
    plan = BatchSize(2, 8, 96)
    assert plan.global_batch == 1536 and plan.tokens(2048) == 3_145_728
    assert plan.local_batch == 16


@pytest.mark.parametrize("layers, width, tokens, batch_sequences", [(30, 4096, 2e12, 2304), (95, 8192, 2e12, 4608)])
def test_deepseek_llm_was_trained_by_its_own_law(layers, width, tokens, batch_sequences):
    """Table 2 of arXiv 2401.02954: 7B and 67B, sequences of 4096; FLOPs a token 72 l d^2 + 12 l d s, its equation 2.

    To 10%: that counts a plain layer, and 67B's has fewer key and value heads; batches were rounded, too.
    """
    compute_flops = (72 * layers * width**2 + 12 * layers * width * 4096) * tokens
    assert deepseek_batch(compute_flops) == pytest.approx(batch_sequences * 4096, rel=0.1)


def test_kaplans_critical_batch():
    assert kaplan_critical_batch(1.0) == 2e8
    # The power: a loss 10% lower is a batch 1.65 times as large.
    assert kaplan_critical_batch(2.7) / kaplan_critical_batch(3.0) == pytest.approx(0.9 ** (-1 / 0.21))
    assert 1e5 < kaplan_critical_batch(4.0) < 1e6 < kaplan_critical_batch(2.5) < 1e7


def test_step_law_of_100_billion_tokens():
    # By logarithms: ln B = ln 0.58 + 0.571 ln 1e11.
    assert step_law_batch(1e11) == pytest.approx(1.106e6, rel=2e-3)
