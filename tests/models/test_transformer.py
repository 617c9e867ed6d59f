"""Sizes that no transformer can have are refused by name."""

import pytest

from lablib.models.transformer import Experts, Latent, Transformer


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
