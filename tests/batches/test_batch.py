"""A global batch and its parts."""

from lablib.batches.batch import BatchSize


def test_the_batch_of_gpt3_in_tokens():
    # Brown et al., 2020, arXiv 2005.14165, table 2.1: 3.2M tokens of sequences of 2048, here over 96 ranks.
    plan = BatchSize(2, 8, 96)
    assert plan.global_batch == 1536 and plan.tokens(2048) == 3_145_728
    assert plan.local_batch == 16
