"""Bytes sent and kept per rank by a mixture of experts, as closed forms.

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

Legend and sources: lablib/parallel/experts/bytes.py; v bytes per number of the router (at least 4). Sums over ranks in
rings. Row indices (16 k N bytes) that dispatch and combine hold outside autograd are not counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lablib.parallel.experts.bytes import ExpertRanks, ExpertSizes, exchanged_rows


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


def sent_bytes(
    sizes: ExpertSizes, ranks: ExpertRanks, counts: Sequence[Sequence[int]] | None = None, rank: int = 0
) -> ExpertBytes:
    """Bytes that one rank sends for one mixture, forward, backward and for the sum of gradients."""
    moved, n, width = exchanged_rows(sizes, ranks, counts), ranks.sharing, sizes.element_bytes
    others = [r for r in range(n) if r != rank]
    out, back = sum(moved[rank][r] for r in others), sum(moved[r][rank] for r in others)
    t, cut, row = ranks.tensor, ranks.cut, sizes.d_model * width
    tensor = (t - 1) * sizes.tokens * (2 * row + sizes.k * max(4, width)) // t
    dense = sizes.d_model * sizes.num_experts + 2 * sizes.num_shared * sizes.d_model * sizes.d_ff // cut
    everyone, d = ranks.data * ranks.expert, ranks.data
    gradients = 2 * (everyone - 1) * dense * width // everyone + 2 * (d - 1) * expert_weights(sizes, ranks) * width // d
    return ExpertBytes(
        counts=8 * (n - 1) * sizes.num_experts // n,
        rows=2 * (out + back) * row,
        tensor=2 * tensor if ranks.cuts_experts else tensor,
        gradients=gradients,
    )


def kept_bytes(sizes: ExpertSizes, ranks: ExpertRanks) -> int:
    """Bytes that autograd keeps for a mixture with an even load, without x and the weights."""
    received = sum(row[0] for row in exchanged_rows(sizes, ranks))
    n, k, v, width = sizes.tokens, sizes.k, max(4, sizes.element_bytes), sizes.element_bytes
    is_narrow, own, cut = width < v, n // ranks.token_parts, ranks.cut
    row = sizes.d_model * width
    rows, hidden = received * row, 2 * received * sizes.d_ff * width // cut
    said = own * k * row + (own * k * width if is_narrow else n * k * v)
    router = n * sizes.num_experts * v + 8 * n * k + ((n * k + 2 * n) * v if k > 1 else 0)
    router += (n + sizes.num_experts) * sizes.d_model * v if is_narrow else 0
    return rows + hidden + said + router + 2 * n * sizes.num_shared * sizes.d_ff * width // cut


def expert_weights(sizes: ExpertSizes, ranks: ExpertRanks) -> int:
    """Numbers of the experts' matrices that a rank has: 2 (E / n) D F / c; without the dense part."""
    return 2 * sizes.num_experts // ranks.sharing * sizes.d_model * sizes.d_ff // ranks.cut
