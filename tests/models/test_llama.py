"""The Llama against its formulas in numpy, with complex numbers for the rotations; sizes, and what is refused."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lablib.models import GPT, GPTConfig, Llama, LlamaConfig, Transformer, model_of, transformer_parameters
from lablib.models.llama import rotate

TINY = LlamaConfig(2, 12, 4, 50, 16, 20, num_kv_heads=2, head_dim=6, rope_base=100.0)


def tokens(batch: int, seq_len: int, vocab_size: int = 50) -> torch.Tensor:
    return torch.randint(vocab_size, (batch, seq_len), generator=torch.Generator().manual_seed(1))


def drawn(config: LlamaConfig, seed: int = 0) -> Llama:
    """A model in float64 with parameters far from their first values, norms included."""
    model, generator = Llama(config, dtype=torch.float64), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for param in model.parameters():
            param.copy_(torch.randn(param.shape, generator=generator, dtype=torch.float64) * 0.4 + (param.ndim == 1))
    return model


# ---- the formulas, written out ----


def numpy_logits(w: dict[str, Any], config: LlamaConfig, token_T: Any) -> Any:
    """Logits of one sequence, head by head and position by position."""

    def norm(x: Any, weight: Any) -> Any:
        return (
            np.array([row / math.sqrt(sum(number**2 for number in row) / len(row) + config.norm_eps) for row in x])
            * weight
        )

    def rotated(head_TK: Any) -> Any:
        half = config.d_head // 2
        pairs = head_TK[:, :half] + 1j * head_TK[:, half:]
        turns = [
            [np.exp(1j * t / config.rope_base ** (2 * i / config.d_head)) for i in range(half)]
            for t in range(len(pairs))
        ]
        pairs = pairs * np.array(turns)
        return np.concatenate([pairs.real, pairs.imag], axis=1)

    x, k = w["token_embedding.weight"][token_T], config.d_head
    for layer in range(config.num_layers):
        name = f"blocks.{layer}."
        h, heads = norm(x, w[f"{name}attention_norm.weight"]), []
        for head in range(config.num_heads):
            shared = head * config.kv_heads // config.num_heads
            q = rotated(h @ w[f"{name}attention.query.weight"][head * k : (head + 1) * k].T)
            keys = rotated(h @ w[f"{name}attention.key.weight"][shared * k : (shared + 1) * k].T)
            values = h @ w[f"{name}attention.value.weight"][shared * k : (shared + 1) * k].T
            rows = []
            for t in range(len(x)):
                scores = np.exp(keys[: t + 1] @ q[t] / math.sqrt(k))
                rows.append(scores / scores.sum() @ values[: t + 1])
            heads.append(np.array(rows))
        x = x + np.concatenate(heads, axis=1) @ w[f"{name}attention.out.weight"].T
        h = norm(x, w[f"{name}mlp_norm.weight"])
        gate, up = (h @ w[f"{name}mlp.{one}.weight"].T for one in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[f"{name}mlp.down.weight"].T
    return norm(x, w["final_norm.weight"]) @ w["head.weight"].T


@given(
    groups=st.integers(1, 3),
    sharing=st.integers(1, 3),
    half=st.integers(1, 3),
    seq_len=st.integers(1, 9),
    is_tied=st.booleans(),
    base=st.sampled_from([10.0, 10_000.0]),
)
def test_logits_are_those_of_the_formulas(
    groups: int, sharing: int, half: int, seq_len: int, is_tied: bool, base: float
):
    heads = groups * sharing
    config = LlamaConfig(1, 10, heads, 11, 9, 7, is_tied, groups, 2 * half, base)
    model, token_BT = drawn(config), tokens(1, seq_len, 11)
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    wanted = numpy_logits(weights, config, token_BT[0].numpy())
    torch.testing.assert_close(model(token_BT)[0], torch.from_numpy(wanted), rtol=1e-9, atol=1e-10)


@given(distance=st.integers(0, 40), shift=st.integers(0, 10**6), half=st.integers(1, 4))
def test_products_of_rotated_vectors_depend_on_the_distance_only(distance: int, shift: int, half: int):
    generator = torch.Generator().manual_seed(half)
    q, k = torch.randn(2, 1, 1, 1, 2 * half, dtype=torch.float64, generator=generator)

    def score(at: int) -> float:
        return (rotate(q, torch.tensor([[at]]), 1e4) * rotate(k, torch.tensor([[at - distance]]), 1e4)).sum().item()

    assert score(distance) == pytest.approx(score(distance + shift), rel=1e-7, abs=1e-7)


def test_neighbours_of_the_paper_are_halves_in_another_order():
    x = torch.randn(1, 1, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    turns = torch.polar(torch.ones(5, 4).double(), torch.arange(5)[:, None] * 1e4 ** (-torch.arange(4) / 4).double())
    paper = torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (4, 2))) * turns).flatten(-2)
    order = [0, 2, 4, 6, 1, 3, 5, 7]  # of the paper's numbers, as two halves
    torch.testing.assert_close(rotate(x[..., order], torch.arange(5)[None], 1e4), paper[..., order])


# ---- as a model ----


def test_a_later_token_leaves_earlier_logits_bit_identical():
    model, token_BT = Llama(TINY), tokens(2, 12)
    changed_BT = token_BT.clone()
    changed_BT[:, 7] = (changed_BT[:, 7] + 1) % 50
    before, after = model(token_BT), model(changed_BT)
    assert torch.equal(before[:, :7], after[:, :7]) and not torch.equal(before[:, 7:], after[:, 7:])


def test_the_published_8b_has_its_parameters():
    """meta-llama/Meta-Llama-3-8B: 8,030,261,248 numbers in its files."""
    model = Llama(LlamaConfig(32, 4096, 32, d_ff=14336, num_kv_heads=8), device="meta")
    assert sum(param.numel() for param in model.parameters()) == 8_030_261_248


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_its_parameters_are_those_of_the_closed_form(layers: int, groups: int, sharing: int, is_tied: bool):
    config = LlamaConfig(layers, 10, groups * sharing, 9, 8, None, is_tied, groups, 4)
    sizes: dict[str, Any] = {"activation": "swiglu", "positions": "rotary", "norm": "rms", "has_bias": False}
    sizes |= {"num_kv_heads": groups, "d_head": 4, "d_ff": config.hidden_size, "tied_head": is_tied}
    described = Transformer("one", layers, 10, groups * sharing, 9, 8, **sizes)
    found = sum(param.numel() for param in Llama(config, device="meta").parameters())
    assert found == transformer_parameters(described).total


def test_a_model_is_made_by_the_kind_of_its_sizes():
    assert isinstance(model_of(TINY), Llama) and isinstance(model_of(GPTConfig(1, 8, 2)), GPT)
    assert torch.equal(model_of(TINY, seed=3).head.weight, Llama(TINY, seed=3, dtype=torch.float64).head.weight.float())


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"num_kv_heads": 3}, "num_heads must be a multiple of num_kv_heads: got 4 and 3; try 2"),
        ({"d_model": 10}, "a head must have an even width, .*: got 10 / 4 and head_dim=None; try d_model=8"),
        ({"d_model": 12}, "a head must have an even width, .*: got 12 / 4"),
        ({"head_dim": 5}, "a head must have an even width, .* head_dim=5"),
        ({"num_kv_heads": 0}, "kv_heads must be at least 1: got 0"),
        ({"rope_base": 1.0}, "rope_base must be above 1: got 1.0; try 10000"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        LlamaConfig(**{"num_layers": 1, "d_model": 16, "num_heads": 4, **sizes})


def test_a_sequence_that_is_too_long_is_refused():
    with pytest.raises(ValueError, match="at most max_seq_len=16 tokens: got 17"):
        Llama(TINY)(tokens(1, 17))
