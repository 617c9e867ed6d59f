"""Orders of tokens, and attention in pieces: against masks that are counted, and against torch's attention."""

import doctest
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lablib.batches.packed_attention import document_mask
from lablib.parallel import (
    ORDERS,
    PRODUCTS,
    Order,
    attention_flops,
    attention_in_blocks,
    balance,
    blocks_of,
    contiguous_order,
    document_spans,
    merge_attention,
    nested_order,
    order_of,
    striped_order,
    visible_pairs,
    zigzag_order,
)
from lablib.parallel.context import blocks as context_blocks
from lablib.parallel.context import order as context_order
from lablib.parallel.context import ulysses_and_ring as context_both
from lablib.parallel.context.merge import FUSED
from lablib.parallel.context.order import within
from lablib.parallel.mesh import mesh
from tests.parallel.drawn import drawn

EXACT: Any = {"rtol": 1e-11, "atol": 1e-13}
names = st.sampled_from(list(ORDERS))
ranks = st.integers(1, 5)


def numbered(lengths: list[int], seq_len: int) -> list[int]:
    """The number of each token's document; what no document fills is padding."""
    tokens = [i for i, length in enumerate(lengths) for _ in range(length)]
    return [*tokens, *[-1] * seq_len][:seq_len]


def mask_of(documents: list[int] | None, seq_len: int, is_causal: bool) -> Tensor:
    numbers = torch.tensor(documents if documents else [0] * seq_len)
    seen = (numbers[:, None] == numbers[None]) & (numbers >= 0)
    return seen.tril() if is_causal else seen


# ---- orders ----


@given(name=names, n=ranks, more=st.integers(0, 17))
def test_an_order_gives_each_token_to_one_rank_and_its_inverse_puts_them_back(name: str, n: int, more: int):
    order = order_of(name, 2 * n + more, n)
    x = torch.arange(2 * n + more)
    laid = x[order.permutation()]
    assert torch.equal(laid[order.inverse()], x)
    assert [tokens.tolist() for tokens in laid.split(order.lengths)] == [order.tokens(rank) for rank in range(n)]
    assert max(order.lengths) - min(order.lengths) <= 2
    assert order.is_in_turn == (order.permutation() == list(range(order.seq_len)))


@given(name=names, n=ranks, u=st.integers(1, 4), more=st.integers(0, 9))
def test_a_nested_order_cuts_what_the_outer_one_gives_to_each_rank(name: str, n: int, u: int, more: int):
    outer = order_of(name, 2 * n * u + more, n)
    nested = nested_order(outer, u)
    for rank in range(n):
        parts = [nested.tokens(rank * u + j) for j in range(u)]
        assert [token for part in parts for token in part] == outer.tokens(rank)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_the_orders_are_those_of_the_papers():
    assert [list(range(*r.indices(8))) for r in (slice(0, 4), slice(4, 8))] == [
        contiguous_order(8, 2).tokens(rank) for rank in (0, 1)
    ]
    # Llama 3: 2n chunks, rank i has the i-th and the (2n - 1 - i)-th.
    chunks = torch.arange(24).chunk(8)
    assert all(zigzag_order(24, 4).tokens(i) == torch.cat([chunks[i], chunks[7 - i]]).tolist() for i in range(4))
    assert striped_order(8, 4).tokens(3) == [3, 7]


@given(
    name=names, n=ranks, more=st.integers(0, 9), lengths=st.lists(st.integers(1, 9), max_size=5), causal=st.booleans()
)
def test_pairs_by_formula_are_those_of_the_mask_counted(name: str, n: int, more: int, lengths: list[int], causal: bool):
    order = order_of(name, 2 * n + more, n)
    for documents in (None, numbered(lengths, order.seq_len)):
        mask = mask_of(documents, order.seq_len, causal)
        spans = None if documents is None else document_spans([documents])[0]
        counted = tuple(int(mask[order.tokens(rank)].sum()) for rank in range(n))
        assert visible_pairs(order, spans, causal) == counted
        expected = sum(counted) / n / max(counted) if any(counted) else 1.0
        assert balance(order, spans, causal) == pytest.approx(expected)


def test_the_last_of_eight_contiguous_ranks_has_nearly_twice_the_mean():
    assert balance(contiguous_order(2**17, 8)) == pytest.approx(8 / 15, rel=1e-4)
    assert balance(zigzag_order(2**17, 8)) == 1.0
    assert balance(striped_order(2**17, 8)) == pytest.approx(1.0, rel=1e-4)
    assert attention_flops(10, 2, 4) == 4 * 10 * 2 * 4 and attention_flops(10, 2, 4, backward=True) == 800


@given(
    start=st.integers(0, 9), length=st.integers(0, 9), step=st.integers(1, 4), a=st.integers(0, 20), b=st.integers(0, 9)
)
def test_within_is_the_intersection(start: int, length: int, step: int, a: int, b: int):
    piece, span = range(start, start + step * length, step), range(a, a + b)
    assert list(within(piece, span)) == [token for token in piece if token in span]


# ---- blocks ----


@given(
    name=names,
    n=ranks,
    more=st.integers(0, 9),
    lengths=st.none() | st.lists(st.integers(1, 9), max_size=5),
    causal=st.booleans(),
)
def test_blocks_cover_what_is_seen_once_and_nothing_else(
    name: str, n: int, more: int, lengths: list[int] | None, causal: bool
):
    order = order_of(name, 2 * n + more, n)
    documents = None if lengths is None else [numbered(lengths, order.seq_len), [0] * order.seq_len]
    spans = None if documents is None else document_spans(documents)
    masks = [mask_of(row, order.seq_len, causal) for row in documents or [None]]
    for queries in range(n):
        for keys in range(n):
            found = torch.zeros(len(masks), order.lengths[queries], order.lengths[keys], dtype=torch.int)
            for block in blocks_of(order.pieces[queries], order.pieces[keys], spans, causal):
                part = found[block.rows, block.queries, block.keys]
                assert part.numel()
                part += part.new_ones(part.shape).tril() if block.is_causal else 1
            for row, mask in enumerate(masks):
                assert torch.equal(found[row], mask[order.tokens(queries)][:, order.tokens(keys)].int())


def test_a_zigzag_rank_has_one_kernel_for_each_other_rank_and_a_whole_sequence_one():
    """Half of the queries, or half of the keys: so all rounds of all ranks are of one size."""
    order = zigzag_order(16, 2)
    assert [(b.queries, b.keys, b.is_causal) for b in blocks_of(order.pieces[0], order.pieces[1])] == [
        (slice(4, 8), slice(0, 8), False)
    ]
    assert [(b.queries, b.keys) for b in blocks_of(order.pieces[1], order.pieces[0])] == [(slice(0, 8), slice(0, 4))]
    assert [b.is_causal for b in blocks_of(order.pieces[1], order.pieces[1])] == [True]
    assert blocks_of([range(0, 4), range(4, 9)], [range(0, 9)]) == blocks_of([range(9)], [range(9)])
    turned = [range(4, 8), range(0, 4)]  # tokens that do not ascend are no stairs
    assert [(b.queries.start, b.keys.start, b.is_causal) for b in blocks_of(turned, turned)] == [
        (0, 4, False),
        (0, 0, True),
        (4, 4, True),
    ]
    assert blocks_of(contiguous_order(8, 2).pieces[0], contiguous_order(8, 2).pieces[1]) == []


@pytest.mark.parametrize("passes", [PRODUCTS, FUSED], ids=["products", "fused"])
@given(
    heads=st.sampled_from([(1, 1), (4, 2), (3, 1)]),
    sizes=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    cut=st.integers(0, 7),
    causal=st.booleans(),
)
@settings(max_examples=15)
def test_parts_of_the_keys_merged_are_attention_over_all(
    passes: Any, heads: tuple[int, int], sizes: tuple[int, int], cut: int, causal: bool
):
    t, s = sizes
    q, k, v = drawn(2, heads[0], t, 3), drawn(2, heads[1], s, 3, seed=1), drawn(2, heads[1], s, 3, seed=2)
    cut = min(cut, s)
    # Keys end where queries do, as in a cache: query i sees keys 0 to i + s - t.
    queries, first = range(s, s + t) if s > t else range(t), 0
    keys = [piece for piece in (range(first, cut), range(cut, s)) if piece]
    blocks = blocks_of([queries], keys, None, causal)
    seen = torch.tensor([[not causal or key <= query for key in range(s)] for query in queries])
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    expected = F.scaled_dot_product_attention(*inputs, attn_mask=seen, enable_gqa=True)  # pyright: ignore[reportArgumentType]
    grads = torch.autograd.grad(expected.square().sum(), inputs)
    found = attention_in_blocks(inputs[0], inputs[1], inputs[2], blocks, passes)
    torch.testing.assert_close(found, expected, **EXACT)
    torch.testing.assert_close(torch.autograd.grad(found.square().sum(), inputs), grads, **EXACT)


def test_packed_documents_are_attention_with_the_document_mask_and_padding_gets_zeros():
    documents = torch.tensor([[0, 0, 0, 1, 1, -1], [0, 1, 1, 1, 1, 1]])
    spans = document_spans(documents.tolist())
    q, k, v = (drawn(2, 4, 6, 3, seed=seed).requires_grad_() for seed in range(3))
    whole = [range(6)]
    found = attention_in_blocks(q, k, v, blocks_of(whole, whole, spans))
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=document_mask(documents))
    keeps = (documents >= 0)[:, None, :, None]
    torch.testing.assert_close(found, expected * keeps, **EXACT)
    grads = [torch.autograd.grad((y * drawn(*y.shape, seed=9) * keeps).sum(), (q, k, v)) for y in (found, expected)]
    torch.testing.assert_close(*grads, **EXACT)


@given(cut=st.integers(0, 6), scale=st.sampled_from([1.0, 300.0]))
@settings(max_examples=10)
def test_merging_is_exact_in_any_order_also_where_exponentials_overflow(cut: int, scale: float):
    scores, v = scale * drawn(3, 6), drawn(6, 2, seed=1)

    def part(keys: slice) -> tuple[Tensor, Tensor]:
        return scores[:, keys].softmax(-1) @ v[keys], scores[:, keys].logsumexp(-1)

    first, second = part(slice(0, cut)), part(slice(cut, 6))
    for merged in (merge_attention(*first, *second), merge_attention(*second, *first)):
        torch.testing.assert_close(merged, part(slice(0, 6)), **EXACT)
    nothing = (torch.full((3, 2), 7.0, dtype=torch.float64), torch.full((3,), float("-inf"), dtype=torch.float64))
    assert torch.equal(merge_attention(*first, *nothing)[0], first[0]) if cut else True
    assert merge_attention(*nothing, *nothing)[1].isneginf().all()


def test_half_precision_is_merged_in_32_bits():
    q, k, v = (drawn(1, 2, 64, 8, seed=seed) for seed in range(3))
    exact = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    half = [x.bfloat16() for x in (q, k, v)]
    order = zigzag_order(64, 8)
    pieces = [piece for rank in order.pieces for piece in rank]
    blocks = blocks_of([range(64)], sorted(pieces, key=lambda piece: piece.start))
    found = attention_in_blocks(half[0], half[1], half[2], blocks)
    assert found.dtype == torch.bfloat16
    assert (found - exact).abs().max() < 0.03


@pytest.mark.parametrize("module", [context_order, context_blocks, context_both, mesh])
def test_examples_in_docstrings_are_true(module: Any):
    found = doctest.testmod(module)
    assert found.attempted and not found.failed


# ---- bad input ----


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: zigzag_order(7, 4), "got 7 tokens for the 8 pieces of zigzag on 4 ranks; try 8 tokens, or 3 ranks"),
        (lambda: contiguous_order(3, 4), "got 3 tokens for the 4 pieces of contiguous on 4 ranks; try 4 tokens"),
        (lambda: Order("mine", ((range(0, 4), range(3, 6)),)), "tokens of a rank must ascend"),
        (lambda: Order("mine", ((range(0, 4), range(9, 6)), (range(4, 6),), (range(5, 7),))), "each position once"),
        (lambda: Order("mine", ((range(3, -1, -1),),)), "tokens of a rank must ascend"),
        (lambda: Order("mine", ((range(0, 2),), (range(6, 8),))), "each position once"),
        (lambda: Order("mine", ((range(-2, 2),),)), "each position once"),
        (lambda: Order("mine", ((range(-2, 4, 2),),)), "each position once"),
        (lambda: Order("mine", ((range(0, 20, 5),),)), "each position once"),
        (lambda: Order("mine", ((range(0, 4),), (range(3, 6),))), "must have each position once"),
        (lambda: Order("mine", ((range(2, 4), range(0, 2)),)), "tokens of a rank must ascend"),
    ],
)
def test_what_cannot_be_an_order_is_refused(call: Any, message: str):
    with pytest.raises(ValueError, match=message):
        call()
