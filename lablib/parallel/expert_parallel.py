"""Expert parallelism: the experts are spread over ranks, and tokens travel to them and back.

    naive   GShard's: masks, and as many slots for every expert on every rank: all-to-alls of equal parts
    real    dropless or not: counts first, then as many rows as there are

    rank 0: tokens sorted by expert   0 0 0 1 | 2 3 3      experts 0, 1 on rank 0; 2, 3 on rank 1
    rank 1:                           1 1 | 2 2 2 3

    1. sort       the choices by expert, that is by rank
    2. counts     all-to-all of E numbers: how many rows come from each rank for each expert of mine
    3. there      uneven all-to-all of rows
    4. experts    rows in order of my experts, products of uneven groups
    5. back       the same all-to-all the other way round
    6. combine    weighted sum, on the rank of the token

Every rank has its own tokens: the axis "expert" lies inside data parallelism. What gradients must then be averaged over
which ranks: `expert_gradients.py`. With tensor parallelism, all whose ranks have the same tokens, experts are either

    cut     each over the tensor ranks, by its hidden units; tokens go along "expert" alone, k times on every tensor
            rank, and y leaves the region as a sum
    whole   on one rank each: experts spread over "expert" and "tensor" together; a tensor rank takes its 1 / T of the
            tokens, and y is gathered. Fewer bytes to send, and products that are not narrower

Cost for n ranks, N tokens of each, an even load, w bytes a number, alpha and beta of the link:
    FLOPs       4 N k D F forward (n / E-th of the experts see n times a rank's tokens)
    time_s      2 (alpha + (n-1)/n N k D w beta) forward, as much backward, and alpha for the counts: none of it hidden
    sent bytes  4 (n-1)/n N k D w for a step, and 8 (n-1)/n E. An uneven load: what the busiest rank receives decides
    peak bytes  weights 2 E/n D F w; rows as often as they are received: the busiest rank has up to n times the mean
Shapes: N tokens of this rank, D width, E experts, e = E / n on this rank, F hidden, f = F / T if cut, k choices, M rows
sent, R rows received.
Source: Lepikhin et al., "GShard", 2020, arXiv 2006.16668, section 3 (all-to-all); Rajbhandari et al., "DeepSpeed-MoE",
2022, arXiv 2201.05596, section 5.2 (expert beside data and tensor parallelism); Singh et al., "A Hybrid
Tensor-Expert-Data Parallelism Approach", 2023, arXiv 2303.06318, section 4 (tokens that tensor ranks send twice).
Simplified: nothing is sent while experts compute; the axis of tensor parallelism has whole sequences, not tokens that
are cut (sequence parallelism); a capacity is of one rank's tokens.
"""

# pyright: reportIncompatibleMethodOverride=false
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

from lablib.parallel.expert_dispatch import (
    Permutation,
    combine,
    dispatch,
    expert_capacity,
    naive_combine,
    naive_dispatch,
    naive_masks,
    sort_by_expert,
)
from lablib.parallel.expert_layer import ExpertMLPs, MixtureOfExperts, mixtures
from lablib.parallel.expert_routing import Routing, check_choices
from lablib.parallel.naive_data_parallel import broadcast_module
from lablib.parallel.tensor_regions import (
    Group,
    copy_to_ranks,
    gather_from_ranks,
    reduce_from_ranks,
    scatter_to_ranks,
    shard_of,
    shard_range,
)
from lablib.signature import check_type, checked, whole_number

Compute = Callable[[Tensor, tuple[int, ...]], Tensor]  # (rows of my experts, how many of each) -> rows


@checked
def check_experts(
    num_experts: int,
    k: int,
    ranks: int,
    *,
    num_tokens: int | None = None,
    capacity_factor: float | None = None,
    d_ff: int | None = None,
    tensor_ranks: int = 1,
    cuts_experts: bool = True,
) -> int:
    """What would be refused on every rank, before any starts; and the experts of a rank.

    Arguments:
        ranks: over which experts are spread, along the axis "expert".
        num_tokens: of one rank, for the capacity.
        d_ff: hidden width of an expert, to be cut over the tensor ranks.
        tensor_ranks, cuts_experts: as in `ExpertParallel`.

    Raises:
        ValueError: k above E, ranks that do not divide the experts, tensor ranks that divide neither hidden units (cut)
            nor experts (whole); a capacity below one token of a rank's part of the tokens.
    """
    check_choices(num_experts, k)
    spread = whole_number("ranks", ranks, example=2)
    if not cuts_experts:
        spread *= whole_number("tensor_ranks", tensor_ranks, example=2)
    if num_experts % spread:
        near = next(n for n in range(min(spread, num_experts), 0, -1) if num_experts % n == 0)
        raise ValueError(
            f"the experts must be a multiple of the ranks they are spread over: got {num_experts} experts on {spread} "
            f"ranks; try {near} ranks, or {-(-num_experts // spread) * spread} experts."
        )
    whole_number("tensor_ranks", tensor_ranks, example=2)
    if cuts_experts and d_ff is not None and d_ff % tensor_ranks:
        raise ValueError(
            f"an expert's hidden width must be a multiple of the tensor ranks that cut it: got {d_ff} on "
            f"{tensor_ranks} ranks; try d_ff={-(-d_ff // tensor_ranks) * tensor_ranks}."
        )
    if num_tokens is not None:
        whole_number("num_tokens", num_tokens)
        parts = 1 if cuts_experts else tensor_ranks
        if capacity_factor is not None:
            last = (num_tokens - 1) // -(-num_tokens // parts)  # that has tokens: it may have fewest
            start, end = shard_range(num_tokens, last, parts)
            expert_capacity(end - start, k, num_experts, capacity_factor)
    return num_experts // spread


# ---- counts and rows ----


@dataclass(frozen=True, slots=True)
class Exchange:
    """How many rows go where, on the host.

    Attributes:
        sent: rows to each rank of the group.
        received: from each rank, for each expert of this one.
    """

    sent: tuple[int, ...]
    received: tuple[tuple[int, ...], ...]

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
) -> Exchange:
    """Tell every rank how many rows it gets for each of its experts. Communicates: one all-to-all of E numbers.

    Arguments:
        counts: rows of each of the E experts, from this rank.
        is_balanced: all ranks have the same counts; they are exchanged, and not read (`route`, `balanced`).
        device: of the numbers on their way: where tensors of the model are.

    Raises:
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
        return Exchange(to_ranks, (tuple(counts[rank * own : (rank + 1) * own]),) * n)
    return Exchange(to_ranks, tuple(map(tuple, received.view(n, own).tolist())))


class _ExchangeRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: Sequence[int], received: Sequence[int], group: Group) -> Tensor:
        ctx.call = received, sent, group
        out = rows.new_empty(sum(received), *rows.shape[1:])
        dist.all_to_all_single(out, rows.contiguous(), list(received), list(sent), group=group)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return _ExchangeRows.apply(grad, *ctx.call), None, None, None  # pyright: ignore[reportReturnType]


def exchange_rows(rows: Tensor, sent: Sequence[int], received: Sequence[int], group: Group = None) -> Tensor:
    """All-to-all of rows: so many to each rank, so many from each, rank behind rank. Backward: the way back.

    Communicates: one all-to-all forward, one backward.
    """
    if dist.get_world_size(group) == 1:
        return rows
    return _ExchangeRows.apply(rows, tuple(sent), tuple(received), group)  # pyright: ignore[reportReturnType]


def reordered(rows: Tensor, blocks: Sequence[Sequence[int]]) -> Tensor:
    """Rows in blocks [i][j], one behind the other, in the order of j, then i."""
    if len(blocks) == 1 or len(blocks[0]) == 1:
        return rows
    pieces = rows.split([size for of_one in blocks for size in of_one])
    inner = len(blocks[0])
    return torch.cat([piece for j in range(inner) for piece in pieces[j::inner]])


def to_experts(rows_MD: Float[Tensor, "M D"], exchange: Exchange, group: Group = None) -> Float[Tensor, "R D"]:
    """Rows to the ranks of their experts, and there in order of the experts. Communicates: one all-to-all each way."""
    rows_RD = exchange_rows(rows_MD, exchange.sent, exchange.from_ranks, group)
    return reordered(rows_RD, exchange.received)


def from_experts(rows_RD: Float[Tensor, "R D"], exchange: Exchange, group: Group = None) -> Float[Tensor, "M D"]:
    """The way back. Communicates: one all-to-all each way."""
    by_rank = reordered(rows_RD, list(zip(*exchange.received, strict=True)))
    return exchange_rows(by_rank, exchange.from_ranks, exchange.sent, group)


# ---- the layer ----


def naive_expert_parallel(
    x_ND: Float[Tensor, "N D"], routing: Routing, compute: Compute, capacity: int, group: Group = None
) -> Float[Tensor, "N D"]:
    """GShard's: each expert has as many slots for every rank, full or not. Communicates: two all-to-alls each way.

    No number is asked for on the host, so that it runs under fidelity="shapes" whatever the routing. All ranks have
    the same capacity.
    """
    n = dist.get_world_size(group)
    own = check_experts(routing.num_experts, routing.k, n)
    takes_NEC, weighs_NEC = naive_masks(routing, capacity)
    rows = naive_dispatch(x_ND, takes_NEC).flatten(0, 1)  # expert behind expert, so rank behind rank
    full = Exchange((own * capacity,) * n, ((capacity,) * own,) * n)
    rows = from_experts(compute(to_experts(rows, full, group), full.counts), full, group)
    return naive_combine(rows.unflatten(0, (-1, capacity)), weighs_NEC)


def expert_parallel(
    x_ND: Float[Tensor, "N D"],
    routing: Routing,
    compute: Compute,
    permutation: Permutation,
    group: Group = None,
) -> Float[Tensor, "N D"]:
    """What experts on all ranks say of this rank's tokens. Communicates: counts, and two all-to-alls each way.

    Arguments:
        routing: of these tokens.
        compute: the experts of this rank, such as `ExpertMLPs`.
        permutation: of `sort_by_expert(routing, ...)`: phase 1.
    """
    # ---- 2. counts ----
    exchange = exchange_counts(permutation.counts, group, is_balanced=routing.is_balanced, device=x_ND.device)
    # ---- 3. there ----
    rows_RD = to_experts(dispatch(x_ND, permutation), exchange, group)
    # ---- 4. experts ----
    rows_RD = compute(rows_RD, exchange.counts)
    # ---- 5. back ----
    rows_MD = from_experts(rows_RD, exchange, group)
    # ---- 6. combine ----
    return combine(rows_MD, permutation, routing.weights_Nk)


class ExpertParallel:
    """Over which ranks the experts of a model are spread.

        mesh = Mesh(data=2, expert=4)
        parallel = ExpertParallel(mesh.group("expert"))
        model = parallel.parallelize(with_experts(GPT(config), num_experts=8, k=2))
        replica = DataParallel(model, mesh.group("data"), reduce=ExpertReduce(model, mesh.group("data", "expert")))

    Arguments:
        group: of the ranks that share the experts, each with its own tokens; None for all. Where experts are whole
            beside tensor parallelism, the ranks of both axes.
        tensor_group: ranks that all have the same tokens; None: there are none.
        cuts_experts: whether each expert is cut over `tensor_group`; else each is whole on one rank.
    """

    def __init__(self, group: Group = None, tensor_group: Group = None, *, cuts_experts: bool = True):
        check_type("ExpertParallel: group", group, dist.ProcessGroup | None)
        check_type("ExpertParallel: tensor_group", tensor_group, dist.ProcessGroup | None)
        self.group, self.tensor_group, self.cuts_experts = group, tensor_group, cuts_experts

    def parallelize(self, model: nn.Module, *, broadcasts: bool = True) -> Any:
        """Leave each rank its experts, in place, and return the model. After `parallelize`, before `DataParallel`.

        Communicates: broadcasts the model from the group's first rank (beside whole experts on tensor ranks, the
        mixtures alone), unless all hold the same for certain (`broadcasts`).

        Raises:
            ValueError: a model without mixtures, or what `check_experts` refuses.
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
            # Tensor shards differ along "tensor", which is in the group where experts are whole.
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


BY_EXPERT, BY_HIDDEN = (0, 0), (2, 1)  # which dimension of up [E, D, F] and of down [E, F, D] is cut


class ExpertShards(ExpertMLPs):
    """What this rank has of some experts. `tensor_state.py` makes it whole again.

    Arguments:
        whole: all experts; copied from.
        cuts: one behind the other: BY_EXPERT or BY_HIDDEN, and over which group.
    """

    def __init__(self, whole: ExpertMLPs, cuts: Sequence[tuple[tuple[int, int], Group]]):
        weights = {"up": whole.up.detach(), "down": whole.down.detach()}
        made: dict[str, list[tuple[int, int, Group]]] = {"up": [], "down": []}
        for dims, group in cuts:
            for key, dim in zip(weights, dims, strict=True):
                made[key].append((dim, weights[key].shape[dim], group))
                weights[key] = shard_of(weights[key], dim, group)
        super().__init__(weights["up"].clone(), weights["down"].clone(), whole.product)
        self.up.requires_grad_(whole.up.requires_grad)
        self.down.requires_grad_(whole.down.requires_grad)
        self.group, self.multiple_of = cuts[0][1], 1
        self.cuts = {key: of[0][:2] for key, of in made.items()}
        self.further_cuts = {key: of[1:] for key, of in made.items()}

    def __deepcopy__(self, memo: dict[int, object]) -> "ExpertShards":
        made = object.__new__(type(self))
        memo[id(self)] = made
        for key, value in self.__dict__.items():  # groups stay what they are
            made.__dict__[key] = value if key in ("group", "cuts", "further_cuts") else copy.deepcopy(value, memo)
        return made


class ParallelMixture(MixtureOfExperts):
    """A mixture whose experts are spread; router and bias are taken over, and every rank has them."""

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

    def mix(self, x_ND: Float[Tensor, "N D"], routing: Routing) -> Float[Tensor, "N D"]:
        tensor_group = self.parallel.tensor_group
        if tensor_group is None:
            return self._with_shared(x_ND, self._routed(x_ND, routing))
        if self.parallel.cuts_experts:
            # f at the entrance of all that the region reads, g where the sum over tensor ranks leaves it.
            x_ND = copy_to_ranks(x_ND, tensor_group)
            routing = replace(routing, weights_Nk=copy_to_ranks(routing.weights_Nk, tensor_group))
            return reduce_from_ranks(self._with_shared(x_ND, self._routed(x_ND, routing)), tensor_group)
        y_nD = self._routed(scatter_to_ranks(x_ND, 0, tensor_group), _own_part(routing, tensor_group))
        return self._with_shared(x_ND, gather_from_ranks(y_nD, 0, len(x_ND), tensor_group))

    def _routed(self, x_ND: Tensor, routing: Routing) -> Tensor:
        permutation = sort_by_expert(routing, self.capacity(routing), self.config.drop)
        self.num_dropped = permutation.num_dropped
        return expert_parallel(x_ND, routing, self.experts, permutation, self.parallel.group)

    def _with_shared(self, x_ND: Tensor, y_ND: Tensor) -> Tensor:
        return y_ND if self.shared is None else y_ND + self.shared(x_ND, (len(x_ND),))


def _own_part(routing: Routing, tensor_group: Group) -> Routing:
    """The routing of this tensor rank's part of the tokens."""
    ranks = dist.get_world_size(tensor_group)
    if routing.is_balanced and routing.num_tokens * routing.k % (ranks * routing.num_experts):
        raise ValueError(
            "a balanced routing whose tokens are shared by tensor ranks must give each of them an even load: got "
            f"{routing.num_tokens} tokens x {routing.k} choices on {ranks} ranks for {routing.num_experts} experts; "
            f"try a multiple of {ranks * routing.num_experts} tokens."
        )
    return replace(
        routing,
        experts_Nk=shard_of(routing.experts_Nk, 0, tensor_group),
        weights_Nk=scatter_to_ranks(routing.weights_Nk, 0, tensor_group),
        scores_NE=shard_of(routing.scores_NE.detach(), 0, tensor_group),  # losses are of the routing of all tokens
        logits_NE=shard_of(routing.logits_NE.detach(), 0, tensor_group),
    )
