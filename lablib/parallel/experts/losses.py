"""Load balance of experts: an auxiliary loss, or a bias without a loss; and the z-loss for small logits.

Without balancing, an expert with more tokens learns faster and is chosen more. f_e is the share of choices of expert e,
P_e its mean score divided by the sum over experts; with an even load f_e = 1 / E.

    auxiliary loss    E sum_e f_e P_e                     1 for an even load. f has no gradient: P of busy experts falls
    loss-free bias    b_e += rate sign(mean - count_e)    no gradient; b affects the choice, not the weights
    z-loss            mean of logsumexp(logits)^2         keeps logits small, as large ones round badly

f is computed over the tokens of all ranks of a group. An auxiliary loss per rank is stricter: the tokens of *each rank*
must be spread evenly, though one rank may have code and another poems, for different experts. The loss of the group is
not the mean of the ranks' losses:

    rank 0: f = P = (1, 0)    rank 1: f = P = (0, 1)        by rank: (2 + 2) / 2 = 2     of the group: 1, even load

Only f must be summed over ranks: P is a mean, and data parallelism averages its gradients over ranks anyway. So each
rank returns a part, and the *mean* of the parts over ranks is the loss of the group. Averaged gradients are then
correct for the group, also with unequal numbers of tokens per rank.

Cost: one all-reduce of E + 1 numbers; sums over N E numbers.
Shapes: N tokens of this rank, E experts, k experts per token.
Source: Fedus et al., "Switch Transformers", 2021, arXiv 2101.03961, equations 4 to 6; Zoph et al., "ST-MoE", 2022,
arXiv 2202.08906, equation 5 (z-loss); Wang et al., "Auxiliary-Loss-Free Load Balancing", 2024, arXiv 2408.15664,
algorithm 1 (sign update); DeepSeek-AI, 2024, arXiv 2412.19437, equations 17 to 20 (P of sigmoids); Qiu et al., "Demons
in the Detail", 2025, arXiv 2501.11873 (f over all ranks).
Simplified: for k > 1, f and P are shares of k N choices and of all scores; no loss per sequence (DeepSeek-V3 has one).
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor

from lablib.parallel.experts.routing import Routing
from lablib.parallel.tensor.regions import Group
from lablib.signature import NonNegative, checked


@dataclass(frozen=True, eq=False, slots=True)
class Load:
    """The load of the experts."""

    counts_E: Int[Tensor, " E"]  # choices of each expert, over the tokens of all ranks of a group
    num_tokens: Int[Tensor, ""]  # of these ranks together, a tensor with one number
    num_ranks: int = 1  # number of these ranks

    @property
    def shares_E(self) -> Float[Tensor, " E"]:
        """f: the share of choices of each expert; the sum is 1."""
        return self.counts_E / self.counts_E.sum().clamp(min=1)

    @property
    def imbalance(self) -> Float[Tensor, ""]:
        """The busiest expert's choices over the mean: 1 for an even load, at most E."""
        return self.shares_E.max() * len(self.counts_E)


@checked
def own_load(routing: Routing) -> Load:
    """The load from this rank's tokens. Does not communicate."""
    counts_E = routing.counts_E()
    return Load(counts_E, counts_E.new_tensor(routing.num_tokens))


@checked
def group_load(routing: Routing, group: Group = None) -> Load:
    """The load from the tokens of all ranks of the group. Communicates: one all-reduce of E + 1 numbers."""
    own = own_load(routing)
    numbers = torch.cat([own.counts_E, own.num_tokens[None]])
    dist.all_reduce(numbers, group=group)
    return Load(numbers[:-1], numbers[-1], dist.get_world_size(group))


@checked
def balancing_loss(routing: Routing, load: Load | None = None) -> Float[Tensor, ""]:
    """Switch's auxiliary loss: this rank's part; the mean over the ranks of `load` is the whole loss.

    Add it to the loss of the model with a factor such as 0.01, and average gradients over the same ranks. `load`: of a
    group (`group_load`); None: of this rank's tokens. ValueError: a load of another number of experts.
    """
    load = own_load(routing) if load is None else load
    if len(load.counts_E) != routing.num_experts:
        raise ValueError(
            f"the load must be for the routing's experts: got {len(load.counts_E)} and {routing.num_experts}; "
            "give group_load of the same routing."
        )
    # Normalize sigmoids, which could all fall together; a softmax does not change.
    scores_NE = routing.scores_NE / routing.scores_NE.sum(1, keepdim=True).clamp(min=1e-20)
    shares_E = load.shares_E.to(scores_NE.dtype)
    return routing.num_experts * (shares_E * scores_NE).sum() * _factor(load)


@checked
def router_z_loss(routing: Routing, load: Load | None = None) -> Float[Tensor, ""]:
    """ST-MoE's z-loss; this rank's part, as in `balancing_loss`. Its usual factor is 0.001."""
    load = own_load(routing) if load is None else load
    logits_NE = routing.logits_NE.to(routing.scores_NE.dtype)
    return logits_NE.logsumexp(-1).square().sum() * _factor(load)


@torch.no_grad()
@checked
def update_bias_(bias_E: Float[Tensor, " E"], load: Load, rate: NonNegative = 0.001) -> None:
    """Loss-free balancing, after a step: lower the bias of busy experts, raise the bias of idle ones. Changes `bias_E`.

    Use the load of all ranks, or the biases of ranks diverge. ValueError: a load of another number of experts.
    """
    if bias_E.shape != load.counts_E.shape:
        raise ValueError(
            f"a bias must have a number for each expert: got {tuple(bias_E.shape)} and {len(load.counts_E)} experts."
        )
    # mean - count, times E: whole numbers, so that an even load is exactly 0.
    bias_E += rate * (load.counts_E.sum() - load.counts_E * len(load.counts_E)).sign()


def _factor(load: Load) -> Tensor:
    """Factor for a sum over a rank's tokens, so that the mean over ranks is the mean over all tokens."""
    return load.num_ranks / load.num_tokens.clamp(min=1)
