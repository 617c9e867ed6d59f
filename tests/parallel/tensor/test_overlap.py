"""Communication beside products: the gradients of one device, and the seconds that are left over, as predicted."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lablib import CLUSTERS, launch, parallel
from lablib.cost import GroupNetwork, collective_cost, matmul_time_s, memory_bound_time_s
from lablib.parallel.tensor.mlp import MLPShard
from lablib.run import Run
from tests.parallel.drawn import drawn

BATCH = 2
EXACT: Any = {"rtol": 1e-11, "atol": 1e-13}


def loss_of(y: Tensor) -> Tensor:
    return (y * drawn(*y.shape, seed=99)).mean() + y.square().mean()


# ---- the same gradients ----


def _whole(shard: Tensor, rows: int) -> Tensor:
    assert shard.grad is not None
    return parallel.gather_from_ranks(shard.grad, 0, rows)


@pytest.mark.parametrize("region", [parallel.TENSOR, parallel.SEQUENCE], ids=repr)
@given(n=st.integers(1, 5), width=st.integers(1, 5), features=st.lists(st.integers(1, 6), min_size=1, max_size=3))
@settings(max_examples=8)
def test_overlapped_columns_have_the_gradients_of_one_device(
    region: parallel.Region, n: int, width: int, features: list[int]
):
    """Several matrices, uneven, one with no bias and one that is frozen."""
    x = drawn(BATCH, 2 * n, width)
    whole = [drawn(rows, width, seed=i + 1) for i, rows in enumerate(features)]
    biases = [drawn(rows, seed=i + 9) if i != 1 else None for i, rows in enumerate(features)]

    def outputs(x: Tensor, weights: list[Tensor], biases: list[Any], product: Any) -> list[Tensor]:
        for i, weight in enumerate(weights):
            weight.requires_grad_(i != 2)
        for bias in biases:
            if bias is not None:
                bias.requires_grad_()
        return product(x, weights, biases)

    def program() -> list[Tensor]:
        mine = x.clone().requires_grad_()
        weights = [parallel.shard_of(weight, 0).clone() for weight in whole]
        own = [None if bias is None else parallel.shard_of(bias, 0).clone() for bias in biases]
        enters = parallel.own_tokens(mine, 1) if region is parallel.SEQUENCE else mine
        found = outputs(
            enters, weights, own, lambda x, ws, bs: list(parallel.overlapped_columns(x, ws, bs, None, region))
        )
        gathered = [parallel.gather_from_ranks(y, -1, rows) for y, rows in zip(found, features, strict=True)]
        sum(map(loss_of, gathered)).backward()  # pyright: ignore[reportAttributeAccessIssue]
        assert mine.grad is not None
        if region is parallel.SEQUENCE:
            dist.all_reduce(mine.grad)
        parts = [mine.grad]
        for i, (weight, bias, rows) in enumerate(zip(weights, own, features, strict=True)):
            parts += [] if i == 2 else [_whole(weight, rows)]
            parts += [] if bias is None else [_whole(bias, rows)]
        return parts

    alone = x.clone().requires_grad_()
    weights, own = [weight.clone() for weight in whole], [None if bias is None else bias.clone() for bias in biases]
    ys = outputs(alone, weights, own, lambda x, ws, bs: [F.linear(x, w, b) for w, b in zip(ws, bs, strict=True)])
    sum(map(loss_of, ys)).backward()  # pyright: ignore[reportAttributeAccessIssue]
    pairs = enumerate(zip(weights, own, strict=True))
    expected = [alone.grad, *(t.grad for i, (w, b) in pairs for t in (*([w] if i != 2 else []), b) if t is not None)]
    for found in launch(program, ranks=n).values:
        torch.testing.assert_close(found, expected, **EXACT)


@given(n=st.integers(1, 5), width=st.integers(1, 5), hidden=st.integers(1, 9), per_rank=st.integers(1, 3))
@settings(max_examples=7)
def test_an_mlp_in_chunks_has_the_gradients_of_one_device(n: int, width: int, hidden: int, per_rank: int):
    x = drawn(BATCH, n * per_rank, width, seed=4)
    whole = (drawn(hidden, width), drawn(hidden, seed=1), drawn(width, hidden, seed=2), drawn(width, seed=3))

    def program() -> list[Tensor]:
        inputs = [tensor.clone().requires_grad_() for tensor in (x, *whole)]
        y = parallel.async_mlp(parallel.own_tokens(inputs[0], 1), parallel.shard_mlp(MLPShard(*inputs[1:])))
        loss_of(parallel.gather_from_ranks(y, 1, n * per_rank)).backward()
        grads = [tensor.grad for tensor in inputs]
        for grad in grads[:4]:
            dist.all_reduce(grad)
        return grads  # pyright: ignore[reportReturnType]

    inputs = [tensor.clone().requires_grad_() for tensor in (x, *whole)]
    mlp = F.linear(F.gelu(F.linear(*inputs[:3]), approximate="tanh"), *inputs[3:])
    loss_of(mlp).backward()
    for found in launch(program, ranks=n).values:
        torch.testing.assert_close(found, [tensor.grad for tensor in inputs], **EXACT)


# ---- seconds, on a machine of the catalogue ----

CLUSTER, RANKS = CLUSTERS["dgx-h100"], 8
DEVICE, NETWORK = CLUSTER.device, GroupNetwork(CLUSTER, range(RANKS))
TOKENS, WIDTH, HIDDEN = 8192, 8192, 28672
OVERHEAD_S = DEVICE.queued_s  # of a kernel behind others
FIRST_S = DEVICE.launch_s  # until the first kernel is launched; later launches are hidden


def product_s(m: int, n: int, k: int, rows: tuple[int, int] | None = None) -> float:
    return float(matmul_time_s(m, n, k, "bfloat16", DEVICE, rows=rows)) / DEVICE.step_share + OVERHEAD_S


def collective_s(name: str) -> float:
    return collective_cost(name, TOKENS * WIDTH * 2, NETWORK).time_s


def timed(forward: Callable[..., Tensor], *shapes: tuple[int, ...]) -> tuple[float, float]:
    """Seconds of forward and of backward, on shapes alone; gradients of ones that are there before."""

    def program() -> None:
        inputs = [torch.zeros(shape, dtype=torch.bfloat16, requires_grad=True) for shape in shapes]
        grad = torch.ones_like(forward(*inputs))
        dist.barrier()
        y = forward(*inputs)
        dist.barrier()
        torch.autograd.backward(y, grad)

    run: Run = launch(program, ranks=RANKS, cluster=CLUSTER, fidelity="shapes")
    first, second = (t for t in run.traffic.transfers if t.name == "barrier")
    return second.start_s - first.end_s, run.timeline.makespan_s - second.end_s


X, X_SHARD, W, V = (1, TOKENS, WIDTH), (1, TOKENS // 8, WIDTH), (HIDDEN // 8, WIDTH), (WIDTH, HIDDEN // 8)


def test_products_in_chunks_take_what_the_closed_form_says():
    message_s = NETWORK.ring.time_s(TOKENS // 8 * WIDTH * 2)
    chunk_s, wide_s = product_s(TOKENS // 8, HIDDEN // 8, WIDTH), product_s(TOKENS // 8, WIDTH, HIDDEN // 8)
    add_s = float(memory_bound_time_s(3 * TOKENS // 8 * WIDTH * 2, DEVICE)) + OVERHEAD_S
    gather, _ = timed(lambda x, w: parallel.gather_linear(x, w, None), X_SHARD, W)
    scatter, _ = timed(parallel.linear_scatter, (1, TOKENS, HIDDEN // 8), V)
    assert gather == pytest.approx(FIRST_S + parallel.chunked_product_s(chunk_s, message_s, 8), rel=1e-3)
    assert scatter == pytest.approx(FIRST_S + parallel.chunked_product_s(wide_s, message_s, 8, add_s), rel=1e-3)
    assert parallel.exposed_chunks_s(chunk_s, message_s, 8) == 0  # a message is shorter than the product beside it
    # In one piece, all of the collective is exposed.
    whole, _ = timed(lambda x, w: parallel.column_linear(x, w, None, None, parallel.SEQUENCE), X_SHARD, W)
    assert whole == pytest.approx(product_s(TOKENS, HIDDEN // 8, WIDTH) + collective_s("all_gather"), rel=1e-3)
    whole, _ = timed(lambda h, v: parallel.row_linear(h, v, None, None, parallel.SEQUENCE), (1, TOKENS, HIDDEN // 8), V)
    assert whole == pytest.approx(
        FIRST_S + product_s(TOKENS, WIDTH, HIDDEN // 8) + collective_s("reduce_scatter"), rel=1e-3
    )


def test_chunks_that_travel_longer_than_they_compute_leave_the_difference_exposed():
    assert parallel.exposed_chunks_s(2.0, 5.0, 4) == 3 * 3.0
    assert parallel.exposed_chunks_s(2.0, 5.0, 4, add_s=0.5) == 3 * 3.5
    assert parallel.exposed_chunks_s(2.0, 1.0, 4) == 0 == parallel.exposed_chunks_s(2.0, 9.0, 1)


@pytest.mark.parametrize("overlaps", [True, False])
@pytest.mark.parametrize("region", [parallel.TENSOR, parallel.SEQUENCE], ids=repr)
def test_the_backward_of_columns_takes_what_the_closed_form_says(region: parallel.Region, overlaps: bool):
    def forward(x: Tensor, w: Tensor) -> Tensor:
        if overlaps:
            return parallel.overlapped_columns(x, [w], [None], None, region)[0]
        return parallel.column_linear(x, w, None, None, region)

    shape = X_SHARD if region is parallel.SEQUENCE else X
    _, measured = timed(forward, shape, W)
    grads = product_s(TOKENS, WIDTH, HIDDEN // 8), product_s(HIDDEN // 8, WIDTH, TOKENS, (HIDDEN // 8, WIDTH))
    reduce_s = collective_s("reduce_scatter" if region is parallel.SEQUENCE else "all_reduce")
    gather_s = collective_s("all_gather") if region is parallel.SEQUENCE and overlaps else 0.0
    expected = parallel.overlapped_backward_s(*grads, reduce_s, gather_s, overlaps=overlaps)
    # f copies what it reduces, as autograd may have given the gradient to others too.
    copy_s = memory_bound_time_s(2 * TOKENS * WIDTH * 2, DEVICE) if region is parallel.TENSOR and not overlaps else 0.0
    assert measured == pytest.approx(expected + float(copy_s), rel=0.01)


def test_overlap_hides_what_is_shorter_than_the_weight_gradient():
    assert parallel.overlapped_backward_s(2.0, 3.0, 1.0) == 5.0
    assert parallel.overlapped_backward_s(2.0, 3.0, 4.0) == 6.0
    assert parallel.overlapped_backward_s(2.0, 3.0, 1.0, 2.5) == 5.5
    assert parallel.overlapped_backward_s(2.0, 3.0, 1.0, 2.5, overlaps=False) == 8.5


def test_a_frozen_weight_needs_no_input_gathered_again():
    def program(is_frozen: bool) -> None:
        weight = torch.ones(3, 4).requires_grad_(not is_frozen)
        parallel.overlapped_columns(torch.ones(1, 2, 4, requires_grad=True), [weight], [None], None, parallel.SEQUENCE)[
            0
        ].sum().backward()

    for is_frozen, num_gathers in ((True, 1), (False, 2)):
        names = [t.name for t in launch(program, is_frozen, ranks=2).traffic.transfers]
        assert names.count("all_gather_into_tensor") == num_gathers and len(names) == num_gathers + 1


def test_no_weight_is_refused():
    with pytest.raises(ValueError, match="one or more pairs: got 0 and 0"):
        parallel.overlapped_columns(drawn(1, 1, 1), [], [])


@pytest.mark.thorough
def test_chunks_and_shared_heads_are_the_same_on_real_processes():
    """The parts that `GPT_SEQUENCE_PLAN` has not: messages in a ring, and a group for ranks that share heads."""

    def program() -> list[Tensor]:
        mlp = MLPShard(drawn(6, 4), drawn(6, seed=1), drawn(4, 6, seed=2), drawn(4, seed=3))
        x = drawn(BATCH, 4, 4, seed=4).requires_grad_()
        y = parallel.async_mlp(parallel.own_tokens(x, 1), parallel.shard_mlp(mlp))
        rows = [
            drawn(size, 4, seed=i) if i % 2 == 0 else drawn(size, seed=i) for i, size in enumerate((4, 4, 2, 2, 2, 2))
        ]
        whole = parallel.AttentionShard._make([*rows, drawn(4, 4, seed=8), drawn(4, seed=9)])
        whole.key_gD.requires_grad_()
        shard, shared = parallel.shard_attention(whole, 2, 1), parallel.shared_key_value_group(1)
        z = parallel.tensor_attention(x, shard, 2, None, parallel.TENSOR, shared)
        (loss_of(parallel.gather_from_ranks(y, 1, 4)) + loss_of(z)).backward()
        assert x.grad is not None and whole.key_gD.grad is not None
        return [y.detach(), z.detach(), x.grad, whole.key_gD.grad]

    simulated, real = (launch(program, ranks=2, backend=backend).values for backend in ("sim", "gloo"))
    for found, expected in zip(real, simulated, strict=True):
        torch.testing.assert_close(found, expected, **EXACT)
