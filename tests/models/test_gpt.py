"""The GPT behaves as one: causal, uninformed at the start, repeatable, and differentiable in float64."""

import math

import pytest
import torch

from lablib.models import GPT, GPTConfig, model_config, next_token_loss
from lablib.models.gpt import Block

TINY = model_config("tiny")


def random_tokens(batch: int, seq_len: int, vocab_size: int = 256) -> torch.Tensor:
    return torch.randint(vocab_size, (batch, seq_len), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_later_token_leaves_earlier_logits_bit_identical(dtype):
    model = GPT(TINY, dtype=dtype)
    tokens_BT = random_tokens(2, 48)
    changed_BT = tokens_BT.clone()
    changed_BT[:, 30] = (changed_BT[:, 30] + 1) % 256
    before_BTV, after_BTV = model(tokens_BT), model(changed_BT)
    assert torch.equal(before_BTV[:, :30], after_BTV[:, :30])
    assert not torch.equal(before_BTV[:, 30:], after_BTV[:, 30:])


def test_attention_equals_softmax_of_scores_written_out():
    model = GPT(TINY, dtype=torch.float64)
    block = model.blocks[0]
    assert isinstance(block, Block)
    attention = block.attention
    x_BTD = torch.randn(2, 9, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    heads = [
        linear(x_BTD).reshape(2, 9, 4, 16).permute(0, 2, 1, 3)
        for linear in (attention.query, attention.key, attention.value)
    ]
    scores_BHTT = heads[0] @ heads[1].transpose(-1, -2) / math.sqrt(16)
    scores_BHTT = scores_BHTT.masked_fill(torch.ones(9, 9).triu(1).bool(), -math.inf)
    expected_BTD = attention.out((scores_BHTT.softmax(-1) @ heads[2]).permute(0, 2, 1, 3).reshape(2, 9, 64))
    torch.testing.assert_close(attention(x_BTD), expected_BTD)


def test_loss_at_the_start_is_that_of_a_uniform_guess():
    tokens_BT = random_tokens(4, 129)
    loss = next_token_loss(GPT(TINY)(tokens_BT[:, :-1]), tokens_BT[:, 1:])
    assert loss.item() == pytest.approx(math.log(256), abs=0.05)


def test_loss_of_half_precision_logits_is_computed_in_float32():
    logits_BTV = torch.randn(1, 5, 256, generator=torch.Generator().manual_seed(3)).bfloat16()
    targets_BT = random_tokens(1, 5)
    loss = next_token_loss(logits_BTV, targets_BT)
    assert loss.dtype == torch.float32
    assert loss == next_token_loss(logits_BTV.float(), targets_BT)


def test_one_seed_gives_one_model_in_every_dtype():
    wide, narrow = GPT(TINY, seed=7, dtype=torch.float64), GPT(TINY, seed=7, dtype=torch.float32)
    for (name, a), b in zip(wide.named_parameters(), narrow.parameters(), strict=True):
        assert torch.equal(a.float(), b), name
    generator = torch.Generator().manual_seed(7)
    assert torch.equal(GPT(TINY, seed=generator).head.weight, narrow.head.weight)
    assert not torch.equal(GPT(TINY, seed=8).head.weight, narrow.head.weight)


def test_building_a_model_leaves_the_default_generator_alone():
    before = torch.get_rng_state()
    GPT(TINY)
    assert torch.equal(torch.get_rng_state(), before)


def test_every_parameter_is_initialized_as_gpt2_is():
    model = GPT(GPTConfig(num_layers=4, d_model=256, num_heads=4, vocab_size=256), dtype=torch.float64)
    for name, param in model.named_parameters():
        if name.endswith("bias"):
            assert not param.any(), name
        elif param.ndim == 1:
            assert (param == 1).all(), name
        else:
            small = name.endswith(("attention.out.weight", "mlp.down.weight"))
            expected_std = 0.02 / math.sqrt(8) if small else 0.02
            assert param.std().item() == pytest.approx(expected_std, rel=0.03), name


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_head_is_the_embedding_itself(tied):
    model = GPT(model_config("tiny", tied_head=tied))
    assert (model.head.weight is model.token_embedding.weight) == tied
    assert (len(list(model.parameters())) == 4 + 2 * 16) == tied


def test_a_few_steps_on_one_batch_learn_it():
    model = GPT(TINY)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens_BT = random_tokens(2, 33)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = next_token_loss(model(tokens_BT[:, :-1]), tokens_BT[:, 1:])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]


def test_meta_device_builds_gpt3_without_memory():
    model = GPT(model_config("gpt3-175b"), device="meta")
    assert all(param.is_meta for param in model.parameters())
    assert model(torch.empty(1, 2048, dtype=torch.int64, device="meta")).shape == (1, 2048, 50257)


def test_a_sequence_too_long_is_refused():
    with pytest.raises(ValueError, match="at most max_seq_len=256 tokens: got 257"):
        GPT(TINY)(torch.zeros(1, 257, dtype=torch.int64))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 5}, "d_model must be a multiple of num_heads: got 64 and 5; try 65"),
        ({"num_layers": 0}, "num_layers must be at least 1: got 0"),
        ({"d_ff": -1}, "hidden_size must be at least 1: got -1"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        model_config("tiny", **changes)
