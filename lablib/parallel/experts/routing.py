"""Routing: k of E experts for every token, and the weights of their outputs.

A router is a matrix that gives one logit for each token and expert. Gates turn logits into scores; the k experts with
the highest scores are chosen; their scores are the weights. The choice has no gradient: the router learns only from the
gradient of the weights, so a constant weight of 1 trains nothing.

    gates      scores                  chosen by                   weights                       who
    softmax    sum to 1 over E         score                       the score (k = 1)             Switch
    softmax                            score                       scores / their sum over k     Mixtral, GShard
    sigmoid    independent             score + bias                scores / their sum, x scale   DeepSeek-V3

Softmax over only the k chosen logits is the same as the second row: exp(l) / sum over k exp(l). A bias changes the
choice, not the weight (`experts/losses.py`). Choices may be limited to a few groups of experts, such as the experts of
one node, so that a token is sent to few nodes.

Equal scores are ordered by expert, so the same logits give the same routing on every device.

`balanced=True` assigns
tokens in turn, without regard to scores: choice i goes to expert i mod E. Then the number of tokens per expert does not
depend on values, as needed under fidelity="shapes", and the load is even. Weights are still the scores.

Cost for N tokens: the router's product, 2 N D E FLOPs; a sort of E numbers per token; N E numbers kept twice.
Shapes: N tokens of this rank, D width, E experts, k experts per token.
Source: Shazeer et al., "Outrageously Large Neural Networks", 2017, arXiv 1701.06538, section 2.1 (top k of gates);
Fedus et al., "Switch Transformers", 2021, arXiv 2101.03961, section 2.1 (k = 1, float32); Jiang et al., "Mixtral of
Experts", 2024, arXiv 2401.04088, section 2.1; DeepSeek-AI, "DeepSeek-V3", 2024, arXiv 2412.19437, section 2.1.2.
Simplified: no noise (Shazeer adds it to the logits; a caller can do this).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lablib.errors import ValueNeededError
from lablib.signature import Count, Positive, checked

Gates = Callable[[Tensor], Tensor]  # logits [N, E] -> scores [N, E]


@dataclass(frozen=True, eq=False, slots=True)
class Routing:
    """The experts of each token."""

    experts_Nk: Int[Tensor, "N k"]  # chosen experts, best first; int64 in [0, E), different for a token
    weights_Nk: Float[Tensor, "N k"]  # of their outputs; with a gradient
    scores_NE: Float[Tensor, "N E"]  # of all experts; with a gradient
    logits_NE: Float[Tensor, "N E"]  # of the router
    # whether tokens were assigned in turn; then all ranks must have the same number of tokens
    is_balanced: bool = False

    @property
    def num_tokens(self) -> int:
        return self.experts_Nk.shape[0]

    @property
    def k(self) -> int:
        return self.experts_Nk.shape[1]

    @property
    def num_experts(self) -> int:
        return self.scores_NE.shape[1]

    def counts_E(self) -> Int[Tensor, " E"]:
        """Tokens that chose each expert, on the device."""
        experts = self.experts_Nk.flatten()
        return experts.new_zeros(self.num_experts).scatter_add_(0, experts, torch.ones_like(experts))

    def counts(self) -> tuple[int, ...]:
        """The same as numbers: waits for the device. Under "shapes" ValueNeededError, unless routing is balanced."""
        if self.is_balanced:
            least, more = divmod(self.num_tokens * self.k, self.num_experts)
            return tuple(least + (expert < more) for expert in range(self.num_experts))
        try:
            return tuple(self.counts_E().tolist())
        except ValueNeededError as error:
            raise ValueNeededError(
                'the number of tokens of an expert depends on values, which fidelity="shapes" does not compute: '
                'use balanced=True, which assigns tokens evenly, or fidelity="values".'
            ) from error


def softmax_gates(logits_NE: Float[Tensor, "N E"]) -> Float[Tensor, "N E"]:
    """Scores that sum to 1: experts compete."""
    return logits_NE.softmax(-1)


def sigmoid_gates(logits_NE: Float[Tensor, "N E"]) -> Float[Tensor, "N E"]:
    """Scores in (0, 1), independent of other experts."""
    return logits_NE.sigmoid()


@checked
def route(
    logits_NE: Float[Tensor, "N E"],
    k: Count,
    *,
    gates: Gates = softmax_gates,
    normalized: bool | None = None,
    scale: Positive = 1.0,
    bias_E: Float[Tensor, " E"] | None = None,
    groups: Count = 1,
    groups_of_token: Count = 1,
    balanced: bool = False,
) -> Routing:
    """Choose k experts for each token. Does not communicate.

    Arguments:
        logits_NE: of the router. Scores are computed at least in float32: in bfloat16 close scores would be equal.
        k: experts of a token, 1 to E.
        gates: `softmax_gates` or `sigmoid_gates`.
        normalized: whether a token's weights are divided by their sum; None: if k is above 1.
        scale: factor of the weights (DeepSeek-V3: 2.5).
        bias_E: added to the scores for the choice, never to the weights.
        groups, groups_of_token: experts form `groups` groups of neighbours, and a token uses `groups_of_token` of them:
            the groups with the highest sum of their best k / groups_of_token scores.
        balanced: choices in turn instead of the best.

    Raises:
        ValueError: logits that are not a floating-point matrix; k above E; normalized weights for k = 1, which are
            always 1; groups that do not divide the experts, or too few for k; a bias for another number of experts.
    """
    if logits_NE.ndim != 2 or not logits_NE.is_floating_point():
        raise ValueError(
            f"logits must be [N, E] in floating point: got {tuple(logits_NE.shape)} of {logits_NE.dtype}; "
            "flatten the tokens."
        )
    num_experts = logits_NE.shape[1]
    check_choices(num_experts, k, groups, groups_of_token)
    check_weights(k, normalized)
    if bias_E is not None and bias_E.shape != (num_experts,):
        raise ValueError(
            f"a bias must have a number for each expert: got {tuple(bias_E.shape)} for {num_experts} experts."
        )
    scores_NE = gates(logits_NE.to(torch.promote_types(logits_NE.dtype, torch.float32)))
    if balanced:
        experts_Nk = torch.arange(len(logits_NE) * k, device=logits_NE.device).remainder(num_experts).view(-1, k)
    else:
        experts_Nk = _chosen(scores_NE.detach(), k, bias_E, groups, groups_of_token)
    weights_Nk = scores_NE.gather(1, experts_Nk)
    if k > 1 if normalized is None else normalized:
        weights_Nk = weights_Nk / weights_Nk.sum(1, keepdim=True).clamp(min=1e-20)  # all scores may be 0
    if scale != 1.0:
        weights_Nk = weights_Nk * scale
    return Routing(experts_Nk, weights_Nk, scores_NE, logits_NE, balanced)


def _chosen(scores_NE: Tensor, k: int, bias_E: Tensor | None, groups: int, groups_of_token: int) -> Tensor:
    """The k best, best first, ties in the order of experts: torch.topk does not define the order of ties."""
    by_NE = scores_NE if bias_E is None else scores_NE + bias_E
    if groups_of_token < groups:
        by_NGE = by_NE.unflatten(1, (groups, -1))
        best_NG = by_NGE.sort(-1, descending=True).values[..., : max(1, k // groups_of_token)].sum(-1)
        kept_Ng = best_NG.sort(dim=-1, descending=True, stable=True).indices[:, :groups_of_token]
        is_kept_NG = torch.zeros_like(best_NG, dtype=torch.bool).scatter_(1, kept_Ng, True)
        by_NE = by_NGE.masked_fill(~is_kept_NG[..., None], -torch.inf).flatten(1)
    return by_NE.sort(dim=-1, descending=True, stable=True).indices[:, :k].contiguous()


@checked
def check_choices(num_experts: Count, k: Count, groups: Count = 1, groups_of_token: Count = 1) -> None:
    """Raise ValueError for k above E, groups that do not divide E, or groups of a token with fewer than k experts."""
    if k > num_experts:
        raise ValueError(f"k must be at most the number of experts: got {k} of {num_experts}; try k={num_experts}.")
    if num_experts % groups:
        raise ValueError(f"groups must divide the experts: got {groups} groups of {num_experts} experts; try groups=1.")
    if groups_of_token > groups or groups_of_token * (num_experts // groups) < k:
        most = groups_of_token * (num_experts // groups)
        raise ValueError(
            f"groups_of_token must be at most groups, and have k experts: got {groups_of_token} of {groups} groups, "
            f"{most} experts for k={k}; try groups_of_token={groups}."
        )


def check_weights(k: int, normalized: bool | None) -> None:
    """Raise ValueError for normalized weights with k = 1, which are always 1."""
    if normalized and k == 1:
        raise ValueError(
            "with k=1 a normalized weight is always 1, and the router gets no gradient: got normalized=True; "
            "use normalized=False."
        )
