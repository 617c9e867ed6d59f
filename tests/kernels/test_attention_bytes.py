"""Bytes, FLOPs and memory of attention: the paper's formulas, sums over tiles, torch's counter, autograd's tensors."""

from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from lablib import launch
from lablib.kernels.accesses import distinct_bytes, hbm_bytes, record_accesses
from lablib.kernels.attention_bytes import (
    backward_flops,
    forward_bytes,
    forward_flops,
    kept_bytes,
    paper_flash_numbers,
    paper_tiles,
    standard_numbers,
)
from lablib.kernels.attention_plan import AttentionPlan, AttentionTiles, Tile, equal_lengths
from lablib.kernels.flash_attention import TILED, TRITON, flash_attention
from lablib.memory.saved_tensors import activation_bytes, saved_tensors
from tests.kernels.attention_formulas import backward_bytes, on_chip_bytes

WAYS = {"tiled": TILED, "triton": TRITON}
by_each = pytest.mark.parametrize("way", sorted(WAYS))
lengths = st.lists(st.tuples(st.integers(0, 13), st.integers(0, 13)), min_size=1, max_size=3)
tile = st.sampled_from([1, 2, 4, 8])


def plan_of(lengths: list[tuple[int, int]], is_causal: bool, tiles: AttentionTiles) -> AttentionPlan:
    starts_q, starts_k = (tuple(accumulate((pair[side] for pair in lengths), initial=0)) for side in (0, 1))
    return AttentionPlan(starts_q, starts_k, is_causal, tiles)


def example(N: int, heads: int = 1, kv_heads: int = 1, width: int = 4) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, count, N, width) for count in (heads, kv_heads, kv_heads)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


@settings(max_examples=6)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=2),
    is_causal=st.booleans(),
    heads=st.sampled_from([(1, 1), (4, 2)]),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
)
def test_the_kernels_move_exactly_the_bytes_of_the_formulas(lengths, is_causal, heads, dtype):
    """Every load and store of the interpreted kernels, counted."""
    plan = plan_of(lengths, is_causal, AttentionTiles(4, 2))
    (T, S), (H, G), K = (plan.starts_q[-1], plan.starts_k[-1]), heads, 3
    q, k, v, do = (torch.ones(tokens, count, K, dtype=dtype) for tokens, count in ((T, H), (S, G), (S, G), (T, H)))
    with record_accesses() as forward:
        o, lse = TRITON.forward(q, k, v, plan, 0.5)
    with record_accesses() as backward:
        TRITON.backward(do, q, k, v, o, lse, plan, 0.5)
    assert hbm_bytes(forward) == without_zeros(forward_bytes(plan, H, K, dtype.itemsize))
    moved = {launch.kernel.removesuffix("_kernel"): hbm_bytes([launch]) for launch in backward}
    for kernel, formula in backward_bytes(plan, H, G, K, dtype.itemsize).items():
        assert moved.get(kernel, {}) == without_zeros(formula)


def test_a_perfect_cache_would_leave_each_tensor_read_once():
    """Between this and `forward_bytes` lies what a GPU reads: heads of a group, and tiles of queries, share keys."""
    plan = equal_lengths(1, 8, 8, tiles=AttentionTiles(4, 2))
    q, k = torch.ones(8, 4, 3), torch.ones(8, 2, 3)
    with record_accesses() as launches:
        TRITON.forward(q, k, k.clone(), plan, 0.5)
    once = {
        "q": q.nbytes,
        "k": k.nbytes,
        "v": k.nbytes,
        "o": q.nbytes,
        "lse": 4 * 8 * 4,
        "starts_q": 16,
        "starts_k": 16,
    }
    assert distinct_bytes(launches) == once
    again = forward_bytes(plan, 4, 3, 4)
    assert again["k"] == 2 * 2 * once["k"]  # two tiles of queries, two heads of a group


def without_zeros(moved: dict[str, int]) -> dict[str, int]:
    return {name: size for name, size in moved.items() if size}


@given(lengths=lengths, is_causal=st.booleans(), B=tile, C=tile)
def test_the_loops_visit_the_tiles_in_which_a_query_sees_a_key(lengths, is_causal, B, C):
    plan = plan_of(lengths, is_causal, AttentionTiles(B, C))
    visited = {(queries, keys) for queries in plan.query_tiles() for keys in plan.keys_of(queries)}
    with_something = set()
    for document, (t, s) in enumerate(lengths):
        for at in range(0, t, B):
            for to in range(0, s, C):
                queries, keys = Tile(document, at, min(at + B, t)), Tile(document, to, min(to + C, s))
                if plan.mask(queries, keys).any():
                    with_something.add((queries, keys))
    assert visited == with_something


@settings(max_examples=10)
@given(N=st.integers(1, 20), heads=st.sampled_from([1, 2]), width=st.integers(1, 5), is_causal=st.booleans())
def test_flops_by_formula_are_those_torch_counts(N, heads, width, is_causal):
    q, k, v = example(N, heads, heads, width)
    tiles = AttentionTiles(8, 4)
    plan = equal_lengths(1, N, N, is_causal, tiles)
    with FlopCounterMode(display=False) as counter:
        output = flash_attention(q, k, v, is_causal, tiles=tiles, passes=TILED)
    assert counter.get_total_flops() == forward_flops(plan, heads, width)
    with FlopCounterMode(display=False) as counter:
        output.sum().backward()
    # The reference is one loop: it makes s and dp once, five products instead of seven.
    assert counter.get_total_flops() * 7 == backward_flops(plan, heads, width) * 5


def test_the_papers_counts_grow_as_theorem_2_says():
    """Standard: 4 N^2 for N >> d. FlashAttention: 12 N^2 d^2 / M for M << N d, and 4 / 3d more for l and m."""
    assert standard_numbers(1 << 20, 64) / (4 * (1 << 40)) == pytest.approx(1, rel=1e-3)
    d, M = 64, 1 << 20
    for N in (1 << 20, 1 << 22):
        assert paper_flash_numbers(N, d, M) / (12 * N * N * d * d / M) == pytest.approx(1 + 4 / (3 * d), rel=0.01)
    # Twice the room, half the numbers; twice the width, four times as many.
    assert paper_flash_numbers(N, d, 2 * M) / paper_flash_numbers(N, d, M) == pytest.approx(0.5, rel=0.02)
    assert paper_flash_numbers(N, 2 * d, M) / paper_flash_numbers(N, d, M) == pytest.approx(4, rel=0.04)
    # With room for all keys at once: a few times the input, as the theorem's end of the range says.
    assert paper_flash_numbers(512, 64, 4 * 512 * 64) == 6 * 512 * 64 + 6 * 512


def test_the_papers_tiles():
    """192 KB of an A100's multiprocessor hold 98,304 numbers of two bytes: d = 64 gives 384 keys and 64 queries."""
    assert paper_tiles(64, 192 * 1024 // 2) == (64, 384)
    assert paper_tiles(64, 1024) == (4, 4)
    with pytest.raises(ValueError, match="must be from 1 to the numbers on chip: got 64 and 63"):
        paper_tiles(64, 63)


def test_a_long_row_moves_far_fewer_bytes_than_standard_attention():
    """4 N^2 against 2 d N^2 / B: the limit is 2 B / d, 8 for the 256 queries that an A100 has room for."""
    N, d = 4096, 64
    tiles = AttentionTiles(256, 16)
    assert on_chip_bytes(tiles, d, 2) <= 192 * 1024 < on_chip_bytes(AttentionTiles(512, 16), d, 2)
    ours = sum(forward_bytes(equal_lengths(1, N, N, tiles=tiles), 1, d, itemsize=2).values())
    assert 7 * ours < 2 * standard_numbers(N, d) < 8 * ours


@by_each
@settings(max_examples=10)
@given(N=st.integers(1, 20), heads=st.sampled_from([(1, 1), (4, 2), (3, 1)]), width=st.integers(1, 5))
def test_what_is_kept_for_backward_grows_with_n(way, N, heads, width):
    q, k, v = example(N, heads[0], heads[1], width)
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    ours = flash_attention(q, k, v, passes=WAYS[way])
    assert activation_bytes(saved_tensors(ours)) == kept_bytes(N, N, heads[0], heads[1], width, itemsize=8)
    # Standard attention, with a head of its own for each: p beside q, k and v.
    q, k, v = example(N, heads[0], heads[0], width)
    standard = (q[0] @ k[0].mT).softmax(-1) @ v[0]
    assert activation_bytes(saved_tensors(standard)) == (3 * N * width + N * N) * heads[0] * 8


def peak_bytes(attend, N: int) -> float:
    """Of attention, forward and backward, on the memory tracker."""

    def program():
        attend(*example(N)).sum().backward()

    return launch(program, ranks=1).memory.peak_bytes(0)


def test_the_peak_of_the_tracker_grows_with_n_where_standard_attention_grows_with_its_square():
    """At lengths for which scores are most of standard attention's memory: twice the tokens, four times the bytes."""

    def standard(q, k, v):
        return (q @ k.mT).softmax(-1) @ v

    for passes in WAYS.values():

        def flash(q, k, v, passes=passes):
            return flash_attention(q, k, v, tiles=AttentionTiles(64, 64), passes=passes)

        assert peak_bytes(flash, 512) <= 2 * peak_bytes(flash, 256)
    assert peak_bytes(standard, 512) >= 3.8 * peak_bytes(standard, 256)


def test_on_chip_bytes_by_hand():
    """64 queries, 32 keys, width 48 in a tile of 64, bfloat16: q 8192, k and v 4096 each; o 16384, s 8192, m, l 512."""
    assert on_chip_bytes(AttentionTiles(64, 32), 48, 2) == 8192 + 2 * 4096 + 16384 + 8192 + 512
