"""muP: nothing changes at the base width; elsewhere starts, rates and multipliers are the table's, and changes flat."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib.batches.mup import apply_mup_, at_width, coordinate_check, mup_groups
from lablib.models import GPT, GPTConfig, next_token_loss

BASE = GPTConfig(2, 16, 2, vocab_size=64, max_seq_len=16)
WIDTHS = [16.0, 32.0, 64.0, 128.0]
few = settings(max_examples=12)


def text(rows: int = 8) -> torch.Tensor:
    return torch.randint(64, (rows, 17), generator=torch.Generator().manual_seed(0))


def in_mup(config: GPTConfig, base: GPTConfig = BASE, dtype: torch.dtype = torch.float64) -> GPT:
    model = GPT(config, dtype=dtype)
    apply_mup_(model, base)
    return model


def exponents(base: GPTConfig | None, wider_heads: bool) -> dict[str, float]:
    rows = [coordinate_check(at_width(BASE, growth, wider_heads), base, text()) for growth in (1, 2, 4, 8)]
    return {name: np.polyfit(np.log(WIDTHS), np.log([row[name] for row in rows]), 1)[0] for name in rows[0]}


@pytest.mark.parametrize("wider_heads", [False, True])
def test_changes_are_flat_under_mup_and_grow_under_the_standard_parametrization(wider_heads):
    mup, standard = exponents(BASE, wider_heads), exponents(None, wider_heads)
    assert mup.keys() == {"embedding", "block 0", "block 1", "scores", "logits"}
    # Of scores one part, change times start, falls as 1 / sqrt(K), and the rest is flat: between the two.
    assert -0.5 < mup.pop("scores") < 0.1
    assert all(abs(exponent) < 0.15 for exponent in mup.values()), mup
    assert all(standard[name] > 0.5 for name in standard if name != "embedding"), standard
    assert abs(standard["embedding"]) < 0.1  # vectors in the width: right as they are


def test_at_the_base_width_it_is_the_standard_model_to_the_bit():
    mup, standard = in_mup(BASE), GPT(BASE, dtype=torch.float64)
    optimizers = (
        torch.optim.AdamW(mup_groups(mup, BASE, 1e-2, 0.1)),
        torch.optim.AdamW(standard.parameters(), lr=1e-2, weight_decay=0.1),
    )
    inputs, targets = text()[:, :-1], text()[:, 1:].contiguous()
    for _ in range(3):
        for model, optimizer in zip((mup, standard), optimizers, strict=True):
            optimizer.zero_grad()
            next_token_loss(model(inputs), targets).backward()
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(mup.parameters(), standard.parameters(), strict=True))


@few
@given(growth=st.integers(1, 5), d_ff=st.sampled_from([16, 40, 96]), tied=st.booleans())
def test_rates_and_starts_are_the_tables(growth, d_ff, tied):
    base = GPTConfig(1, 16, 2, vocab_size=64, max_seq_len=8, tied_head=tied)
    config = GPTConfig(1, 16 * growth, 2, vocab_size=64, max_seq_len=8, d_ff=d_ff, tied_head=tied)
    mup, standard = in_mup(config, base), GPT(config, dtype=torch.float64)
    groups = mup_groups(mup, base, 1e-2, 0.1)
    settings_of = {param: (group["lr"], group["weight_decay"]) for group in groups for param in group["params"]}
    assert len(settings_of) == len(list(mup.parameters())) == sum(len(group["params"]) for group in groups)
    for (name, ours), theirs in zip(mup.named_parameters(), standard.parameters(), strict=True):
        grown = 1.0  # what the fan_in is, of the base's
        if name.endswith("mlp.down.weight"):
            grown = d_ff / 64
        elif name.startswith("blocks.") and ours.ndim == 2:
            grown = growth
        assert settings_of[ours] == pytest.approx((1e-2 / grown, 0.1 * grown))
        torch.testing.assert_close(ours, theirs / math.sqrt(grown), rtol=1e-12, atol=0.0)


def test_one_step_of_adam_changes_a_matrix_by_its_rate():
    config = at_width(BASE, 4)
    model = in_mup(config)
    before = {name: param.detach().clone() for name, param in model.named_parameters()}
    inputs, targets = text()[:, :-1], text()[:, 1:].contiguous()
    next_token_loss(model(inputs), targets).backward()
    torch.optim.Adam(mup_groups(model, BASE, 1e-2), eps=1e-30).step()
    for name, factor in (("blocks.0.mlp.up.weight", 4), ("blocks.1.attention.out.weight", 4), ("final_norm.bias", 1)):
        change = (model.get_parameter(name) - before[name]).abs()
        torch.testing.assert_close(change, torch.full_like(change, 1e-2 / factor), rtol=1e-9, atol=0.0)


@few
@given(growth=st.integers(1, 4), wider_heads=st.booleans())
def test_multipliers_of_head_and_scores(growth, wider_heads):
    config = at_width(BASE, growth, wider_heads)
    mup, plain = in_mup(config), GPT(config, dtype=torch.float64)
    plain.load_state_dict(mup.state_dict())  # hooks are no state
    x = torch.randn(1, 3, config.d_model, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(mup.head(x), plain.head(x) / growth)
    ours, theirs = mup.get_submodule("blocks.1.attention.query"), plain.get_submodule("blocks.1.attention.query")
    wider = math.sqrt(growth) if wider_heads else 1.0  # q k / sqrt(K) / wider = q k sqrt(base K) / K
    torch.testing.assert_close(ours(x), theirs(x) / wider)


def test_a_wider_model_is_as_deep_and_has_heads_as_asked():
    assert at_width(BASE, 3) == GPTConfig(2, 48, 6, vocab_size=64, max_seq_len=16, d_ff=192)
    assert at_width(BASE, 3, wider_heads=True).d_head == 24
    assert at_width(BASE, 1).hidden_size == BASE.hidden_size


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: apply_mup_(GPT(BASE), GPTConfig(3, 16, 2, vocab_size=64, max_seq_len=16)), "got num_layers 2 and.* 3"),
        (lambda: mup_groups(GPT(BASE), GPTConfig(2, 16, 2), 1e-2), "transfers only between widths: got vocab_size 64"),
    ],
)
def test_bad_input_is_one_clear_error(call, message):
    with pytest.raises(ValueError, match=message):
        call()
