"""Spread the experts of a plain model over ranks, also with tensor parallelism, without changing the model file.

    model = ExpertParallel(mesh.group("expert")).parallelize(with_experts(GPT(config), num_experts=8, k=2))

Each mixture is replaced by one with this rank's experts; router and bias are on every rank. Tensor ranks have the same
tokens, and experts are either

    cut     each over the tensor ranks, by its hidden units; tokens are sent along "expert", k times on every tensor
            rank, and y leaves the region as a sum
    whole   on one rank each: experts spread over "expert" and "tensor" together; a tensor rank takes its 1 / T of the
            tokens, and y is gathered. Fewer bytes are sent, and products are not narrower

With sequence parallelism a tensor rank has n = N / T tokens outside of the mixture. It computes the router's logits of
these, so each token is seen once; x and logits of all N are gathered, cut experts work as above, and the sum of y is
reduce-scattered. So does Megatron's MoEAllGatherTokenDispatcher, also along its expert axis; here tokens are sent.

Cost for R expert ranks, T tensor ranks, N tokens, w bytes per number, in addition to `experts/parallel.py`:
    time_s      a pass: cut: an all-reduce of N D w; whole: an all-gather of N D w
    peak bytes  weights 2 E / (R T) D F w, both ways
    sent bytes  a pass: cut: 2 (T-1)/T N D w, also with sequence parallelism; whole: (T-1)/T N D w. `experts/bytes.py`
                has all, to the byte
Shapes: N tokens of this rank, n = N / T of them if experts are whole or sequences cut, D width, E experts, F hidden, f
= F / T if cut, k choices.
Source: Rajbhandari et al., "DeepSpeed-MoE", 2022, arXiv 2201.05596, section 5.2 (expert with data and tensor
parallelism); Singh et al., "A Hybrid Tensor-Expert-Data Parallelism Approach", 2023, arXiv 2303.06318, section 4
(tokens that tensor ranks send twice); NVIDIA/Megatron-LM, megatron/core/transformer/moe/token_dispatcher.py.
Simplified: sequence parallelism only with cut experts; a capacity then drops the tokens of the last tensor rank first.
"""

# pyright: reportIncompatibleMethodOverride=false
import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

from lablib.parallel.data.naive import broadcast_module
from lablib.parallel.experts.dispatch import sort_by_expert
from lablib.parallel.experts.exchange import check_experts
from lablib.parallel.experts.layer import ExpertMLPs, MixtureOfExperts, mixtures
from lablib.parallel.experts.parallel import expert_parallel
from lablib.parallel.experts.routing import Routing
from lablib.parallel.tensor import regions
from lablib.parallel.tensor.regions import Group
from lablib.parallel.tensor.sequence_parallel import gather_sequence, scatter_sequence
from lablib.signature import check_type


class ExpertParallel:
    """The ranks over which the experts of a model are spread.

        mesh = Mesh(data=2, expert=4)
        parallel = ExpertParallel(mesh.group("expert"))
        model = parallel.parallelize(with_experts(GPT(config), num_experts=8, k=2))
        replica = DataParallel(model, mesh.group("data"), reduce=ExpertReduce(model, mesh.group("data", "expert")))

    Arguments:
        group: of the ranks that share the experts, each with its own tokens; None for all. If experts are whole with
            tensor parallelism, the ranks of both axes.
        tensor_group: ranks with the same tokens, or parts of the same sequences; None: no tensor parallelism.
        cuts_experts: whether each expert is cut over `tensor_group`; otherwise each is whole on one rank.
        cuts_sequence: whether tensor ranks have different tokens outside of the mixtures: sequence parallelism.

    ValueError: sequence parallelism with whole experts.
    """

    def __init__(
        self, group: Group = None, tensor_group: Group = None, *, cuts_experts: bool = True, cuts_sequence: bool = False
    ):
        check_type("ExpertParallel: group", group, dist.ProcessGroup | None)
        check_type("ExpertParallel: tensor_group", tensor_group, dist.ProcessGroup | None)
        if cuts_sequence and not cuts_experts:
            raise ValueError("sequence parallelism needs cut experts: got cuts_experts=False; try cuts_experts=True.")
        self.group, self.tensor_group, self.cuts_experts = group, tensor_group, cuts_experts
        self.cuts_sequence = cuts_sequence and tensor_group is not None

    def parallelize(self, model: nn.Module, *, broadcasts: bool = True) -> Any:
        """Keep only this rank's experts, in place, and return the model.

        Call it after `parallelize` and before `DataParallel`. Communicates: broadcasts the model from the group's first
        rank (with whole experts on tensor ranks, only the mixtures), unless `broadcasts` is False as all ranks hold the
        same model. ValueError: a model without mixtures, or as in `check_experts`.
        """
        if not (found := list(mixtures(model))):
            raise ValueError("expert parallelism is for a model with mixtures: got none; call with_experts first.")
        tensor_ranks = 1 if self.tensor_group is None else dist.get_world_size(self.tensor_group)
        ranks = dist.get_world_size(self.group)
        for mixture in found:
            if isinstance(mixture, ParallelMixture):
                raise ValueError("the experts are spread already: call parallelize once.")
            check_experts(
                mixture.config.num_experts,
                mixture.config.k,
                ranks,
                d_ff=mixture.experts.up.shape[2],
                tensor_ranks=tensor_ranks if self.cuts_experts else 1,
            )
        if broadcasts:
            of_mixtures = nn.ModuleList(found)
            # With whole experts the group includes "tensor", along which tensor shards differ.
            broadcast_module(model if self.tensor_group is None or self.cuts_experts else of_mixtures, self.group)
            if self.tensor_group is not None:
                broadcast_module(of_mixtures, self.tensor_group)
        for name, module in list(model.named_modules()):
            if isinstance(module, MixtureOfExperts):
                owner, _, last = name.rpartition(".")
                setattr(model.get_submodule(owner), last, ParallelMixture(module, self).train(module.training))
        return model

    def __deepcopy__(self, memo: dict[int, object]) -> "ExpertParallel":
        return self  # a copy of a model has the same ranks


# Which dimension of each matrix is cut.
BY_EXPERT, BY_HIDDEN = {"up": 0, "down": 0, "gate": 0}, {"up": 2, "down": 1, "gate": 2}


class ExpertShards(ExpertMLPs):
    """This rank's shards of some experts. `tensor/state.py` restores the whole.

    `whole`: all experts; their shards are copied. `cuts`: in order, BY_EXPERT or BY_HIDDEN, and the group.
    """

    def __init__(self, whole: ExpertMLPs, cuts: Sequence[tuple[dict[str, int], Group]]):
        weights, made = dict[str, Tensor](), dict[str, list[tuple[int, int, Group]]]()
        for key, param in whole.named_parameters():
            shard, made[key] = param.detach(), []
            for dims, group in cuts:
                made[key].append((dims[key], shard.shape[dims[key]], group))
                shard = regions.shard_of(shard, dims[key], group)
            weights[key] = shard.clone()
        super().__init__(product=whole.product, **weights)
        for key, param in whole.named_parameters():
            self.get_parameter(key).requires_grad_(param.requires_grad)
        self.group, self.multiple_of = cuts[0][1], 1
        self.cuts = {key: of[0][:2] for key, of in made.items()}
        self.further_cuts = {key: of[1:] for key, of in made.items()}

    def __deepcopy__(self, memo: dict[int, object]) -> "ExpertShards":
        made = object.__new__(type(self))
        memo[id(self)] = made
        for key, value in self.__dict__.items():  # groups are not copied
            made.__dict__[key] = value if key in ("group", "cuts", "further_cuts") else copy.deepcopy(value, memo)
        return made


class ParallelMixture(MixtureOfExperts):
    """A mixture with experts spread over ranks; every rank keeps router and bias."""

    def __init__(self, mixture: MixtureOfExperts, parallel: ExpertParallel):
        nn.Module.__init__(self)
        self.config, self.routing, self.num_dropped = mixture.config, None, 0
        self.parallel, self.router = parallel, mixture.router
        self.register_buffer("bias_E", mixture.bias_E)
        cuts = [(BY_EXPERT, parallel.group)]
        self.shared: Any = mixture.shared
        if parallel.tensor_group is not None and parallel.cuts_experts:
            cuts.append((BY_HIDDEN, parallel.tensor_group))
            if mixture.shared is not None:
                self.shared = ExpertShards(mixture.shared, [(BY_HIDDEN, parallel.tensor_group)])
        self.experts = ExpertShards(mixture.experts, cuts)

    def logits(self, x_ND: Float[Tensor, "n D"], weight_ED: Float[Tensor, "E D"]) -> Float[Tensor, "N E"]:
        """Of all tokens; with sequence parallelism each tensor rank computes those of its own."""
        group = self.parallel.tensor_group
        if not self.parallel.cuts_sequence:
            return super().logits(x_ND, weight_ED)
        logits_nE = super().logits(x_ND, regions.copy_to_ranks(weight_ED, group))
        return regions.gather_from_ranks(logits_nE, 0, len(x_ND) * dist.get_world_size(group), group)

    def mix(self, x_ND: Float[Tensor, "n D"], routing: Routing) -> Float[Tensor, "n D"]:
        tensor_group = self.parallel.tensor_group
        if tensor_group is None:
            return self._with_shared(x_ND, self._routed(x_ND, routing))
        if self.parallel.cuts_experts:
            # f at every input of the region, g at its output, the sum over tensor ranks; with cut sequences f' and g'.
            enter, leave = regions.copy_to_ranks, regions.reduce_from_ranks
            if self.parallel.cuts_sequence:
                enter, leave = gather_sequence, scatter_sequence
            x_ND = enter(x_ND, tensor_group)
            routing = replace(routing, weights_Nk=regions.copy_to_ranks(routing.weights_Nk, tensor_group))
            return leave(self._with_shared(x_ND, self._routed(x_ND, routing)), tensor_group)
        y_nD = self._routed(regions.scatter_to_ranks(x_ND, 0, tensor_group), _own_part(routing, tensor_group))
        return self._with_shared(x_ND, regions.gather_from_ranks(y_nD, 0, len(x_ND), tensor_group))

    def _routed(self, x_ND: Tensor, routing: Routing) -> Tensor:
        permutation = sort_by_expert(routing, self.capacity(routing), self.config.drop)
        self.num_dropped = permutation.num_dropped
        return expert_parallel(x_ND, routing, self.experts, permutation, self.parallel.group)

    def _with_shared(self, x_ND: Tensor, y_ND: Tensor) -> Tensor:
        return y_ND if self.shared is None else y_ND + self.shared(x_ND, (len(x_ND),))


def _own_part(routing: Routing, tensor_group: Group) -> Routing:
    ranks = dist.get_world_size(tensor_group)
    if routing.is_balanced and routing.num_tokens * routing.k % (ranks * routing.num_experts):
        raise ValueError(
            "a balanced routing with tokens shared by tensor ranks must give each of them an even load: got "
            f"{routing.num_tokens} tokens x {routing.k} choices on {ranks} ranks for {routing.num_experts} experts; "
            f"try a multiple of {ranks * routing.num_experts} tokens."
        )
    return replace(
        routing,
        experts_Nk=regions.shard_of(routing.experts_Nk, 0, tensor_group),
        weights_Nk=regions.scatter_to_ranks(routing.weights_Nk, 0, tensor_group),
        scores_NE=regions.shard_of(routing.scores_NE.detach(), 0, tensor_group),  # losses use the routing of all tokens
        logits_NE=regions.shard_of(routing.logits_NE.detach(), 0, tensor_group),
    )
