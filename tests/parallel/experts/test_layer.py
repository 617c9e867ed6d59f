"""The mixture as a layer: closed forms with one expert, equal experts and shared ones; states, dtypes, bad input."""

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lablib.models import GPT, GPTConfig, Llama, LlamaConfig, next_token_loss
from lablib.parallel import (
    MixtureConfig,
    MixtureOfExperts,
    balancing_loss,
    grouped_product,
    loop_product,
    mixtures,
    padded_product,
    sigmoid_gates,
    with_experts,
)
from tests.parallel.drawn import drawn

CONFIG = GPTConfig(2, 16, 2, vocab_size=16, max_seq_len=8, d_ff=8)


def mixture_of(num_experts: int, k: int, dtype: torch.dtype = torch.float64, **options: Any) -> MixtureOfExperts:
    made = MixtureOfExperts(MixtureConfig(num_experts, k, **options), 16, 8, dtype=dtype)
    for param in made.parameters():
        param.data *= 20
    return made


def mlp(x: Tensor, up_DF: Tensor, down_FD: Tensor) -> Tensor:
    return F.gelu(x @ up_DF, approximate="tanh") @ down_FD


@pytest.mark.parametrize("product", [loop_product, padded_product])
def test_one_expert_is_an_mlp(product: Any):
    mixture, x = mixture_of(1, 1, product=product), drawn(2, 5, 16)
    torch.testing.assert_close(mixture(x), mlp(x, mixture.experts.up[0], mixture.experts.down[0]))


@pytest.mark.parametrize("product", [loop_product, padded_product])
def test_a_gated_expert_is_the_mlp_of_a_llama(product: Any):
    """Mixtral 2024, equation 2; down(silu(gate(x)) * up(x))."""
    config = LlamaConfig(1, 16, 2, 16, 8, 8)
    mlp: Any = Llama(config, dtype=torch.float64).blocks[0].mlp
    model, x = with_experts(Llama(config, dtype=torch.float64), 1, 1, product=product), drawn(2, 5, 16)
    mixture = model.blocks[0].mlp
    mixture.experts.load_state_dict({key: getattr(mlp, key).weight.T[None] for key in ("gate", "up", "down")})
    torch.testing.assert_close(mixture(x), mlp(x))


def test_parameters_are_those_of_the_published_mixtral():
    """93,405,585,408 bytes in 16 bits: total_size in model.safetensors.index.json of mistralai/Mixtral-8x7B-v0.1."""
    config = LlamaConfig(32, 4096, 32, 32000, 32768, 14336, num_kv_heads=8)
    model = with_experts(Llama(config, dtype=torch.bfloat16, device="meta"), 8, 2)
    assert sum(param.nbytes for param in model.parameters()) == 93_405_585_408


@pytest.mark.parametrize("k", [2, 4])
def test_equal_experts_are_an_mlp_whoever_is_chosen(k: int):
    """Weights are normalized, so that a dense model can be made a mixture that says the same; k = E too."""
    mixture, x = mixture_of(4, k), drawn(30, 16)
    for param in mixture.experts.parameters():
        param.data[:] = param.data[:1]
    torch.testing.assert_close(mixture(x), mlp(x, mixture.experts.up[0], mixture.experts.down[0]))
    assert mixture.routing is not None and len({tuple(row) for row in mixture.routing.experts_Nk.tolist()}) > 1


def test_shared_experts_are_seen_by_every_token_with_weight_1():
    mixture, x = mixture_of(4, 1, num_shared=3), drawn(7, 16)
    with_shared, shared = mixture(x), mixture.shared
    assert shared is not None and shared.up.shape == (1, 16, 24)
    mixture.shared = None
    ups, downs = shared.up[0].split(8, 1), shared.down[0].split(8, 0)
    expected = mixture(x) + sum(mlp(x, up, down) for up, down in zip(ups, downs, strict=True))
    torch.testing.assert_close(with_shared, expected)


def test_what_is_dropped_passes_through_the_residual_stream():
    model = with_experts(GPT(CONFIG, dtype=torch.float64), 4, 1, capacity_factor=0.5)
    block: Any = model.blocks[1]
    x, mixture = drawn(2, 8, 16), block.mlp
    mixture.router.weight.data.zero_()  # equal scores: all 16 tokens go to expert 0, which has 2 slots
    before = x + block.attention(block.attention_norm(x))
    passes = (block(x) == before).all(-1).flatten()
    assert passes.tolist() == [False] * 2 + [True] * 14 and mixture.num_dropped == 14


def test_every_other_block_has_a_mixture_and_a_gpt_trains():
    model = with_experts(GPT(GPTConfig(4, 16, 2, vocab_size=16, max_seq_len=8)), 4, 2, every=2)
    assert [isinstance(block.mlp, MixtureOfExperts) for block in model.blocks] == [False, True, False, True]
    tokens = torch.arange(16).view(2, 8)
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=0.01), []
    for _ in range(30):
        optimizer.zero_grad()
        loss = next_token_loss(model(tokens), tokens)
        (loss + 0.01 * sum(balancing_loss(one.routing) for one in mixtures(model) if one.routing)).backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]


def test_the_same_seed_is_the_same_mixture_in_every_dtype_and_another_seed_another():
    one, other = (with_experts(GPT(CONFIG, dtype=dtype), 4, 2, seed=5) for dtype in (torch.float64, torch.bfloat16))
    for (name, param), same in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(param.bfloat16(), same), name
    blocks = [mixture.experts.up for mixture in mixtures(one)]
    assert not torch.equal(*blocks) and not torch.equal(blocks[0][0], blocks[0][1])
    seeded = next(mixtures(with_experts(GPT(CONFIG, dtype=torch.float64), 4, 2, seed=6)))
    assert not torch.equal(seeded.router.weight, next(mixtures(one)).router.weight)


def test_a_copy_after_a_forward_and_a_pickle_have_the_weights_and_no_graph():
    model = with_experts(GPT(CONFIG), 4, 2, has_bias=True, gates=sigmoid_gates)
    tokens = torch.arange(8)[None]
    expected = model(tokens)
    for made in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert next(mixtures(made)).routing is None
        assert torch.equal(made(tokens), expected)
    assert "blocks.0.mlp.bias_E" in model.state_dict()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("product", [loop_product, padded_product, grouped_product])
def test_low_precision_computes_in_it_and_routes_in_float32(dtype: torch.dtype, product: Any):
    mixture = mixture_of(4, 2, dtype, num_shared=1, product=product, capacity_factor=1.0)
    x = drawn(3, 9, 16, dtype=dtype).transpose(0, 1).requires_grad_()  # not contiguous
    y = mixture(x)
    y.float().square().sum().backward()
    assert y.dtype == dtype and mixture.routing is not None and mixture.routing.scores_NE.dtype == torch.float32
    assert x.grad is not None and x.grad.isfinite().all()
    assert all(param.grad is not None and param.grad.isfinite().all() for param in mixture.parameters())
    assert all(param.grad is not None and param.grad.any() for param in mixture.parameters())


def test_under_autocast_the_router_stays_in_float32():
    mixture, x = mixture_of(4, 2, torch.float32), drawn(5, 16, dtype=torch.float32)
    mixture(x)
    expected = mixture.routing
    with torch.autocast("cpu", torch.bfloat16):
        mixture(x)
    assert expected is not None and mixture.routing is not None
    assert torch.equal(mixture.routing.logits_NE, expected.logits_NE)


def test_no_grad_a_frozen_router_and_frozen_experts():
    mixture, x = mixture_of(4, 2), drawn(5, 16)
    with torch.no_grad():
        assert not mixture(x).requires_grad
    mixture.router.requires_grad_(False)
    mixture(x).sum().backward()
    assert mixture.router.weight.grad is None and mixture.experts.up.grad is not None
    mixture.router.requires_grad_(True)
    mixture.experts.requires_grad_(False)
    mixture(x).square().sum().backward()
    assert mixture.router.weight.grad is not None and mixture.router.weight.grad.any()


def test_no_tokens_give_no_tokens_and_gradients_of_0():
    mixture = mixture_of(4, 2, num_shared=1, capacity_factor=1.0)
    y = mixture(torch.zeros(2, 0, 16, dtype=torch.float64, requires_grad=True))
    y.sum().backward()
    assert y.shape == (2, 0, 16)
    assert all(param.grad is not None and not param.grad.any() for param in mixture.parameters())


def test_with_one_expert_of_each_token_the_router_learns():
    """Switch's weight is the score itself; normalized it would always be 1."""
    mixture, x = mixture_of(4, 1), drawn(5, 16)
    mixture(x).square().sum().backward()
    assert mixture.router.weight.grad is not None and mixture.router.weight.grad.any()


def test_what_cannot_be_is_refused():
    model = with_experts(GPT(CONFIG), 4, 2)
    refused: list[tuple[Any, str]] = [
        (lambda: with_experts(model, 4, 2), "a model with MLPs in its blocks: got one with mixtures"),
        (lambda: with_experts(GPT(CONFIG), 4, 5), "k must be at most the number of experts: got 5 of 4"),
        (lambda: with_experts(GPT(CONFIG), 4, 2, every=3), "every must be at most the number of blocks: got 3 of 2"),
        (
            lambda: with_experts(GPT(CONFIG), 4, 2, capacity=1.0),
            "unknown option 'capacity': did you mean 'capacity_factor'",
        ),
        (lambda: MixtureConfig(4, 2, product="loop"), "product must be a function of 3 arguments: got 'loop'"),  # pyright: ignore
        (lambda: mixture_of(4, 1, normalized=True)(drawn(3, 16)), "the router gets no gradient"),
        (lambda: mixture_of(64, 1, capacity_factor=1.0)(drawn(3, 16)), "at least one token: got factor 1 of 3"),
    ]
    for call, message in refused:
        with pytest.raises(ValueError, match=message):
            call()
