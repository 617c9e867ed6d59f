"""Muon with sharded state, with three ways to assemble a whole matrix: owner, gather, exchange.

Muon's momentum is element-wise, so it can be sharded. Newton-Schulz needs the whole matrix (muon.py). Three ways:

    owner       parameters and gradients are whole on every rank (data parallelism, or ZeRO-1 by parameters). Each
                matrix has an owner, who keeps its momentum and computes; an all-gather gives all ranks all directions
    gather      everything is sharded. All ranks gather all matrices, and each computes everything
    exchange    everything is sharded. An all-to-all brings each owner the pieces of its matrices; it computes, and a
                second all-to-all returns to every rank its pieces

        rank 0: [a0 b0 c0]          owner of a:  [a0 a1] -> A        rank 0: [A0 B0 C0]
        rank 1: [a1 b1 c1]    ->    of b and c:  [b0 b1] -> B   ->   rank 1: [A1 B1 C1]

Messages are in BF16 without loss, as Newton-Schulz computes in BF16 (newton_schulz.py): 2 bytes per number, for
parameters of any dtype.

Cost: sharded_muon_cost.py, bytes and FLOPs. Peak bytes for n ranks and N numbers in all matrices: 2 N for owner and
gather, 2 N/n or a little more for the exchange, in addition to Newton-Schulz.
Shapes: a piece is [k], a part of the flattened matrix.
Source: Jordan et al., "Muon", 2024, kellerjordan.github.io, and modded-nanogpt (owner); Liu et al., "Muon is Scalable
for LLM Training", 2025, arXiv 2502.16982, section 2.3 and algorithm 1 (gather); Ahn et al., "Dion", 2025, arXiv
2504.05295, and github.com/microsoft/dion, muon.py (exchange).
Simplified: no overlap; Liu et al. gather one matrix at a time, with less memory and more latency.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import torch
import torch.distributed as dist
from torch import Tensor

from lablib.optim import foreach
from lablib.optim.base import Settings, State
from lablib.optim.muon import SCALES, Muon
from lablib.optim.newton_schulz import newton_schulz
from lablib.parallel.zero.optimizers import Sharded, share_gradients
from lablib.parallel.zero.sharded_muon_cost import WAYS, Shape, owners, require_matrices
from lablib.parallel.zero.shards import all_gather_shards
from lablib.signature import OneOf, checked

NEWTON_SCHULZ_DTYPE = torch.bfloat16


class OwnerMuon(Muon):
    """Muon on whole parameters with equal gradients on every rank; each rank keeps the state of its own matrices.

    Bit-identical to Muon. Communicates in each step: one all-gather per group of parameters.
    `ranks`: the group that shares the work; None for all. `settings`: of Muon.
    """

    def __init__(self, params: Any, ranks: dist.ProcessGroup | None = None, **settings: Any):
        self._ranks = ranks
        self._owner: dict[Tensor, int] = {}
        super().__init__(params, **settings)

    def add_param_group(self, param_group: Settings) -> None:
        super().add_param_group(param_group)
        params = self.param_groups[-1]["params"]
        shapes = [tuple(param.shape) for param in params]
        self._owner.update(zip(params, owners(shapes, dist.get_world_size(self._ranks)), strict=True))

    def new_state(self, param: Tensor, group: Settings) -> State:
        me = dist.get_rank(self._ranks)
        return super().new_state(param, group) if self._owner.get(param, me) == me else {}

    def update(self, params: list[Tensor], grads: list[Tensor], states: list[State], group: Settings) -> None:
        me, owner = dist.get_rank(self._ranks), [self._owner[param] for param in params]
        own = [index for index, one in enumerate(owner) if one == me]
        means = _nesterov([grads[i] for i in own], [states[i]["momentum_buffer"] for i in own], group)
        directions = _joined([_direction(mean, group) for mean in means], like=params[0])
        numels = [
            [param.numel() for param, one in zip(params, owner, strict=True) if one == rank]
            for rank in range(dist.get_world_size(self._ranks))
        ]
        by_rank = _all_gather(directions, [sum(each) for each in numels], self._ranks)
        # Each owner's buffer has its matrices in order.
        dealt = [iter(part.split(each)) for part, each in zip(by_rank, numels, strict=True)]
        shapes = [tuple(param.shape) for param in params]
        _apply(params, [next(dealt[one]) for one in owner], shapes, group)


class ShardedMuon(Muon):
    """Muon on pieces of matrices; bit-identical to Muon on whole matrices.

        pieces = [each for each in pieces_of(shards, layouts) if len(each.shape) == 2 and is_hidden(each.name)]
        muon = ShardedMuon(pieces, "exchange", lr=0.02)      # uses the shards' gradients
        rest = AdamW([each.piece for each in others]); share_gradients(rest, others)

    Communicates in each step: "gather" one all-gather, "exchange" two all-to-alls.

    Arguments:
        pieces: of matrices, the same ones on every rank.
        ranks: the group that shares the matrices; None for all.
        settings: of Muon.
    """

    @checked
    def __init__(
        self,
        pieces: Sequence[Sharded],
        way: Annotated[str, OneOf(WAYS[1:])] = "exchange",
        ranks: dist.ProcessGroup | None = None,
        **settings: Any,
    ):
        require_matrices((each.name, each.shape) for each in pieces)
        self._ranks, self._directions = ranks, _gathered if way == "gather" else _exchanged
        self._sharded: dict[Tensor, Sharded] = {each.piece: each for each in pieces}
        super().__init__([(each.name, each.piece) for each in pieces], **settings)
        share_gradients(self, pieces)

    def check_group(self, group: Settings) -> None:
        super().check_group({**group, "params": []})  # pieces are flat; their matrices are already checked

    def update(self, params: list[Tensor], grads: list[Tensor], states: list[State], group: Settings) -> None:
        sharded = [self._sharded[param] for param in params]
        means = _nesterov(grads, [state["momentum_buffer"] for state in states], group)
        directions = self._directions([mean.to(NEWTON_SCHULZ_DTYPE) for mean in means], sharded, group, self._ranks)
        _apply(params, directions, [each.shape for each in sharded], group)


# ---- gather: every rank computes all matrices ----


def _gathered(
    means: list[Tensor], sharded: list[Sharded], group: Settings, ranks: dist.ProcessGroup | None
) -> list[Tensor]:
    """The pieces of all directions, each computed on every rank."""
    counts = list(zip(*(each.counts for each in sharded), strict=True))  # [rank][matrix]
    by_rank = _all_gather(_joined(means, like=means[0]), [sum(each) for each in counts], ranks)
    wholes = _meet([part.split(each) for part, each in zip(by_rank, counts, strict=True)], sharded)
    me = dist.get_rank(ranks)
    return [_cut(_direction(w, group), each)[me] for w, each in zip(wholes, sharded, strict=True)]


# ---- exchange: every matrix is assembled on its owner, and sent back ----


def _exchanged(
    means: list[Tensor], sharded: list[Sharded], group: Settings, ranks: dist.ProcessGroup | None
) -> list[Tensor]:
    """The pieces of all directions, each computed by its owner."""
    me, world_size = dist.get_rank(ranks), dist.get_world_size(ranks)
    owner = owners([each.shape for each in sharded], world_size)
    by_owner = [[i for i, one in enumerate(owner) if one == rank] for rank in range(world_size)]
    own = [sharded[i] for i in by_owner[me]]
    there = [[sharded[i].counts[me] for i in indices] for indices in by_owner]  # numbers sent to each owner
    back = [[each.counts[rank] for each in own] for rank in range(world_size)]  # numbers received from each rank
    outgoing = [[means[i] for i in indices] for indices in by_owner]
    wholes = _meet(_all_to_all(outgoing, back, means[0], ranks), own)
    cut = [_cut(_direction(whole, group), each) for whole, each in zip(wholes, own, strict=True)]
    replies = [[of_matrix[rank] for of_matrix in cut] for rank in range(world_size)]
    dealt = [iter(parts) for parts in _all_to_all(replies, there, means[0], ranks)]
    return [next(dealt[one]) for one in owner]


def _all_to_all(
    outgoing: list[list[Tensor]], sizes: list[list[int]], like: Tensor, ranks: dist.ProcessGroup | None
) -> list[list[Tensor]]:
    """Tensors for each rank; returns those from each rank, flat, of known sizes."""
    splits = [sum(map(torch.numel, parts)) for parts in outgoing]
    received = like.new_empty(sum(map(sum, sizes)))
    sent = _joined([part for parts in outgoing for part in parts], like)
    dist.all_to_all_single(received, sent, [sum(each) for each in sizes], splits, group=ranks)
    parts = received.split([sum(each) for each in sizes])
    return [list(part.split(each)) for part, each in zip(parts, sizes, strict=True)]


# ---- shared by the three ----


def _nesterov(grads: list[Tensor], buffers: list[Tensor], group: Settings) -> list[Tensor]:
    """Add gradients to the momentum; returns the tensors to orthogonalize. Element-wise: also for pieces."""
    if not grads:
        return []
    foreach.lerp_(buffers, grads, 1 - group["momentum"])
    if not group["nesterov"]:
        return buffers
    return [grad.lerp(buffer, group["momentum"]) for grad, buffer in zip(grads, buffers, strict=True)]


def _direction(mean: Tensor, group: Settings) -> Tensor:
    return newton_schulz(mean, group["ns_steps"], group["ns_coefficients"], group["eps"])


def _apply(params: list[Tensor], directions: list[Tensor], shapes: Sequence[Shape], group: Settings) -> None:
    """w = w - lr lambda w - lr scale O, with the scale of the whole matrix."""
    foreach.mul_(params, 1 - group["lr"] * group["weight_decay"])
    for param, direction, shape in zip(params, directions, shapes, strict=True):
        scale = SCALES[group["adjust_lr_fn"]](*shape)
        param.add_(direction.view(param.shape), alpha=-group["lr"] * scale)


def _meet(by_rank: Sequence[Sequence[Tensor]], sharded: Sequence[Sharded]) -> list[Tensor]:
    return [torch.cat([of[i] for of in by_rank]).view(each.shape) for i, each in enumerate(sharded)]


def _cut(whole: Tensor, sharded: Sharded) -> tuple[Tensor, ...]:
    return whole.flatten().split(sharded.counts)


def _joined(tensors: Sequence[Tensor], like: Tensor) -> Tensor:
    empty = like.new_empty(0, dtype=NEWTON_SCHULZ_DTYPE)
    return torch.cat([empty, *(tensor.flatten() for tensor in tensors)])


def _all_gather(own: Tensor, sizes: Sequence[int], ranks: dist.ProcessGroup | None) -> list[Tensor]:
    """Every rank's flat tensor, of known sizes, by one all-gather padded to the largest."""
    padded = own.new_zeros(max(sizes))
    padded[: own.numel()] = own
    full = own.new_empty(max(sizes) * len(sizes))
    all_gather_shards(padded, full, ranks).wait()
    return [part[:size] for part, size in zip(full.view(len(sizes), -1), sizes, strict=True)]
