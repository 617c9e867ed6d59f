"""Attention of ranks that share every sequence: outputs and raw gradients of one device, whatever the order."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from lablib import RankError, launch, parallel
from tests.parallel.drawn import drawn

EXACT: Any = {"rtol": 1e-10, "atol": 1e-12}
THOROUGH = pytest.mark.thorough
BATCH, WIDTH = 2, 3
WAYS: dict[str, Any] = {
    "ring": parallel.ring_attention,
    "gather": parallel.gathered_attention,
    "ulysses": parallel.ulysses_attention,
}


def whole_inputs(heads: int, kv_heads: int, seq_len: int) -> list[Tensor]:
    return [drawn(BATCH, h, seq_len, WIDTH, seed=i) for i, h in enumerate((heads, kv_heads, kv_heads))]


def documents_of(lengths: list[int] | None, seq_len: int) -> list[list[int]] | None:
    """A row of such documents, padded, and a row of one document."""
    if lengths is None:
        return None
    row = [i for i, length in enumerate(lengths) for _ in range(length)]
    return [[*row, *[-1] * seq_len][:seq_len], [0] * seq_len]


def one_device(inputs: list[Tensor], documents: list[list[int]] | None, is_causal: bool) -> list[Tensor]:
    """Output and gradients; the loss weighs every number by another."""
    q, k, v = inputs = [x.clone().requires_grad_() for x in inputs]
    numbers = torch.tensor(documents or [[0] * q.shape[2]] * BATCH)
    seen = (numbers[:, :, None] == numbers[:, None])[:, None]
    keeps = (numbers >= 0)[:, None, :, None]
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen.tril() if is_causal else seen, enable_gqa=True) * keeps
    (y * drawn(*y.shape, seed=9)).sum().backward()
    return [y.detach(), *(x.grad for x in inputs if x.grad is not None)]


def shared(
    way: str, heads: tuple[int, int], order: parallel.Order, lengths: Any, is_causal: bool, **options: Any
) -> list[Tensor]:
    """The same of this rank's tokens."""
    inputs = whole_inputs(*heads, order.seq_len)
    documents = documents_of(lengths, order.seq_len)
    spans = None if documents is None else parallel.document_spans(documents)
    mine = order.tokens(dist.get_rank())
    q, k, v = own = [x[:, :, mine].clone().requires_grad_() for x in inputs]
    y = (both if way == "both" else WAYS[way])(q, k, v, order, documents=spans, is_causal=is_causal, **options)
    (y * drawn(BATCH, heads[0], order.seq_len, WIDTH, seed=9)[:, :, mine]).sum().backward()
    return [y.detach(), *(x.grad for x in own if x.grad is not None)]


def same(values: list[list[Tensor]], order: parallel.Order, expected: list[Tensor]) -> None:
    for rank, found in enumerate(values):
        torch.testing.assert_close(found, [x[:, :, order.tokens(rank)] for x in expected], **EXACT)


@pytest.mark.parametrize("way", WAYS)
@given(
    name=st.sampled_from(list(parallel.ORDERS)),
    n=st.integers(1, 5),
    more=st.integers(0, 9),
    kv_heads=st.sampled_from(["one", "ranks", "all"]),
    lengths=st.none() | st.lists(st.integers(1, 9), max_size=4),
    is_causal=st.booleans(),
)
@settings(max_examples=12)
def test_output_and_gradients_are_those_of_one_device(
    way: str, name: str, n: int, more: int, kv_heads: str, lengths: list[int] | None, is_causal: bool
):
    """Any order, uneven shards, one rank, odd ranks, shared and repeated key-value heads, documents and padding."""
    order, heads = parallel.order_of(name, 2 * n + more, n), (2 * n, {"one": 1, "ranks": n, "all": 2 * n}[kv_heads])
    expected = one_device(whole_inputs(*heads, order.seq_len), documents_of(lengths, order.seq_len), is_causal)
    same(launch(shared, way, heads, order, lengths, is_causal, ranks=n).values, order, expected)


def both(
    q: Tensor, k: Tensor, v: Tensor, order: parallel.Order, outer: parallel.Order, u: int, **options: Any
) -> Tensor:
    mesh = init_device_mesh("cpu", (outer.num_ranks, u), mesh_dim_names=("ring", "heads"))
    return parallel.ulysses_ring_attention(q, k, v, outer, mesh.get_group("heads"), mesh.get_group("ring"), **options)


@given(
    name=st.sampled_from(list(parallel.ORDERS)),
    sizes=st.sampled_from([(1, 3), (2, 2), (3, 1), (3, 2)]),
    more=st.integers(0, 7),
    is_grouped=st.booleans(),
    lengths=st.none() | st.lists(st.integers(1, 9), max_size=4),
)
@settings(max_examples=8)
def test_ulysses_inside_the_ring_is_attention_of_one_device(
    name: str, sizes: tuple[int, int], more: int, is_grouped: bool, lengths: list[int] | None
):
    ring, u = sizes
    outer = parallel.order_of(name, 2 * ring * u + more, ring)
    order, heads = parallel.nested_order(outer, u), (2 * u, 1 if is_grouped else u)
    expected = one_device(whole_inputs(*heads, order.seq_len), documents_of(lengths, order.seq_len), True)
    program = partial(shared, "both", heads, order, lengths, True, outer=outer, u=u)
    same(launch(program, ranks=ring * u).values, order, expected)


def test_real_processes_give_what_the_simulator_gives_and_the_simulator_repeats_to_the_bit():
    order = parallel.zigzag_order(11, 2)

    def all_ways() -> list[Tensor]:
        ways = [x for way in WAYS for x in shared(way, (4, 2), order, [4, 5], True)]
        return ways + shared("both", (4, 2), order, [4, 5], True, outer=order, u=1)

    first, again = (launch(all_ways, ranks=2).values for _ in range(2))
    assert all(torch.equal(a, b) for x, y in zip(first, again, strict=True) for a, b in zip(x, y, strict=True))
    expected = one_device(whole_inputs(4, 2, 11), documents_of([4, 5], 11), True)
    same(launch(all_ways, ranks=2, backend="gloo").values, order, expected * (len(WAYS) + 1))


def test_products_and_the_fused_kernel_agree_on_ranks():
    order = parallel.zigzag_order(12, 3)
    expected = one_device(whole_inputs(2, 1, 12), None, True)
    program = partial(shared, "ring", (2, 1), order, None, True, passes=parallel.PRODUCTS)
    same(launch(program, ranks=3).values, order, expected)


def test_a_gradient_that_is_one_number_for_all_is_taken():
    """That of a sum has strides of 0."""

    def program() -> Tensor:
        q = drawn(1, 2, 4, 3).requires_grad_()
        parallel.ring_attention(q, q, q, parallel.zigzag_order(8, 2)).sum().backward()
        assert q.grad is not None
        return q.grad

    def weighted() -> Tensor:
        q = drawn(1, 2, 4, 3).requires_grad_()
        y = parallel.ring_attention(q, q, q, parallel.zigzag_order(8, 2))
        y.backward(torch.ones_like(y))
        assert q.grad is not None
        return q.grad

    torch.testing.assert_close(launch(program, ranks=2).values, launch(weighted, ranks=2).values, **EXACT)


# ---- bytes, and what is hidden ----


def large(way: str, order: parallel.Order, kv_heads: int, dtype: torch.dtype = torch.bfloat16) -> None:
    n = dist.get_world_size()
    t = order.seq_len // n
    q, k, v = (torch.zeros(1, h, t, 64, dtype=dtype, requires_grad=True) for h in (8, kv_heads, kv_heads))
    dist.barrier()
    y = WAYS[way](q, k, v, order)
    y.backward(torch.ones_like(y))


@pytest.mark.parametrize("name", parallel.ORDERS)
def test_flops_counted_are_those_of_the_blocks_and_contiguous_ranks_have_unequal_ones(name: str):
    """torch counts a causal block as a whole one: what the mask leaves out inside of a kernel is not seen here."""
    n, t = 4, 64
    order = parallel.order_of(name, n * t, n)
    run = launch(large, "ring", order, 8, ranks=n, cluster="dgx-h100", fidelity="shapes")
    counted = [sum(s.flops for s in run.timeline.select(rank=rank) if "attention" in s.name) for rank in range(n)]
    whole = 14 * t * t * 8 * 64  # forward 4, backward 10, of one rank's queries and another's keys
    half = {"contiguous": [1, 2, 3, 4], "zigzag": [1 + 3 / 2] * n}
    if name in half:
        assert counted == [blocks * whole for blocks in half[name]]
    else:  # causal blocks of all rounds, and a token less each way for those of later ranks
        strict = whole * (t - 1) ** 2 / t**2
        assert counted == pytest.approx([(r + 1) * whole + (n - 1 - r) * strict for r in range(n)])


def test_messages_hide_behind_the_attention_to_what_came_before():
    """All but the last gradients, which have nothing behind them to hide; a contiguous ring waits for its last rank."""
    n, t = 4, 2**14
    for name in ("zigzag", "striped"):
        order = parallel.order_of(name, n * t, n)
        took = launch(large, "ring", order, 8, ranks=n, cluster="dgx-h100", fidelity="shapes").summary()
        last_s = 2 * 8 * t * 64 * 4 / 450e9
        for rank in range(n):
            assert took.communication_s[rank] > 5 * last_s
            later_s = max(took.busy_s) - took.busy_s[rank]  # the slowest rank's kernels: halves of blocks take longer
            assert took.exposed_s[rank] + took.waiting_s[rank] < 1.1 * last_s + later_s
    order = parallel.order_of("contiguous", n * t, n)
    slow = launch(large, "ring", order, 8, ranks=n, cluster="dgx-h100", fidelity="shapes").summary()
    assert 1.6 < slow.step_time_s / took.step_time_s < (2 * n - 1) / n
    assert slow.waiting_s[0] > 0.4 * slow.step_time_s and slow.waiting_s[n - 1] == 0


# ---- bad input ----


def test_tokens_that_are_not_the_orders_are_refused_on_the_rank():
    def program(tokens: int, ranks: int) -> None:
        x = drawn(1, 2, tokens, 4)
        parallel.ring_attention(x, x, x, parallel.zigzag_order(12, ranks))

    with pytest.raises(
        RankError, match=r"must be for the group's ranks: got one for 3 instead of 2; try order_of\('zigzag', 12"
    ):
        launch(program, 4, 3, ranks=2)

    def heads(number: int, kv_heads: int) -> None:
        q, k = drawn(1, number, 4, 4), drawn(1, kv_heads, 4, 4)
        parallel.ulysses_attention(q, k, k, parallel.zigzag_order(12, 3))

    with pytest.raises(RankError, match="num_heads must be a multiple of the ranks.*got 4 heads on 3 ranks; try 2"):
        launch(heads, 4, 4, ranks=3)
    with pytest.raises(RankError, match="key-value heads must be a multiple of the ranks, or divide them: got 2 on 3"):
        launch(heads, 6, 2, ranks=3)
    with pytest.raises(ValueError, match="each of 2 ring ranks must have a token for each of its 4 head ranks: got 3"):
        parallel.nested_order(parallel.zigzag_order(7, 2), 4)
    with pytest.raises(RankError, match="rank 0 must have 6 of 12 tokens, by its order: got 5"):
        launch(program, 5, 2, ranks=2)
