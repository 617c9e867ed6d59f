"""All-gather of keys and values: every rank gets the keys and values of all tokens, then attends as one device.

Grouped queries make keys and values small (8 of 128 heads in Llama 3 405B), so the keys and values of all ranks fit,
and their gather is short compared with attention, which grows with T^2. In return any mask works, also for documents:
there is one kernel, while a ring has n rounds with separate blocks.

               forward                                  backward
    k, v       all-gather                               reduce-scatter of their gradients
    q, o       not sent                                 not sent

Not to be confused with `gather_from_ranks`: after it all ranks compute the same. Here each has its own queries, so the
gradient of a key has a part on each rank, and the parts must be summed.

Cost for n ranks, S = 2 B G T / n K w bytes of one rank's keys and values, a the all-gather's seconds:
    time_s      forward a + p, without overlap; backward p and a reduce-scatter, here in 16 bits
    peak bytes  n S for the gathered keys and values, kept for backward; n S 4 / w for their gradients
    sent bytes  (n - 1) S in each direction (ring)
Shapes: B batch, H heads, G key-value heads, K width of a head; t this rank's tokens, T all.
Source: Llama Team, "The Llama 3 Herd of Models", 2024, arXiv 2407.21783, section 3.3.2, "Context parallelism for long
sequences".
Simplified: gathered keys and values are kept, not gathered again; their gradients are summed in the dtype of the keys.
"""

from functools import partial

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from lablib.parallel.context.blocks import blocks_of
from lablib.parallel.context.merge import FUSED, BlockPasses, attention_in_blocks
from lablib.parallel.context.order import Documents, Order
from lablib.parallel.context.ring import require_shard
from lablib.parallel.tensor.regions import Group, all_gather_single, reduce_scatter_single, with_gradient


def _gathered(x: Tensor, order: Order, group: Group) -> Tensor:
    """[..., t, K] of each rank, sent with the token dimension first and shorter shards padded."""
    longest, own = max(order.lengths), x.movedim(-2, 0)
    padded = own.new_zeros(longest, *own.shape[1:])
    padded[: len(own)] = own
    gathered = padded.new_empty(order.num_ranks * longest, *own.shape[1:])
    all_gather_single(gathered, padded, group=group)
    shards = gathered.unflatten(0, (order.num_ranks, longest))
    places = [(piece, rank, first) for rank, first, piece in _pieces(order)]
    in_turn = sorted(places, key=lambda place: place[0].start) if _is_cut(order) else places
    return torch.cat([shards[rank, first : first + len(piece)] for piece, rank, first in in_turn]).movedim(0, -2)


def _summed(grad: Tensor, order: Order, group: Group) -> Tensor:
    """This rank's tokens of the sum over ranks."""
    grad, longest = grad.movedim(-2, 0), max(order.lengths)
    shards = grad.new_zeros(order.num_ranks, longest, *grad.shape[1:])
    start = 0
    for rank, first, piece in _pieces(order):
        begin = piece.start if _is_cut(order) else start
        shards[rank, first : first + len(piece)] = grad[begin : begin + len(piece)]
        start += len(piece)
    own = grad.new_empty(longest, *grad.shape[1:])
    reduce_scatter_single(own, shards.flatten(0, 1), group=group)
    return own[: order.lengths[dist.get_rank(group)]].movedim(0, -2)


def _pieces(order: Order) -> list[tuple[int, int, range]]:
    """Every piece: its rank, its first place there, and its positions."""
    return [
        (rank, sum(map(len, pieces[:i])), piece)
        for rank, pieces in enumerate(order.pieces)
        for i, piece in enumerate(pieces)
    ]


def _is_cut(order: Order) -> bool:
    """Whether pieces are contiguous, so that they can be put in sequence order; stripes stay in rank order."""
    return all(piece.step == 1 for pieces in order.pieces for piece in pieces)


def gather_tokens(
    x: Float[Tensor, "*shape t K"], order: Order, group: Group = None
) -> tuple[Float[Tensor, "*shape T K"], list[range]]:
    """The tokens of all ranks, and their positions: in sequence order, or for stripes in rank order.

    Communicates: one all-gather forward, one reduce-scatter backward.
    """
    pieces = [range(order.seq_len)] if _is_cut(order) else [piece for _, _, piece in _pieces(order)]
    call = {"order": order, "group": group}
    return with_gradient(x, partial(_gathered, **call), partial(_summed, **call)), pieces


def gathered_attention(
    q_BHtK: Float[Tensor, "B H t K"],
    k_BGtK: Float[Tensor, "B G t K"],
    v_BGtK: Float[Tensor, "B G t K"],
    order: Order,
    group: Group = None,
    *,
    documents: Documents | None = None,
    is_causal: bool = True,
    passes: BlockPasses = FUSED,
) -> Float[Tensor, "B H t K"]:
    """Attention of this rank's queries over the keys of all ranks. Communicates: an all-gather, a reduce-scatter.

    Arguments and Raises as `ring_attention`.
    """
    require_shard(q_BHtK, k_BGtK, order, group)
    (k_BGTK, v_BGTK), keys = gather_tokens(torch.stack([k_BGtK, v_BGtK]), order, group)
    blocks = blocks_of(order.pieces[dist.get_rank(group)], keys, documents, is_causal)
    return attention_in_blocks(q_BHtK, k_BGTK, v_BGTK, blocks, passes)
