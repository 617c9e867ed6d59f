"""Parameters that two pieces share, such as a head tied to the token embedding: one gradient, summed over their ranks.

One device has one parameter, and its gradient is the sum over its uses. A pipeline has a copy on each rank that holds
one of the pieces, with the gradient of that rank's uses. Copies stay equal only if each is updated with the sum:

    rank 0      embedding    grad_e ---\\ /--- grad_h    head      last rank
                             grad_e + grad_h on both

Pieces on one rank share the parameter itself, without communication: in a V the first rank has the first piece and the
last.

Cost: each of k ranks sends its gradient to the k - 1 others, V D numbers for a head; for k = 2, the bytes of an
all-reduce.
Source: Narayanan et al., "Megatron-LM", 2021, code of `allreduce_embedding_grads`; Shoeybi et al., 2019, arXiv
1909.08053, section 3 (tied embeddings).
Simplified: all sums follow the last backward, though most could overlap with it.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Tied(NamedTuple):
    """A parameter of several pieces on one of its ranks: `ranks` are all ranks that have a copy, in order."""

    param: nn.Parameter
    ranks: tuple[int, ...]


def tied_parameters(pieces: Sequence[nn.Module], rank_of: Sequence[int], rank: int) -> list[Tied]:
    """The trained parameters that this rank shares with another, in the same order on all ranks."""
    holders: dict[nn.Parameter, set[int]] = {}
    for piece, holder in zip(pieces, rank_of, strict=True):
        for param in piece.parameters():
            holders.setdefault(param, set()).add(holder)
    return [
        Tied(param, tuple(sorted(ranks)))
        for param, ranks in holders.items()
        if rank in ranks and len(ranks) > 1 and param.requires_grad
    ]


def sum_tied_gradients(tied: Sequence[Tied], rank: int, group: dist.ProcessGroup | None) -> None:
    """Sum the gradient of each tied parameter over the ranks that share it. Communicates."""
    if not tied:
        return
    grads = [torch.zeros_like(param) if param.grad is None else param.grad.contiguous() for param, _ in tied]
    received: list[Mapping[int, Tensor]] = []
    ops: list[dist.P2POp] = []
    for grad, (_, ranks) in zip(grads, tied, strict=True):
        of_others = {other: torch.empty_like(grad) for other in ranks if other != rank}
        for other, buffer in of_others.items():
            ops.append(dist.P2POp(dist.isend, grad, group=group, group_peer=other))
            ops.append(dist.P2POp(dist.irecv, buffer, group=group, group_peer=other))
        received.append({**of_others, rank: grad})
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    for (param, ranks), by_rank in zip(tied, received, strict=True):
        # Summed in rank order, so the copies are bit-identical.
        param.grad = torch.stack([by_rank[other] for other in ranks]).sum(0)
