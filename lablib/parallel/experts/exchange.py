"""All-to-all of tokens to the ranks of their experts and back: first the numbers of rows, then the rows.

    rank 0: tokens sorted by expert   0 0 0 1 | 2 3 3      experts 0, 1 on rank 0; 2, 3 on rank 1
    rank 1:                           1 1 | 2 2 2 3

    counts     rank 0 sends (3, 1) and (1, 2), and gets (3, 1) from itself, (0, 2) from rank 1
    there      rank 0 gets rows           0 0 0 1 | 1 1    by rank
    reordered                             0 0 0 | 1 1 1    by expert
    back       the same in reverse

The numbers of rows are the sizes of the next all-to-all, so the host waits for them. With a balanced routing they are
known, and it does not wait.

Cost for n ranks, E experts, M rows sent and R received, of D numbers of w bytes; alpha and beta of the link:
    time_s alpha for the counts; in each direction alpha + D w beta per row of the busiest rank that crosses the link
    sent bytes 8 (n-1)/n E of counts; D w per row to another rank or back, and the same in backward peak bytes R D w,
    and the same again while rows are sorted by expert
Shapes: E experts, e = E / n on this rank, M rows sent, R rows received, D width.
Source: Lepikhin et al., "GShard", 2020, arXiv 2006.16668, section 3; Gale et al., "MegaBlocks", 2022, arXiv 2211.15841
(rows without a capacity).
Simplified: rows cross the network once per choice, even if two experts of a token are on one rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from lablib.parallel.experts.dispatch import expert_capacity
from lablib.parallel.experts.routing import check_choices
from lablib.parallel.tensor.regions import Group, exchange_rows, shard_range
from lablib.signature import Count, checked
from lablib.text.units import largest_divisor, plural

# ---- who has which experts ----


@checked
def check_experts(
    num_experts: Count,
    k: Count,
    ranks: Count,
    *,
    num_tokens: Count | None = None,
    capacity_factor: float | None = None,
    d_ff: Count | None = None,
    tensor_ranks: Count = 1,
    cuts_experts: bool = True,
) -> int:
    """Check sizes before any rank starts, and return the number of experts per rank.

    Arguments:
        ranks: number of ranks along the axis "expert".
        num_tokens: of one rank, for the capacity.
        d_ff: hidden width of an expert, cut over the tensor ranks.
        tensor_ranks, cuts_experts: as in `ExpertParallel`.

    Raises:
        ValueError: k above E, ranks that do not divide the experts, tensor ranks that do not divide hidden units (cut)
            or experts (whole); a capacity below one token of a rank's part of the tokens.
    """
    check_choices(num_experts, k)
    spread = ranks if cuts_experts else ranks * tensor_ranks
    if num_experts % spread:
        near = largest_divisor(num_experts, spread)
        raise ValueError(
            "the experts must be a multiple of the ranks they are spread over: got "
            f"{plural(num_experts, 'experts')} on {spread} ranks; try {plural(near, 'ranks')}, or "
            f"{-(-num_experts // spread) * spread} experts."
        )
    if cuts_experts and d_ff is not None and d_ff % tensor_ranks:
        raise ValueError(
            f"an expert's hidden width must be a multiple of the tensor ranks that cut it: got {d_ff} on "
            f"{tensor_ranks} ranks; try d_ff={-(-d_ff // tensor_ranks) * tensor_ranks}."
        )
    if num_tokens is not None and capacity_factor is not None:
        parts = 1 if cuts_experts else tensor_ranks
        last = (num_tokens - 1) // -(-num_tokens // parts)  # the last part with tokens may be the smallest
        start, end = shard_range(num_tokens, last, parts)
        expert_capacity(end - start, k, num_experts, capacity_factor)
    return num_experts // spread


# ---- counts and rows ----


@dataclass(frozen=True, slots=True)
class RowExchange:
    """Numbers of rows sent and received, on the host."""

    sent: tuple[int, ...]  # rows to each rank of the group
    received: tuple[tuple[int, ...], ...]  # from each rank, for each expert of this rank

    @property
    def from_ranks(self) -> tuple[int, ...]:
        """Rows from each rank."""
        return tuple(map(sum, self.received))

    @property
    def counts(self) -> tuple[int, ...]:
        """Rows of each expert of this rank."""
        return tuple(map(sum, zip(*self.received, strict=True)))


def exchange_counts(
    counts: Sequence[int], group: Group = None, *, is_balanced: bool = False, device: torch.device | str | None = None
) -> RowExchange:
    """Send every rank the number of rows for each of its experts. Communicates: one all-to-all of E numbers.

    `counts`: rows of each of the E experts, from this rank. `is_balanced`: all ranks have the same counts; they are
    exchanged, but not read (`route`, `balanced`). `device`: of the counts in the exchange, the device of the model.
    ValueError: ranks that do not divide the experts.
    """
    n, rank = dist.get_world_size(group), dist.get_rank(group)
    own = check_experts(len(counts), 1, n)
    sent = torch.tensor(list(counts), device=device)
    received = torch.empty_like(sent)
    if n > 1:
        dist.all_to_all_single(received, sent, group=group)
    to_ranks = tuple(sum(counts[i * own : (i + 1) * own]) for i in range(n))
    if is_balanced or n == 1:
        return RowExchange(to_ranks, (tuple(counts[rank * own : (rank + 1) * own]),) * n)
    return RowExchange(to_ranks, tuple(map(tuple, received.view(n, own).tolist())))


def reordered(rows: Tensor, blocks: Sequence[Sequence[int]]) -> Tensor:
    """Reorder rows in blocks [i][j] by j, then i."""
    if len(blocks) == 1 or len(blocks[0]) == 1:
        return rows
    pieces = rows.split([size for of_one in blocks for size in of_one])
    inner = len(blocks[0])
    return torch.cat([piece for j in range(inner) for piece in pieces[j::inner]])


def to_experts(rows_MD: Float[Tensor, "M D"], exchange: RowExchange, group: Group = None) -> Float[Tensor, "R D"]:
    """Send rows to the ranks of their experts, sorted by expert. Communicates: one all-to-all, one backward."""
    rows_RD = exchange_rows(rows_MD, exchange.sent, exchange.from_ranks, group)
    return reordered(rows_RD, exchange.received)


def from_experts(rows_RD: Float[Tensor, "R D"], exchange: RowExchange, group: Group = None) -> Float[Tensor, "M D"]:
    """Send rows back. Communicates: one all-to-all, one backward."""
    by_rank = reordered(rows_RD, list(zip(*exchange.received, strict=True)))
    return exchange_rows(by_rank, exchange.from_ranks, exchange.sent, group)
