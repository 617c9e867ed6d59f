"""Optimizers on flat shards: which optimizers can update pieces of parameters, and shapes for the others.

A shard of ZeRO is a run of numbers from the middle of one parameter to the middle of another. If the update of each
number depends only on its own gradient and state, a step on shards is bit-identical to a step on the whole. Other
optimizers need neighbours. Messages between ranks in a step of one matrix of m x n numbers:

    optimizer                       needs                               messages                       bytes
    SGD, Adam, AdamW, Lion, Sophia  one number                          none                           0
    AdamBF16                        one number and a random one         none; equal in distribution    0
    Adam8bit                        a block of B neighbours             none, if the shard is a        0
                                                                        multiple of B
    LAMB                            two norms of the parameter          sums of squares (`ShardedLAMB`)  8
    Adafactor                       means of rows and columns, 2 norms  sums over rows and columns     4 (m + n) + 8
    Muon, SOAP, GaLore              the matrix                          the matrix (sharded_muon.py)   2 m n and more

Adam8bit's blocks are then blocks of the unit's flat buffer, and may contain the end of one parameter and the beginning
of the next. `require_steps_on_shards` checks an optimizer.

Optimizers that need more get *pieces*: the part of each
parameter on this rank's shard, with the shape of the whole and the sizes on all ranks.

Cost: pieces are views and take no memory.
Shapes: a shard is [N / n]; a piece is [k] with k >= 0, and the pieces of all ranks, one behind the other, are the
flattened parameter.
Source: Rajbhandari et al., ZeRO, 2019, arXiv 1910.02054, section 5.1; of each optimizer, see its file in lablib/optim.
Simplified: SOAP, GaLore and Adafactor are not here; the first two could work like Muon, with their matrices of axes
kept by the owner.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lablib.optim import foreach
from lablib.optim.adafactor import Adafactor
from lablib.optim.adam8bit import Adam8bit
from lablib.optim.adamw import adam_directions
from lablib.optim.base import Settings, State
from lablib.optim.galore import GaLore
from lablib.optim.lamb import LAMB
from lablib.optim.memory import OPTIMIZERS
from lablib.optim.muon import Muon
from lablib.optim.q_galore import QGaLore
from lablib.optim.soap import SOAP
from lablib.parallel.zero.shards import FlatLayout

_OF_TORCH = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)  # element-wise
_WHOLE_SUMS = "sums over whole rows and columns; use an element-wise one, or keep its parameters whole"
_WHOLE_MATRICES = "whole matrices; keep its parameters whole, each on one rank"
_MUON = "whole matrices; use ShardedMuon on pieces_of(...), or OwnerMuon on whole parameters"
_NOT: Mapping[type, str] = MappingProxyType(
    {
        LAMB: "the norms of whole parameters; use ShardedLAMB on pieces_of(...)",
        Muon: _MUON,
        torch.optim.Muon: _MUON,
        Adafactor: _WHOLE_SUMS,
        torch.optim.Adafactor: _WHOLE_SUMS,
        SOAP: _WHOLE_MATRICES,
        GaLore: _WHOLE_MATRICES,
        QGaLore: _WHOLE_MATRICES,
    }
)


@dataclass(frozen=True, eq=False)
class Sharded:
    """This rank's piece of one parameter."""

    name: str  # of the parameter
    shape: tuple[int, ...]  # of the whole
    piece: nn.Parameter  # [k], a view of the shard; k may be 0
    counts: tuple[int, ...]  # k of every rank of the group; the sum is the whole
    shard: nn.Parameter  # of its unit; it has the gradient
    start: int  # offset of the piece in the shard


def require_steps_on_shards(optimizer: torch.optim.Optimizer, layouts: Iterable[FlatLayout]) -> None:
    """Raise ValueError for an optimizer with a different result on these shards than on whole buffers.

    It needs more than a shard, or its blocks straddle shards.
    """
    kind = type(optimizer)
    if (other := next((other for other in _NOT if isinstance(optimizer, other)), None)) is not None:
        raise ValueError(f"{kind.__name__} cannot step flat shards: it needs {_NOT[other]}.")
    if isinstance(optimizer, Adam8bit):
        for block in {group["block_size"] for group in optimizer.param_groups}:
            for layout in (layout for layout in layouts if layout.shard_numel % block):
                raise ValueError(
                    f"shards must be a multiple of the optimizer's blocks: got {layout.shard_numel} numbers and blocks "
                    f"of {block}; shard with multiple_of={block}."
                )
    elif not (isinstance(optimizer, _OF_TORCH) or getattr(optimizer, "is_element_wise", False)):
        known = [*(each for each in OPTIMIZERS.values() if each.is_element_wise), *_OF_TORCH]
        raise ValueError(
            f"{kind.__name__} is not known to be element-wise, so it may not step flat shards: use one of "
            f"{', '.join(each.__name__ for each in known)}, or keep its parameters whole."
        )


def pieces_of(
    shards: Sequence[nn.Parameter], layouts: Sequence[FlatLayout], group: dist.ProcessGroup | None = None
) -> list[Sharded]:
    """This rank's piece of every parameter of these units: of each unit the shard and the layout.

    pieces = pieces_of([unit.master for unit in sharded.units], [unit.layout for unit in sharded.units])
    """
    found = []
    for shard, layout in zip(shards, layouts, strict=True):
        if shard.numel() != layout.shard_numel or layout.world_size != dist.get_world_size(group):
            raise ValueError(
                f"a shard must be its layout's: got {shard.numel()} numbers on {dist.get_world_size(group)} ranks, the "
                f"layout has {layout.shard_numel} on {layout.world_size}."
            )
        by_rank = [{piece.name: piece for piece in layout.pieces(rank)} for rank in range(layout.world_size)]
        for name, shape in zip(layout.names, layout.shapes, strict=True):
            counts = tuple(pieces[name].numel if name in pieces else 0 for pieces in by_rank)
            own = by_rank[dist.get_rank(group)].get(name)
            start, numel = (own.start_in_shard, own.numel) if own is not None else (0, 0)
            piece = nn.Parameter(shard.data[start : start + numel])
            found.append(Sharded(name, shape, piece, counts, shard, start))
    return found


def share_gradients(optimizer: torch.optim.Optimizer, pieces: Iterable[Sharded]) -> None:
    """Give these pieces, during each optimizer step, their part of the shard's gradient."""
    owned = list(pieces)

    def before(*_: Any) -> None:
        for one in owned:
            grad, end = one.shard.grad, one.start + one.piece.numel()
            one.piece.grad = None if grad is None else grad[one.start : end]

    def after(*_: Any) -> None:
        for one in owned:
            one.piece.grad = None

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)


class ShardedLAMB(LAMB):
    """LAMB on pieces: equal to LAMB on whole parameters, up to rounding of sums in another order.

    Each step all-reduces two numbers per parameter, together.

        lamb = ShardedLAMB(pieces_of(shards, layouts), lr=1e-3)      # uses the shards' gradients

    Arguments:
        pieces: of all parameters, from `pieces_of`.
        group: the ranks that share them.
        settings: of LAMB.
    """

    def __init__(self, pieces: Sequence[Sharded], group: dist.ProcessGroup | None = None, **settings: Any):
        self.group = group
        super().__init__([(each.name, each.piece) for each in pieces], **settings)
        share_gradients(self, pieces)

    def update(self, params: list[Tensor], grads: list[Tensor], states: list[State], group: Settings) -> None:
        updates = adam_directions(grads, states, group["betas"], group["eps"])
        foreach.add_(updates, params, alpha=group["weight_decay"])
        # |w|^2 and |u|^2 of each parameter, summed over the ranks' pieces
        squares = torch.stack([*foreach.norm(params), *foreach.norm(updates)]).square_()
        dist.all_reduce(squares, group=self.group)
        w, u = squares.sqrt_().chunk(2)
        ratios = torch.where((w > 0) & (u > 0), w / u, torch.ones_like(w))
        foreach.mul_(updates, list(ratios))
        foreach.add_(params, updates, alpha=-group["lr"])
