"""Dispatch, products of groups and combine: every token by itself is the reference; drops in closed form."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lablib import launch
from lablib.parallel import (
    LATEST,
    SCORE,
    Drop,
    Routing,
    combine,
    dispatch,
    expert_capacity,
    grouped_product,
    loop_product,
    naive_combine,
    naive_dispatch,
    naive_masks,
    padded_product,
    route,
    sort_by_expert,
)

EXACT: Any = {"rtol": 1e-11, "atol": 1e-12}
PRODUCTS: Any = {"loop": loop_product, "padded": padded_product, "grouped": grouped_product}


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return made.to(dtype).requires_grad_()


def one_by_one(x_ND: Tensor, w_EDF: Tensor, routing: Routing, kept: set[tuple[int, int]]) -> Tensor:
    """The definition: for each token, the sum over the choices that were kept."""
    rows = [torch.zeros_like(x_ND[0] @ w_EDF[0]) for _ in x_ND]
    for i, j in kept:
        rows[i] = rows[i] + routing.weights_Nk[i, j] * (x_ND[i] @ w_EDF[routing.experts_Nk[i, j]])
    return torch.stack(rows)


def kept_choices(routing: Routing, capacity: int | None, drop: Drop) -> set[tuple[int, int]]:
    """Of each expert's choices the first ones by arrival, or by weight and then arrival."""
    kept: set[tuple[int, int]] = set()
    for expert in range(routing.num_experts):
        came = [
            (i, j)
            for j in range(routing.k)
            for i in range(routing.num_tokens)
            if routing.experts_Nk[i, j].item() == expert
        ]
        if drop is SCORE:
            came.sort(key=lambda choice: -routing.weights_Nk[choice].item())  # sort is stable
        kept.update(came[:capacity])
    return kept


def grads_of(y: Tensor, *inputs: Tensor) -> list[Tensor]:
    """The loss weighs every number by another."""
    weights = torch.arange(1.0, y.numel() + 1, dtype=y.dtype).view(y.shape)
    return [y.detach(), *torch.autograd.grad((y * weights).sum(), inputs, retain_graph=True)]


@given(
    tokens=st.integers(1, 9),
    num_experts=st.integers(1, 5),
    k=st.integers(1, 5),
    capacity=st.none() | st.integers(1, 6),
    drop=st.sampled_from(list(Drop)),
    product=st.sampled_from(["loop", "padded"]),
    skew=st.sampled_from([0.0, 50.0]),
)
@settings(max_examples=40)
def test_outputs_and_gradients_are_those_of_each_token_by_itself(
    tokens: int, num_experts: int, k: int, capacity: int | None, drop: Drop, product: str, skew: float
):
    """Of inputs, experts and logits. With skew all first choices are one expert's, and others have none."""
    k = min(k, num_experts)
    x, w, logits = drawn(tokens, 3), drawn(num_experts, 3, 2, seed=1), drawn(tokens, num_experts, seed=2)
    tilted = logits * 3
    tilted = torch.cat([tilted[:, :1] + skew, tilted[:, 1:]], 1)
    routing = route(tilted, k)
    permutation = sort_by_expert(routing, capacity, drop)
    y = combine(PRODUCTS[product](dispatch(x, permutation), w, permutation.counts), permutation, routing.weights_Nk)
    kept = kept_choices(routing, capacity, drop)
    expected = one_by_one(x, w, routing, kept)
    torch.testing.assert_close(grads_of(y, x, w, logits), grads_of(expected, x, w, logits), **EXACT)
    assert permutation.num_dropped == tokens * k - len(kept) == tokens * k - sum(permutation.counts)
    if drop is LATEST:
        takes, weighs = naive_masks(routing, capacity or tokens)
        naive = naive_combine(naive_dispatch(x, takes) @ w, weighs)
        torch.testing.assert_close(grads_of(naive, x, w, logits), grads_of(expected, x, w, logits), **EXACT)


def test_rows_lie_expert_behind_expert_in_order_of_arrival():
    experts = torch.tensor([[1, 0], [1, 2], [0, 1]])
    routing = Routing(experts, torch.ones(3, 2), torch.zeros(3, 3), torch.zeros(3, 3))
    permutation = sort_by_expert(routing)
    assert permutation.counts == (2, 3, 1)
    # First choices before second ones: expert 0 hears token 2 before token 0.
    assert permutation.tokens_M.tolist() == [2, 0, 0, 1, 2, 1]
    assert sort_by_expert(routing, 1).tokens_M.tolist() == [2, 0, 1] and sort_by_expert(routing, 1).num_dropped == 3


@pytest.mark.parametrize("drop", Drop)
def test_all_tokens_to_one_expert_drops_all_but_its_capacity(drop: Drop):
    """Closed form: with factor f an expert has f N k / E permutation, so 1 - f / E of the tokens are dropped."""
    logits = torch.tensor([[9.0, 0.0, 0.0, 0.0]] * 64) + torch.linspace(0, 1, 64)[:, None] * torch.tensor([1, 0, 0, 0])
    capacity = expert_capacity(64, 1, 4, 1.25)
    permutation = sort_by_expert(route(logits, 1), capacity, drop)
    assert (capacity, permutation.counts, permutation.num_dropped) == (20, (20, 0, 0, 0), 44)
    # The latest to go are the last; by score the first, whose weights are least.
    assert permutation.tokens_M.tolist() == list(range(44, 64) if drop is SCORE else range(20))


def test_what_is_dropped_says_nothing_and_gets_no_gradient():
    x, logits = drawn(4, 3), drawn(4, 2, seed=3)
    routing = route(logits * 0 + torch.tensor([1.0, 0.0]), 1)
    permutation = sort_by_expert(routing, 1)
    y = combine(dispatch(x, permutation), permutation, routing.weights_Nk)
    x_grad, weight_grad = torch.autograd.grad(y.sum(), (x, routing.weights_Nk))
    assert not y[1:].any() and not x_grad[1:].any() and not weight_grad[1:].any()
    assert y[0].all() and x_grad[0].all() and weight_grad[0].all()


# ---- products ----


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("counts", [(3, 0, 4), (0, 0, 0), (7, 0, 0), (2, 2, 2)])
def test_products_agree_forward_and_backward(counts: tuple[int, ...], dtype: torch.dtype):
    inputs = drawn(sum(counts), 8, dtype=dtype), drawn(3, 8, 16, seed=1, dtype=dtype)
    expected = grads_of(loop_product(*inputs, counts), *inputs)
    names = ["padded"] if dtype == torch.float64 else ["padded", "grouped"]
    for name in names:
        found = grads_of(PRODUCTS[name](*inputs, counts), *inputs)
        tolerance = {torch.float64: 1e-12, torch.float32: 1e-4, torch.bfloat16: 0.1}[dtype]
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_the_gradient_of_a_sum_is_taken_by_the_grouped_kernel():
    x, w = drawn(4, 8, dtype=torch.float32), drawn(2, 8, 16, seed=1, dtype=torch.float32)
    grouped_product(x, w, (1, 3)).sum().backward()
    assert x.grad is not None


def grouped_flops(product: str, dtype: torch.dtype, counts: Sequence[int]) -> float:
    def program() -> None:
        x, w = torch.zeros(sum(counts), 64, dtype=dtype), torch.zeros(len(counts), 64, 128, dtype=dtype)
        y = PRODUCTS[product](x.requires_grad_(), w.requires_grad_(), counts)
        y.backward(torch.ones_like(y))

    return sum(span.flops for span in launch(program, ranks=1, fidelity="shapes").timeline.spans)


def test_the_simulator_counts_products_by_rows_and_padding_by_the_longest_group():
    m, d, f = 160, 64, 128
    for product in ("loop", "padded", "grouped"):
        assert grouped_flops(product, torch.bfloat16, (40, 40, 40, 40)) == 6 * m * d * f
        padded = 100 * 4 / m if product == "padded" else 1
        assert grouped_flops(product, torch.bfloat16, (100, 20, 40, 0)) == 6 * m * d * f * padded


# ---- bad input ----


def test_what_cannot_be_is_refused():
    x, w, routing = torch.zeros(3, 4), torch.zeros(2, 4, 8), route(torch.zeros(3, 2), 1)
    refused: list[tuple[Any, str]] = [
        (lambda: dispatch(torch.zeros(4, 4), sort_by_expert(routing)), "got one for 3 instead of 4 tokens"),
        (
            lambda: combine(x[:2], sort_by_expert(routing), torch.zeros(3, 1)),
            "got 2 rows and weights .3, 1. for 3 rows",
        ),
        (lambda: combine(x, sort_by_expert(routing), torch.zeros(1, 3)), r"weights .1, 3. for 3 rows of \[3, 1\]"),
        (
            lambda: expert_capacity(8, 1, 16, 1.0),
            r"got factor 1 of 8 tokens x 1 choices / 16 experts = 0.5; try a .* 2",
        ),
        (lambda: expert_capacity(8, 1, 16, float("nan")), "room for at least one token: got factor nan"),
        (lambda: expert_capacity(8, 3, 2, 1.0), "k must be at most the number of experts: got 3 of 2"),
        (lambda: loop_product(x, w, (3,)), "counts must be of 2 groups and sum to 3 rows: got 1 groups of 3"),
        (lambda: padded_product(x, w, (3, 1)), "got 2 groups of 4 rows"),
        (lambda: grouped_product(x.double(), w.double(), (3, 0)), "got torch.float64 .* use loop_product"),
        (lambda: grouped_product(x[:, :3], w[:, :3], (3, 0)), "a multiple of 16 bytes: got 3 and 8 numbers of 4 bytes"),
    ]
    for call, message in refused:
        with pytest.raises(ValueError, match=message):
            call()


def test_no_tokens_and_inputs_that_are_not_contiguous_are_taken():
    logits, wide = torch.zeros(0, 3), torch.zeros(0, 8)[:, ::2]
    permutation = sort_by_expert(route(logits, 2))
    y = combine(dispatch(wide, permutation), permutation, route(logits, 2).weights_Nk)
    assert (
        y.shape == (0, 4) and permutation.counts == (0, 0, 0) and sort_by_expert(route(logits, 2), 1).num_dropped == 0
    )
    x = drawn(4, 6).T
    routing = route(drawn(6, 3, seed=1), 2)
    permutation = sort_by_expert(routing, 2)
    y = combine(dispatch(x, permutation), permutation, routing.weights_Nk)
    again = combine(dispatch(x.contiguous(), permutation), permutation, routing.weights_Nk)
    assert torch.equal(y, again)
