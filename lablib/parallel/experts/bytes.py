"""Bytes sent and kept per rank by a mixture of experts: tokens, gradients, activations, weights.

Sent by a rank in one step, with n = e ranks that share the experts (e t if they are whole on tensor ranks):

    counts      8 (n-1)/n E                             numbers of rows, sent first; only forward
    rows        2 (out + in) D w                        to the experts and back; backward their gradients
    tensor      cut    2 (t-1)/t (2 N D w + N k v)      y is summed; backward the gradients of x and of the weights
                whole  (t-1)/t (2 N D w + N k v)        y is gathered; backward the gradients of x and of the weights
    gradients   2 (d e - 1)/(d e) (D E + 2 S D F/c) w   router and shared experts, over all ranks with other tokens
                2 (d - 1)/d 2 (E/n) D F/c w             experts, over ranks with the same ones; c = t if cut, else 1

With an even load, out = in = (n-1)/n N k (N k / t where experts are whole): 4 (n-1)/n N k D w in all for the rows. An
expert's gradient is not sent if no other rank has the expert. Compared with all experts on each of d e ranks (dense
data parallelism), rows are fewer bytes if 4 N k D < 4 E D F, that is below E F / k tokens per rank.

Kept for backward in addition to x, with R rows for a rank's experts and N/p tokens as its own part (p = t if whole):

    rows        R D w                           inputs of the experts
    hidden      2 R F/c w                       before and after GELU
    said        N/p k (D + 1) w                 outputs of experts, and their weights (k v, not k w, if w = v)
    router      N (E v + 8 k)                   scores and choices; (k + 2) N v to normalize weights, if k > 1
                (N + E) D v                     input and matrix in 32 bits, unless they already are
    shared      2 N S F/c w

A dense MLP of the same FLOPs keeps 2 N k F w, the same as hidden; the k copies of D numbers, twice, are additional.

Cost: some sums; does not communicate.
Legend: N tokens of a rank, D width, E experts, k experts per token, S shared experts, F hidden width, w bytes per
number, v bytes per number of the router (at least 4); e expert, d data, t tensor ranks.
Source: Lepikhin et al., "GShard", 2020, arXiv 2006.16668, section 3; Rajbhandari et al., "DeepSpeed-MoE", 2022, arXiv
2201.05596, section 5.2; Singh et al., 2023, arXiv 2303.06318, section 4. The layer: `experts/parallelize.py`.
Simplified: dropless, softmax gates; sums over ranks in rings; sizes that ranks divide. Row indices (16 k N bytes) that
dispatch and combine hold outside autograd are not counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lablib.parallel.experts.exchange import check_experts
from lablib.signature import Count, NonNegativeInt, check_fields, checked

COUNT_BYTES = 8  # of a number of rows, int64


@dataclass(frozen=True, slots=True)
class ExpertSizes:
    """Sizes of one mixture, and the tokens of a rank."""

    tokens: Count  # N, of one rank along data and expert; tensor ranks have the same tokens
    d_model: Count  # d_model, d_ff: D and F
    d_ff: Count
    num_experts: Count  # num_experts, k, num_shared: E, k and S
    k: Count
    num_shared: NonNegativeInt = 0
    element_bytes: Count = 2  # w; 2 for 16 bits

    def __post_init__(self) -> None:
        check_fields(self)
        check_experts(self.num_experts, self.k, 1)

    @property
    def row_bytes(self) -> int:
        """D w."""
        return self.d_model * self.element_bytes

    @property
    def router_bytes(self) -> int:
        """v: bytes of a number of the router."""
        return max(4, self.element_bytes)


@dataclass(frozen=True, slots=True)
class ExpertRanks:
    """How ranks share a mixture."""

    expert: Count  # expert, data, tensor: e, d and t
    data: Count = 1
    tensor: Count = 1
    cuts_experts: bool = True  # whether tensor ranks cut each expert; otherwise each is whole on one of them

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def sharing(self) -> int:
        """n: ranks over which experts are spread."""
        return self.expert if self.cuts_experts else self.expert * self.tensor

    @property
    def cut(self) -> int:
        """c: ranks that cut each expert."""
        return self.tensor if self.cuts_experts else 1

    @property
    def token_parts(self) -> int:
        """Ranks that divide the tokens of one rank."""
        return 1 if self.cuts_experts else self.tensor


@dataclass(frozen=True, slots=True)
class ExpertBytes:
    """Bytes sent by one rank in a step, by purpose."""

    counts: int
    rows: int
    tensor: int
    gradients: int

    @property
    def total(self) -> int:
        return self.counts + self.rows + self.tensor + self.gradients


@checked
def expert_sent_bytes(
    sizes: ExpertSizes, ranks: ExpertRanks, counts: Sequence[Sequence[int]] | None = None, rank: NonNegativeInt = 0
) -> ExpertBytes:
    """Bytes that one rank sends for one mixture, forward, backward and for the sum of gradients.

    Arguments:
        counts: for each of the n ranks that share the experts, its rows for each expert; None: an even load, as from
            `route(balanced=True)`.
        rank: one of these n.

    Raises:
        ValueError: sizes that ranks do not divide (`check_experts`), counts of other ranks or experts, no such rank.
    """
    moved, n, width = exchanged_rows(sizes, ranks, counts), ranks.sharing, sizes.element_bytes
    others = [r for r in range(n) if r != _of(rank, n)]
    out, back = sum(moved[rank][r] for r in others), sum(moved[r][rank] for r in others)
    t = ranks.tensor
    tensor = (t - 1) * sizes.tokens * (2 * sizes.row_bytes + sizes.k * sizes.router_bytes) // t
    dense = sizes.d_model * sizes.num_experts + 2 * sizes.num_shared * sizes.d_model * sizes.d_ff // ranks.cut
    everyone, d = ranks.data * ranks.expert, ranks.data
    gradients = 2 * (everyone - 1) * dense * width // everyone + 2 * (d - 1) * expert_weights(sizes, ranks) * width // d
    return ExpertBytes(
        counts=COUNT_BYTES * (n - 1) * sizes.num_experts // n,
        rows=2 * (out + back) * sizes.row_bytes,
        tensor=2 * tensor if ranks.cuts_experts else tensor,
        gradients=gradients,
    )


@checked
def expert_weights(sizes: ExpertSizes, ranks: ExpertRanks) -> int:
    """Numbers of the experts' matrices that a rank has: 2 (E / n) D F / c; without the dense part."""
    own = check_experts(sizes.num_experts, sizes.k, ranks.sharing)
    return 2 * own * sizes.d_model * sizes.d_ff // ranks.cut


def exchanged_rows(
    sizes: ExpertSizes, ranks: ExpertRanks, counts: Sequence[Sequence[int]] | None = None
) -> list[list[int]]:
    """[n][n]: rows from each rank to the experts of each. Arguments and Raises as `expert_sent_bytes`."""
    t = ranks.tensor
    options = {"d_ff": sizes.d_ff, "tensor_ranks": t, "cuts_experts": ranks.cuts_experts}
    check_experts(sizes.num_experts, sizes.k, ranks.expert, **options)
    if sizes.tokens % ranks.token_parts:
        near = -(-sizes.tokens // t) * t
        raise ValueError(f"tokens must be a multiple of the tensor ranks: got {sizes.tokens} on {t}; try {near}.")
    n, own = ranks.sharing, sizes.num_experts // ranks.sharing
    tokens = sizes.tokens // ranks.token_parts
    if counts is None:
        least, more = divmod(tokens * sizes.k, sizes.num_experts)
        counts = [[least + (e < more) for e in range(sizes.num_experts)]] * n
    if len(counts) != n or any(len(row) != sizes.num_experts for row in counts):
        raise ValueError(
            f"counts must be of {n} ranks and {sizes.num_experts} experts: got {len(counts)} and "
            f"{sorted({len(row) for row in counts})}."
        )
    if any(sum(row) != tokens * sizes.k or min(row) < 0 for row in counts):
        raise ValueError(
            f"the counts of a rank must sum to {tokens} tokens x {sizes.k} choices: got "
            f"{[sum(row) for row in counts][:8]}; count dropless choices."
        )
    return [[sum(row[r * own : (r + 1) * own]) for r in range(n)] for row in counts]


def _of(rank: int, n: int) -> int:
    """The rank; raises ValueError if it is not 0 to n - 1."""
    if rank >= n:
        raise ValueError(f"rank must be 0 to {n - 1}, one of those that share the experts: got {rank}.")
    return rank
