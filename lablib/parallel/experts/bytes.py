"""Sizes of a mixture of experts on ranks, and the rows that ranks exchange.

With an even load a rank sends (n-1)/n N k rows to the experts (N k / t rows per rank where experts are whole), and gets
as many back. Compared with all experts on each of d e ranks (dense data parallelism), rows are fewer bytes than
gradients if 4 N k D < 4 E D F, that is below E F / k tokens per rank.

Cost: some sums; does not communicate. tests/studies/expert_bytes.py has all bytes sent and kept, next to the simulator.
Legend: N tokens of a rank, D width, E experts, k experts per token, S shared experts, F hidden width, w bytes per
number; e expert, d data, t tensor ranks; n = e ranks that share the experts (e t if they are whole on tensor ranks).
Source: Lepikhin et al., "GShard", 2020, arXiv 2006.16668, section 3; Rajbhandari et al., "DeepSpeed-MoE", 2022, arXiv
2201.05596, section 5.2; Singh et al., 2023, arXiv 2303.06318, section 4. The layer: `experts/parallelize.py`.
Simplified: dropless; sizes that ranks divide.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lablib.parallel.experts.exchange import check_experts
from lablib.signature import Count, NonNegativeInt, check_fields


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


def exchanged_rows(
    sizes: ExpertSizes, ranks: ExpertRanks, counts: Sequence[Sequence[int]] | None = None
) -> list[list[int]]:
    """[n][n]: rows from each rank to the experts of each.

    Arguments:
        counts: for each of the n ranks that share the experts, its rows for each expert; None: an even load, as from
            `route(balanced=True)`.

    Raises:
        ValueError: sizes that ranks do not divide (`check_experts`), or counts of other ranks or experts.
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
