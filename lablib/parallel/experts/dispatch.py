"""Dispatch and combine: move tokens to the rows of their experts, and the experts' outputs back.

    naive   a mask [N, E, C] assigns tokens to slots of experts; two einsums move rows by it
    real    choices sorted by expert: rows are indexed, without products with 0

        choices     token 0 -> expert 1     token 1 -> expert 0     token 2 -> expert 1         k = 1
        sorted      expert 0: token 1   |   expert 1: tokens 0, 2           a stable sort: in order of arrival
        rows_MD     x_1 | x_0 x_2       ->  the experts, each its run of rows
        combine     y_i = sum over choices of weight times row, found by the index of the row

With a capacity C an expert takes at most C choices, and the others are dropped: a dropped choice adds nothing, and a
token with all choices dropped only continues in the residual stream. The dropped choices:

    LATEST   in order of arrival: first choices of all tokens before second choices (GShard)
    SCORE    the choices with the least weight (batch priority in V-MoE)

Dropless: no capacity, one row per choice. It needs products of uneven groups (`experts/products.py`).

Cost for N tokens of D numbers of w bytes, k choices, and E experts of C = N k / E slots:
    naive  FLOPs       4 N E C D = 4 N^2 k D forward: quadratic in the tokens of a rank
           peak bytes  2 N E C w for two masks
    real   bytes       2 N k D w read and written in dispatch, and the same in combine
           peak bytes  2 N k D w: rows, and rows in order of tokens; 16 N k for the row indices
Shapes: N tokens, k choices of each, E experts, C slots of an expert, D width, M rows: N k less dropped ones. The j-th
choice of token i has the number c = j N + i.
Source: Lepikhin et al., "GShard", 2020, arXiv 2006.16668, algorithm 1 and section 3.2 (masks, einsums, capacity);
Gale et al., "MegaBlocks", 2022, arXiv 2211.15841, sections 3 and 5 (dropless, sorted); Riquelme et al., "Scaling Vision
with Sparse Mixture of Experts", 2021, arXiv 2106.05974, section 4 (priority by score).
Simplified: one kernel for each movement of rows; GPU libraries fuse them with the products.
"""

# pyright: reportIncompatibleMethodOverride=false
from dataclasses import dataclass
from enum import Enum
from math import ceil

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from lablib.parallel.experts.routing import Routing, check_choices
from lablib.parallel.tensor.regions import with_gradient
from lablib.signature import Count, checked


class Drop(Enum):
    """The choices that a full expert drops."""

    LATEST = "latest"
    SCORE = "score"


LATEST, SCORE = Drop.LATEST, Drop.SCORE


@checked
def expert_capacity(num_tokens: Count, k: Count, num_experts: Count, factor: float) -> int:
    """Slots C of each expert: `factor` times an even share of the choices, rounded up.

    >>> expert_capacity(1024, 2, 8, 1.25)
    320

    Arguments:
        num_tokens: N, of one rank: slots are per rank.
        factor: 1 has room for an even load; 1.25 to 2 are usual.

    Raises ValueError: a share below one token; k above E.
    """
    check_choices(num_experts, k)
    share = num_tokens * k / num_experts
    if not 1 <= factor * share < float("inf"):
        raise ValueError(
            f"an expert must have room for at least one token: got factor {factor:g} of {num_tokens} tokens x {k} "
            f"choices / {num_experts} experts = {factor * share:.3g}; try a factor of {max(1, ceil(1 / share))}, "
            "or more tokens."
        )
    return ceil(factor * share)


# ---- naive ----


def naive_masks(routing: Routing, capacity: int) -> tuple[Float[Tensor, "N E C"], Float[Tensor, "N E C"]]:
    """Masks of the token in each slot of each expert, as 0 or 1 and as weights; the latest choices are dropped."""
    is_chosen_XE = F.one_hot(routing.experts_Nk.T.flatten(), routing.num_experts)  # X: choices in their order
    slot_X = ((is_chosen_XE.cumsum(0) - 1) * is_chosen_XE).sum(1)  # earlier choices of the same expert
    is_in_XC = slot_X[:, None] == torch.arange(capacity, device=slot_X.device)
    takes_kNEC = (is_chosen_XE[:, :, None] * is_in_XC[:, None]).unflatten(0, (routing.k, -1))
    weighs_NEC = (takes_kNEC * routing.weights_Nk.T[:, :, None, None]).sum(0)
    return takes_kNEC.sum(0).to(weighs_NEC.dtype), weighs_NEC


def naive_dispatch(x_ND: Float[Tensor, "N D"], takes_NEC: Float[Tensor, "N E C"]) -> Float[Tensor, "E C D"]:
    """Rows of each expert; an empty slot has a row of zeros."""
    return torch.einsum("nd,nec->ecd", x_ND, takes_NEC.to(x_ND.dtype))


def naive_combine(rows_ECD: Float[Tensor, "E C D"], weighs_NEC: Float[Tensor, "N E C"]) -> Float[Tensor, "N D"]:
    """For each token the weighted sum of its rows."""
    return torch.einsum("ecd,nec->nd", rows_ECD, weighs_NEC.to(rows_ECD.dtype))


# ---- real ----


@dataclass(frozen=True, eq=False, slots=True)
class Permutation:
    """The row of each choice: computed once from a routing, used by dispatch and combine."""

    choices_M: Int[Tensor, " M"]  # the choice of each row. Rows are sorted by expert, then by arrival.
    rows_kN: Int[Tensor, "k N"]  # the row of each choice; M if dropped
    counts: tuple[int, ...]  # rows of each expert, on the host; they sum to M
    num_dropped: int = 0  # choices without a row

    @property
    def num_rows(self) -> int:
        return len(self.choices_M)

    @property
    def tokens_M(self) -> Int[Tensor, " M"]:
        """The token of each row."""
        return self.choices_M.remainder(max(1, self.rows_kN.shape[1]))


@checked
def sort_by_expert(routing: Routing, capacity: Count | None = None, drop: Drop = LATEST) -> Permutation:
    """Sort the choices by expert. Waits for the device, as counts are needed on the host (`Routing.counts`).

    Arguments:
        capacity: most rows C of an expert; None: dropless.
        drop: the choices that a full expert drops.

    Raises ValueNeededError: under fidelity="shapes", a routing that is not balanced.
    """
    counts, experts_X = routing.counts(), routing.experts_Nk.T.flatten()
    if capacity is not None and capacity < max(counts):
        if drop is SCORE:
            by_weight_X = routing.weights_Nk.detach().T.flatten().argsort(descending=True, stable=True)
            choices_X = by_weight_X[experts_X[by_weight_X].argsort(stable=True)]
        else:
            choices_X = experts_X.argsort(stable=True)
        kept = [of_expert[:capacity].sort().values for of_expert in choices_X.split(counts)]
        choices_M, kept_counts = torch.cat(kept), tuple(min(count, capacity) for count in counts)
    else:
        choices_M, kept_counts = experts_X.argsort(stable=True), counts
    numbers_M = torch.arange(len(choices_M), device=choices_M.device)
    rows_X = torch.full_like(experts_X, len(choices_M)).scatter_(0, choices_M, numbers_M)
    rows_kN = rows_X.view(routing.k, routing.num_tokens)
    return Permutation(choices_M, rows_kN, kept_counts, sum(counts) - sum(kept_counts))


def dispatch(x_ND: Float[Tensor, "N D"], permutation: Permutation) -> Float[Tensor, "M D"]:
    """The tokens as rows, sorted by expert. Backward: each token's gradient is the sum over its rows."""
    if len(x_ND) != permutation.rows_kN.shape[1]:
        raise ValueError(
            f"a permutation must be for its tokens: got one for {permutation.rows_kN.shape[1]} instead of {len(x_ND)} "
            "tokens; make it of their routing."
        )
    return with_gradient(
        x_ND,
        lambda x_ND: x_ND.index_select(0, permutation.tokens_M),
        # Index the row of each choice and add choices in order: deterministic, unlike index_add on a GPU.
        lambda grad_MD: _rows_of_choices(grad_MD, permutation).sum(0),
    )


def combine(
    rows_MD: Float[Tensor, "M D"], permutation: Permutation, weights_Nk: Float[Tensor, "N k"]
) -> Float[Tensor, "N D"]:
    """For each token the weighted sum of its rows; a dropped choice adds 0, and its weight's gradient is 0.

    `rows_MD`: the experts' outputs, in the order of `dispatch`; `weights_Nk` are cast to their dtype.
    """
    if len(rows_MD) != permutation.num_rows or weights_Nk.T.shape != permutation.rows_kN.shape:
        k, tokens = permutation.rows_kN.shape
        raise ValueError(
            f"combine takes the rows and weights of one routing: got {len(rows_MD)} rows and weights "
            f"{tuple(weights_Nk.shape)} for {permutation.num_rows} rows of [{tokens}, {k}] choices."
        )
    said_kND = with_gradient(
        rows_MD,
        lambda rows_MD: _rows_of_choices(rows_MD, permutation),
        lambda grad_kND: grad_kND.flatten(0, 1).index_select(0, permutation.choices_M),
    )
    return (said_kND * weights_Nk.T.to(rows_MD.dtype)[:, :, None]).sum(0)


def _rows_of_choices(rows_MD: Tensor, permutation: Permutation) -> Tensor:
    """Rows of experts in the order of choices: k copies of the tokens, zeros for dropped choices."""
    if permutation.num_dropped:
        rows_MD = torch.cat([rows_MD, rows_MD.new_zeros(1, rows_MD.shape[1])])
    return rows_MD.index_select(0, permutation.rows_kN.flatten()).unflatten(0, permutation.rows_kN.shape)
