"""Time of context-parallel attention, forward and backward: compute and exposed communication.

    way        exposed forward                             exposed backward
    ring       max(0, m - p_0) + (n-2) max(0, m - p)       max(0, m - b_0) + (n-2) max(0, m + d - b)
                                                           + max(0, d - b) + d
    gather     a                                           r
    ulysses    2 x                                         2 x
    both       2 x over u ranks, and a ring of r

with p_0, b_0 for a rank's own keys (causal), p, b for another's, m and d the messages of keys and of their gradients, a
and r an all-gather and a reduce-scatter, x an all-to-all. A ring's messages have t tokens, its kernels t^2 pairs; so
above some length only the last d is exposed. With zigzag, 16 bits and R FLOP/s, L bytes per second of the link:

    2 t^2 H K / R > 4 G t K / L            t > 2 R G / (L H)

A gather and an all-to-all are exposed whole, but grow as T where attention grows as T^2.

A ring takes as long as its slowest rank: n - 1/2 blocks with contiguous pieces, where the mean rank has n / 2. Writes
between blocks (partial results, in 32 bits) count as compute: their share grows as blocks get shorter.

Cost: a simulation of the techniques (`layer_cost.py`): a ring needs all of its ranks, half a second for 8.
Legend: as in `parallel/context/bytes.py`; u of the ranks share heads in "both".
Source: as there.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from lablib.cost import attention_time_s
from lablib.hardware import Cluster
from lablib.parallel.context.bytes import ContextSizes, can_share_heads, check_ways
from lablib.parallel.context.gather import gathered_attention
from lablib.parallel.context.order import ORDERS, order_of
from lablib.parallel.context.ring import ring_attention
from lablib.parallel.context.ulysses import ulysses_attention
from lablib.parallel.context.ulysses_and_ring import UlyssesRing
from lablib.parallel.mesh.mesh import Mesh
from lablib.signature import checked
from lablib.studies.layer_cost import LayerCost, dtype_of, layer_cost

_FUNCTIONS = {"ring": ring_attention, "gather": gathered_attention, "ulysses": ulysses_attention}


@checked
def context_cost(
    sizes: ContextSizes,
    cluster: Cluster,
    ranks: int,
    way: str = "ring",
    order: str = "zigzag",
    heads_ranks: int = 1,
    *,
    forward_only: bool = False,
) -> LayerCost:
    """The cost of one layer's attention between its projections, forward and backward.

    Arguments:
        ranks, way, heads_ranks: as for `context_sent_bytes`.
        order: of `ORDERS`; Ulysses ignores it, and is contiguous.

    Raises ValueError: as `context_sent_bytes` and `order_of`.
    """
    ring, u = check_ways(sizes, ranks, way, heads_ranks)
    order = "contiguous" if way == "ulysses" else order
    order_of(order, sizes.seq_len, ring)
    dtype_of(sizes.element_bytes)
    simulate = range(0, ranks, u)  # ranks that share heads do the same
    return layer_cost(attention_step, ranks, cluster, sizes, way, order, heads_ranks, forward_only, simulate=simulate)


def attention_step(
    sizes: ContextSizes, way: str, order: str, heads_ranks: int, forward_only: bool
) -> Callable[[], None]:
    """Attention of this rank's tokens, for `layer_cost`."""
    n, make, attention = dist.get_world_size(), ORDERS[order], _FUNCTIONS.get(way)
    if attention is None:
        mesh = Mesh(ring=n // heads_ranks, heads=heads_ranks)
        both = UlyssesRing(mesh.group("heads"), mesh.group("ring"), make)
        make, attention = both.order, both.attention
    tokens, dtype = make(sizes.seq_len, n), dtype_of(sizes.element_bytes)
    q, k, v = (
        torch.empty(sizes.batch, heads, sizes.seq_len // n, sizes.d_head, dtype=dtype, requires_grad=not forward_only)
        for heads in (sizes.heads, sizes.kv_heads, sizes.kv_heads)
    )
    grad = torch.empty_like(q, requires_grad=False)

    def run() -> None:
        out: Any = attention(q, k, v, tokens, None)
        if not forward_only:
            out.backward(grad)

    return run


@checked
def fair_share_s(sizes: ContextSizes, cluster: Cluster, ranks: int, *, forward_only: bool = False) -> float:
    """Seconds of one device's kernels for the whole sequence, over the number of ranks: perfect sharing."""
    shape = sizes.batch, sizes.heads, sizes.seq_len, sizes.seq_len, sizes.d_head
    dtype: Any = str(dtype_of(sizes.element_bytes)).removeprefix("torch.")
    passes = (False,) if forward_only else (False, True)
    kernels_s = sum(attention_time_s(*shape, dtype, cluster.device, causal=True, backward=one) for one in passes)
    launches = 1 if forward_only else 4
    return float(kernels_s + launches * cluster.device.queued_s) / ranks


@checked
def context_efficiencies(
    sizes: ContextSizes, cluster: Cluster, ranks: int, lengths: Sequence[int], heads_ranks: int = 1
) -> dict[str, list[float]]:
    """Fair share over time, for each length.

    Arguments:
        heads_ranks: u of "both", which is left out for u = 1; Ulysses is left out if these ranks cannot share the
            heads.
    """
    ways = {f"{order} ring": ("ring", order, 1) for order in ORDERS} | {"gather": ("gather", "zigzag", 1)}
    if can_share_heads(sizes, ranks):
        ways["ulysses"] = ("ulysses", "contiguous", 1)
    if heads_ranks > 1:
        ways[f"ulysses of {heads_ranks} in a zigzag ring"] = ("both", "zigzag", heads_ranks)
    each = [replace(sizes, seq_len=length) for length in lengths]
    shares = [fair_share_s(one, cluster, ranks) for one in each]
    return {
        name: [share / context_cost(one, cluster, ranks, *way).time_s for share, one in zip(shares, each, strict=True)]
        for name, way in ways.items()
    }
