"""FlashAttention in tiles, by Triton and by plain torch: the attention and the gradients of torch."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from lablib.batches.packed_attention import attend_by_length, attend_by_mask
from lablib.batches.packing import best_fit, fill_blocks
from lablib.kernels.attention_plan import AttentionTiles
from lablib.kernels.flash_attention import TILED, TRITON, flash_attention, flash_attention_varlen
from tests.kernels.drawn import unchecked

WAYS = {"tiled": TILED, "triton": TRITON}
TILES = AttentionTiles(8, 4)
by_each = pytest.mark.parametrize("way", sorted(WAYS))
length = st.sampled_from([1, 3, 4, 5, 7, 8, 9, 11])
Four = tuple[Tensor, Tensor, Tensor, Tensor]
heads = st.sampled_from([(1, 1), (2, 2), (2, 1), (4, 2), (3, 1)])


def example(t: int, s: int, num_heads=(1, 1), width=4, batch=(), seed=0, dtype=torch.float64, size=1.0) -> Four:
    """q, k, v and the gradient of o; [T H K] without a batch, else [B H T K]."""
    generator = torch.Generator().manual_seed(seed)

    def made(tokens: int, count: int) -> Tensor:
        shape = (*batch, count, tokens, width) if batch else (tokens, count, width)
        return (size * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype).requires_grad_()

    return made(t, num_heads[0]), made(s, num_heads[1]), made(s, num_heads[1]), made(t, num_heads[0])


def standard(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float | None = None) -> Tensor:
    """[B H T K] by torch, bottom-right; rows that see nothing are left out of the sum, and are zeros."""
    t, s = q.shape[-2], k.shape[-2]
    mask = torch.ones(t, s, dtype=torch.bool).tril(s - t if is_causal else s)
    if not mask.any():
        return torch.zeros_like(q) * q
    first = int(mask.any(-1).int().argmax())
    seen = F.scaled_dot_product_attention(q[..., first:, :], k, v, mask[first:], scale=scale, enable_gqa=True)
    return torch.cat([torch.zeros_like(q[..., :first, :]), seen], -2)


def standard_varlen(q: Tensor, k: Tensor, v: Tensor, lengths: list[tuple[int, int]], is_causal: bool) -> Tensor:
    """Each document by itself."""
    outputs, at, to = [], 0, 0
    for t, s in lengths:
        mine, keys, values = (x[None].transpose(1, 2) for x in (q[at : at + t], k[to : to + s], v[to : to + s]))
        seen = standard(mine, keys, values, is_causal).transpose(1, 2)[0] if t and s else 0 * q[at : at + t]
        outputs.append(seen)
        at, to = at + t, to + s
    return torch.cat(outputs)


def assert_same(ours: Tensor, theirs: Tensor, inputs: Four, rtol: float = 1e-11, atol: float = 1e-12) -> None:
    """The same output, and the same gradient of each of q, k, v."""
    q, k, v, do = inputs
    torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol)
    got = torch.autograd.grad(ours, (q, k, v), do)
    expected = torch.autograd.grad(theirs, (q, k, v), do, allow_unused=True)
    for gradient, want, x in zip(got, expected, (q, k, v), strict=True):
        torch.testing.assert_close(gradient, torch.zeros_like(x) if want is None else want, rtol=rtol, atol=atol)


def cu_seqlens(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()


@by_each
@settings(max_examples=8)
@given(t=length, s=length, num_heads=heads, width=st.sampled_from([1, 3, 4, 5]), is_causal=st.booleans())
def test_equals_torchs_attention_and_its_gradients(way, t, s, num_heads, width, is_causal):
    inputs = example(t, s, num_heads, width, batch=(1,))
    ours = flash_attention(*inputs[:3], is_causal=is_causal, tiles=TILES, passes=WAYS[way])
    assert_same(ours, standard(*inputs[:3], is_causal), inputs)


@by_each
@settings(max_examples=4)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=3),
    is_causal=st.booleans(),
    num_heads=heads,
)
def test_documents_do_not_see_each_other(way, lengths, is_causal, num_heads):
    starts_q, starts_k = (cu_seqlens([pair[side] for pair in lengths]) for side in (0, 1))
    inputs = example(int(starts_q[-1]), int(starts_k[-1]), num_heads)
    ours = flash_attention_varlen(*inputs[:3], starts_q, starts_k, is_causal, tiles=TILES, passes=WAYS[way])
    assert_same(ours, standard_varlen(*inputs[:3], lengths, is_causal), inputs)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("tiles", [AttentionTiles(2, 8), AttentionTiles(16, 4)])
@by_each
def test_any_tile_gives_the_same(way, tiles, is_causal):
    inputs = example(5, 6, (2, 1))
    ours = flash_attention_varlen(
        *inputs[:3], cu_seqlens([5]), cu_seqlens([6]), is_causal, scale=0.3, tiles=tiles, passes=WAYS[way]
    )
    q, k, v = (x.transpose(0, 1)[None] for x in inputs[:3])
    assert_same(ours, standard(q, k, v, is_causal, 0.3)[0].transpose(0, 1), inputs)


@by_each
def test_causal_is_bottom_right(way):
    """For T < S the mask is torch's `causal_lower_right`; for T = S torch's `is_causal=True`."""
    for t in (5, 9):
        q, k, v, _ = example(t, 9, batch=(1,))
        ours = flash_attention(q, k, v, is_causal=True, tiles=TILES, passes=WAYS[way])
        theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=causal_lower_right(t, 9))
        torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(ours, F.scaled_dot_product_attention(q, k, v, is_causal=True))


@by_each
def test_the_log_sum_exp_is_torchs(way):
    q, k, v, _ = example(9, 9, (4, 2))
    plan_of_nine = flash_attention_varlen(q, k, v, cu_seqlens([9]), tiles=TILES, passes=WAYS[way])
    assert plan_of_nine.grad_fn is not None
    kept = plan_of_nine.grad_fn.saved_tensors  # pyright: ignore[reportAttributeAccessIssue]
    scores_HTS = q.transpose(0, 1) @ k.transpose(0, 1).repeat_interleave(2, 0).mT / 2
    torch.testing.assert_close(kept[4], scores_HTS.logsumexp(-1))


@by_each
@settings(max_examples=4)
@given(lengths=st.lists(st.integers(1, 8), min_size=1, max_size=5))
def test_packed_blocks_as_lab_04_masks_them(way, lengths):
    """Documents of a block by their lengths: the same as a mask over the block, and as a loop over documents."""
    texts = [torch.zeros(length, dtype=torch.int64) for length in lengths]
    documents_BT = fill_blocks(texts, best_fit(lengths, 8)).documents
    q, k, v, _ = example(8, 8, (2, 2), batch=(len(documents_BT),))
    _, counts = documents_BT.flatten().unique_consecutive(return_counts=True)
    # A border of blocks is a border of documents too, though the numbers on both sides (padding) be equal.
    borders = {0, *counts.cumsum(0).tolist(), *range(0, documents_BT.numel() + 1, 8)}
    starts = torch.tensor(sorted(borders))
    packed_q, packed_k, packed_v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))
    o_THK = flash_attention_varlen(packed_q, packed_k, packed_v, starts, is_causal=True, tiles=TILES, passes=WAYS[way])
    ours = o_THK.unflatten(0, (-1, 8)).transpose(1, 2)
    torch.testing.assert_close(ours, attend_by_mask(documents_BT)(q, k, v))
    is_text = (documents_BT >= 0)[:, None, :, None]
    torch.testing.assert_close(ours * is_text, attend_by_length(documents_BT)(q, k, v))


@by_each
def test_scores_that_overflow_exp_do_no_harm(way):
    """Scores of thousands: exp of them is infinite in float64, and the naive softmax NaN.

    A score of 10^4 is off by 10^-12, and so is the share exp(s - lse); gradients have it times dp and k, 10^4 together.
    """
    inputs = example(9, 9, size=60.0, batch=(1,))
    scores = inputs[0] @ inputs[1].mT / 2
    assert scores.max() > 1000 and scores.exp().isinf().any()
    ours = flash_attention(*inputs[:3], is_causal=True, tiles=TILES, passes=WAYS[way])
    assert_same(ours, standard(*inputs[:3], True), inputs, rtol=1e-10, atol=1e-8)


@by_each
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_narrow_dtypes_are_right_to_their_rounding(way, dtype):
    """q, k, v are exact; sums are in float32. What is rounded to `dtype`: p, ds and do before a product, the results.

    Each is off by eps / 2 of itself at most, so a sum over s keys of numbers of size one is off by some eps.
    """
    inputs = example(20, 20, (2, 1), batch=(1,), dtype=dtype)
    q, k, v, do = (x.detach().double().requires_grad_() for x in inputs)
    ours = flash_attention(*inputs[:3], is_causal=True, tiles=TILES, passes=WAYS[way])
    assert ours.dtype == dtype
    reference = standard(q, k, v, True)
    eps = torch.finfo(dtype).eps
    got = (ours, *torch.autograd.grad(ours, inputs[:3], inputs[3]))
    want = (reference, *torch.autograd.grad(reference, (q, k, v), do))
    for mine, theirs in zip(got, want, strict=True):
        largest = float(theirs.detach().abs().max())
        torch.testing.assert_close(mine.detach().double(), theirs.detach(), rtol=0, atol=4 * eps * largest)


@by_each
def test_inputs_stay_as_they_are_and_may_be_views(way):
    q, k, v, do = example(6, 6, (2, 2), batch=(2,))
    before = [x.detach().clone() for x in (q, k, v, do)]
    # As a transformer makes them: [B T H K] seen as [B H T K].
    view_q, view_k, view_v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    ours = flash_attention(view_q, view_k, view_v, tiles=TILES, passes=WAYS[way])
    gradients = torch.autograd.grad(ours, (q, k, v), do.detach()[:1].expand(2, -1, -1, -1))
    theirs = standard(q, k, v, False)
    expected = torch.autograd.grad(theirs, (q, k, v), do.detach()[:1].expand(2, -1, -1, -1))
    for gradient, want in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, want)
    assert all(torch.equal(x, old) for x, old in zip((q, k, v, do), before, strict=True))


@by_each
@pytest.mark.parametrize(("t", "s", "batch"), [(0, 3, 1), (3, 0, 1), (3, 3, 0)])
def test_nothing_to_attend_to_is_zeros(way, t, s, batch):
    inputs = example(t, s, (2, 1), batch=(batch,))
    ours = flash_attention(*inputs[:3], tiles=TILES, passes=WAYS[way])
    assert torch.equal(ours, torch.zeros_like(inputs[0]))
    for gradient, x in zip(torch.autograd.grad(ours, inputs[:3], inputs[3]), inputs[:3], strict=True):
        assert torch.equal(gradient, torch.zeros_like(x))


def test_a_second_derivative_is_refused():
    inputs = example(3, 3, batch=(1,))
    (gradient,) = torch.autograd.grad(flash_attention(*inputs[:3]).square().sum(), inputs[0], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(6, 3, 4)}, "must divide the heads of q, and a head have a width: got 3 heads, 2 of k"),
        ({"q": torch.zeros(6, 2, 5)}, "the width of q's heads"),
        ({"v": torch.zeros(5, 2, 4)}, "k and v must have one shape"),
        ({"q": torch.zeros(6, 2, 4, dtype=torch.float64)}, "must be of one dtype"),
        ({"q": torch.zeros(6, 2, 4, device="meta")}, "must be on one device"),
        ({"starts": [0, 4, 2, 6]}, "cu_seqlens_q must not fall: got 4, then 2"),
        ({"starts": [0, 5]}, "cu_seqlens_q must end at the number of tokens, 6: got 5"),
        ({"starts": [1, 6]}, "cu_seqlens_q must begin with 0"),
        ({"starts_k": [0, 3, 6]}, "must name the same documents: got 1 and 2"),
        ({"starts": [0.0, 6.0]}, "cu_seqlens must be whole numbers"),
    ],
)
def test_bad_input(change, message):
    q, k, v = (change.get(name, torch.zeros(6, 2, 4)) for name in "qkv")
    starts = torch.tensor(change.get("starts", [0, 6]))
    starts_k = torch.tensor(change["starts_k"]) if "starts_k" in change else None
    with pytest.raises(ValueError, match=message):
        unchecked(flash_attention_varlen)(q, k, v, starts, starts_k)


@pytest.mark.parametrize(
    ("k", "v"), [((3, 1, 4, 5), (3, 1, 4, 5)), ((2, 1, 6, 5), (2, 1, 4, 5)), ((2, 1, 6, 5), (2, 1, 6, 4))]
)
def test_batches_that_do_not_fit_are_told(k, v):
    q = torch.zeros(2, 2, 6, 5)
    with pytest.raises(ValueError, match="must have one batch, and k and v one shape: got .2, 2, 6, 5., "):
        unchecked(flash_attention)(q, torch.zeros(k), torch.zeros(v))


def test_what_is_no_floating_point_is_told():
    whole = torch.zeros(1, 1, 3, 4, dtype=torch.int64)
    with pytest.raises(
        ValueError, match="must be of one dtype, float16, bfloat16, float32 or float64: got torch.int64"
    ):
        unchecked(flash_attention)(whole, whole, whole)
    with pytest.raises(ValueError, match="must have 4 dimensions"):
        whole = torch.zeros(3, 4)
        unchecked(flash_attention)(whole, whole, whole)
