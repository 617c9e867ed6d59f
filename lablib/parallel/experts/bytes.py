"""Bytes sent and kept per rank by a mixture of experts, and the rows that ranks exchange.

Sent by a rank in one step, with n = e ranks that share the experts (e t if they are whole on tensor ranks):

    counts      8 (n-1)/n E                             numbers of rows, sent first; only forward
    rows        2 (out + in) D w                        to the experts and back; backward their gradients
    tensor      cut    2 (t-1)/t (2 N D w + N k v)      y is summed; backward the gradients of x and of the weights
                whole  (t-1)/t (2 N D w + N k v)        y is gathered; backward the gradients of x and of the weights
                (t-1)/t (N E v + 2 D E w)               more with sequence parallelism: the router's logits, and its
                                                        gradient
    gradients   2 (d e - 1)/(d e) (D E + m S D F/c) w   router and shared experts, over all ranks with other tokens
                2 (d - 1)/d m (E/n) D F/c w             experts, over ranks with the same ones; c = t if cut, else 1

With an even load, out = in = (n-1)/n N k (N k / t where experts are whole): 4 (n-1)/n N k D w in all for the rows. An
expert's gradient is not sent if no other rank has the expert. Compared with all experts on each of d e ranks (dense
data parallelism), rows are fewer bytes if 4 N k D < 4 E D F, that is below E F / k tokens per rank.

Kept for backward in addition to x, with R rows for a rank's experts and N/p tokens as its own part (p = t if whole):

    inputs of experts   R D w
    hidden              2 R F/c w                       before and after GELU; gated: 4 R F/c w, gate and up, SiLU of
                                                        the gate, and the product
    outputs of experts  N/p k (D + 1) w                 with their weights (k v, not k w, if w = v)
    router              N (E v + 8 k)                   scores and choices; (k + 2) N v to normalize weights, if k > 1
                        (N + E) D v                     input and matrix in 32 bits, unless they already are; with
                                                        sequence parallelism N/t of the input
    shared              2 N S F/c w                     gated: 4 N S F/c w; with sequence parallelism x of all N, N D w

A dense MLP of the same FLOPs keeps 2 N k F w, the same as hidden; the k copies of D numbers, twice, are additional.

Cost: some sums; does not communicate.
Legend: N tokens of a rank, D width, E experts, k experts per token, S shared experts, F hidden width, m matrices of an
expert, 2 or gated 3, w bytes per number, v bytes per number of the router (at least 4); e expert, d data, t tensor
ranks.
Source: Lepikhin et al., "GShard", 2020, arXiv 2006.16668, section 3; Rajbhandari et al., "DeepSpeed-MoE", 2022, arXiv
2201.05596, section 5.2; Singh et al., 2023, arXiv 2303.06318, section 4. The layer: `experts/parallelize.py`.
Simplified: dropless, softmax gates; sums over ranks in rings; sizes that ranks divide. Row indices (16 k N bytes) that
dispatch and combine hold outside autograd are not counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lablib.parallel.experts.exchange import check_experts
from lablib.signature import Checked, Count, NonNegativeInt, check_fields, checked


@dataclass(frozen=True, slots=True)
class ExpertSizes:
    """Sizes of one mixture, and the tokens of a rank."""

    tokens: Count  # N, of one rank along data and expert; tensor ranks have the same tokens, or parts of them
    d_model: Count  # d_model, d_ff: D and F
    d_ff: Count
    num_experts: Count  # num_experts, k, num_shared: E, k and S
    k: Count
    num_shared: NonNegativeInt = 0
    element_bytes: Count = 2  # w; 2 for 16 bits
    has_gate: bool = False  # as of `MixtureConfig`

    def __post_init__(self) -> None:
        check_fields(self)
        check_experts(self.num_experts, self.k, 1)

    @property
    def matrices(self) -> int:
        """m, of an expert."""
        return 2 + self.has_gate


@dataclass(frozen=True, slots=True)
class ExpertRanks(Checked):
    """How ranks share a mixture."""

    expert: Count  # expert, data, tensor: e, d and t
    data: Count = 1
    tensor: Count = 1
    cuts_experts: bool = True  # whether tensor ranks cut each expert; otherwise each is whole on one of them
    cuts_sequence: bool = False  # whether there is sequence parallelism; only with cut experts

    @property
    def sequence_parts(self) -> int:
        """Ranks that divide the tokens of one rank outside of the mixture."""
        return self.tensor if self.cuts_sequence and self.cuts_experts else 1

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


@checked
def expert_sent_bytes(
    sizes: ExpertSizes, ranks: ExpertRanks, counts: Sequence[Sequence[int]] | None = None, rank: NonNegativeInt = 0
) -> dict[str, int]:
    """Bytes that one rank sends for one mixture in a step: "counts", "rows", "tensor" and "gradients".

    `rank` is one of the n that share the experts. Other arguments and Raises as `exchanged_rows`.
    """
    moved, n, width = exchanged_rows(sizes, ranks, counts), ranks.sharing, sizes.element_bytes
    if rank >= n:
        raise ValueError(f"rank must be 0 to {n - 1}, one of those that share the experts: got {rank}.")
    others = [r for r in range(n) if r != rank]
    out, back = sum(moved[rank][r] for r in others), sum(moved[r][rank] for r in others)
    t, row, everyone, d = ranks.tensor, sizes.d_model * width, ranks.data * ranks.expert, ranks.data
    tensor = (t - 1) * sizes.tokens * (2 * row + sizes.k * max(4, width)) // t
    dense = (
        sizes.d_model * sizes.num_experts + sizes.matrices * sizes.num_shared * sizes.d_model * sizes.d_ff // ranks.cut
    )
    gradients = 2 * (everyone - 1) * dense * width // everyone + 2 * (d - 1) * expert_weights(sizes, ranks) * width // d
    counts_bytes, tensor = 8 * (n - 1) * sizes.num_experts // n, 2 * tensor if ranks.cuts_experts else tensor
    router = sizes.num_experts * (sizes.tokens * max(4, width) + 2 * row)
    tensor += (ranks.sequence_parts - 1) * router // t
    return {"counts": counts_bytes, "rows": 2 * (out + back) * row, "tensor": tensor, "gradients": gradients}


@checked
def expert_kept_bytes(sizes: ExpertSizes, ranks: ExpertRanks) -> int:
    """Bytes that autograd keeps for one mixture on a rank with an even load, without x and the weights."""
    received = sum(row[0] for row in exchanged_rows(sizes, ranks))
    n, k, v, width = sizes.tokens, sizes.k, max(4, sizes.element_bytes), sizes.element_bytes
    is_narrow, own, row = width < v, n // ranks.token_parts, sizes.d_model * width
    hidden = (4 if sizes.has_gate else 2) * (received + n * sizes.num_shared) * sizes.d_ff * width // ranks.cut
    outputs = own * k * row + (own * k * width if is_narrow else n * k * v)
    router = n * sizes.num_experts * v + 8 * n * k + ((n * k + 2 * n) * v if k > 1 else 0)
    router += (n // ranks.sequence_parts + sizes.num_experts) * sizes.d_model * v if is_narrow else 0
    inputs = received + n * (ranks.sequence_parts > 1 and sizes.num_shared > 0)
    return inputs * row + hidden + outputs + router


def expert_weights(sizes: ExpertSizes, ranks: ExpertRanks) -> int:
    """Numbers of the experts' matrices that a rank has: m (E / n) D F / c; without the dense part."""
    return sizes.matrices * sizes.num_experts // ranks.sharing * sizes.d_model * sizes.d_ff // ranks.cut


def exchanged_rows(
    sizes: ExpertSizes, ranks: ExpertRanks, counts: Sequence[Sequence[int]] | None = None
) -> list[list[int]]:
    """[n][n]: rows from each rank to the experts of each.

    Arguments:
        counts: for each of the n ranks that share the experts, its rows for each expert; None: an even load, as from
            `route(balanced=True)`.

    Raises ValueError: sizes that ranks do not divide (`check_experts`), or counts of other ranks or experts.
    """
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
