"""All-to-all overlapped with experts: one half of a batch travels while the other is computed.

A layer of experts waits four times for an all-to-all, since the next product needs the received tokens. But half of
the tokens need only that half. So they are cut in parts, each is sent before the one before it is computed, and shared
experts, which need this rank's tokens alone, are computed while the first part is on its way:

    plain       compute  [sort    ]            [experts    ]          [combine ]
                comm               [there    ]              [back    ]

    two parts   compute  [sort 1][sort 2][shared][experts 1][experts 2][combine 1]   [combine 2]
                comm             [there 1][there 2]          [back 1  ][back 2  ]

Backward is the mirror, and autograd makes it so: an exchange is two nodes of the graph. One starts it forward and waits
in backward, the other waits forward and starts the way back in backward; nodes run backward in the opposite order, so
that the other part's work lies between the two.

Cost for parts of x seconds an all-to-all, e the experts of a part, forward; no shared ones:
    exposed    x + max(0, x - e) + ... + x: the first part's way there and the last one's way back hide behind sorting
               and combining at best; backward the same with experts twice as long
    compute    products of R / 2 rows take longer than half of one of R; each part's weights' gradients are added
    peak bytes no more is kept; rows of both parts may be on their way at once
    sent bytes those of the plain layer, in twice as many messages
Shapes: as in `experts/parallel.py`.
Source: DeepSeek-V3, 2024, arXiv 2412.19437, section 3.2.1 (two micro-batches, in opposite directions); "Scalable
Training of Mixture-of-Experts Models with Megatron Core", 2026, arXiv 2603.07685 (overlap of expert communication);
Rajbhandari et al., "DeepSpeed-MoE", 2022, arXiv 2201.05596; shared expert during the dispatch: Megatron-Core's
`--moe-shared-expert-overlap`.
Simplified: parts of one micro-batch of one layer, where DualPipe pairs whole layers of two micro-batches; dropless, no
tensor ranks; a message takes no cores of the GPU.
"""

# pyright: reportIncompatibleMethodOverride=false
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

from lablib.parallel.experts.dispatch import Permutation, combine, dispatch, sort_by_expert
from lablib.parallel.experts.exchange import Exchange, exchange_counts, reordered
from lablib.parallel.experts.layer import mixtures
from lablib.parallel.experts.parallelize import ParallelMixture
from lablib.parallel.experts.routing import Routing
from lablib.parallel.tensor.regions import Group
from lablib.signature import Count, checked

Rows = tuple[int, ...]  # to each rank, or from each


@dataclass(slots=True)
class _Journey:
    """One all-to-all of rows in both passes: the state that its two nodes in the graph share."""

    sent: Rows
    received: Rows
    group: Group
    under_way: tuple[Any, Tensor, Tensor] | None = None  # the work, and until it is done its input and its output

    def start(self, rows: Tensor, sent: Rows, received: Rows) -> Tensor:
        """The output, before it is there."""
        rows = rows.contiguous()
        out = rows.new_empty(sum(received), *rows.shape[1:])
        work = dist.all_to_all_single(out, rows, list(received), list(sent), group=self.group, async_op=True)
        self.under_way = work, rows, out
        return out

    def wait(self) -> Tensor:
        assert self.under_way is not None
        (work, _, out), self.under_way = self.under_way, None
        work.wait()
        return out


class _Start(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, journey: _Journey) -> Tensor:
        ctx.journey = journey
        return journey.start(rows, journey.sent, journey.received)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.journey.wait(), None  # not `grad`: that has the shape of what came forward


class _Wait(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, journey: _Journey) -> Tensor:
        ctx.journey = journey
        return journey.wait().view_as(rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        journey = ctx.journey
        journey.start(grad, journey.received, journey.sent)
        return grad, None


class OverlappedMixture(ParallelMixture):
    """A mixture whose experts are spread, its tokens in parts: `overlap_experts` makes it of a `ParallelMixture`."""

    def __init__(self, mixture: ParallelMixture, parts: int = 2):
        nn.Module.__init__(self)
        self.config, self.routing, self.num_dropped = mixture.config, None, 0
        self.parallel, self.router = mixture.parallel, mixture.router
        self.register_buffer("bias_E", mixture.bias_E)
        self.shared, self.experts, self.parts = mixture.shared, mixture.experts, parts

    def mix(self, x_ND: Float[Tensor, "N D"], routing: Routing) -> Float[Tensor, "N D"]:
        group, own = self.parallel.group, _parts_of(routing, self.parts)
        # ---- sort, tell counts, start ----
        permutations = [sort_by_expert(part) for part in own]
        exchanges = [
            exchange_counts(one.counts, group, is_balanced=routing.is_balanced, device=x_ND.device)
            for one in permutations
        ]
        there = [
            _started(dispatch(x_nD, permutation), exchange.sent, exchange.from_ranks, group)
            for x_nD, permutation, exchange in zip(x_ND.chunk(self.parts), permutations, exchanges, strict=True)
        ]
        # ---- shared experts, while the first part is on its way ----
        shared_ND = None if self.shared is None else self.shared(x_ND, (len(x_ND),))
        # ---- experts of a part, while the next one is on its way ----
        back = [self._computed(*each) for each in zip(there, exchanges, [group] * self.parts, strict=True)]
        # ---- combine, while the next part is on its way back ----
        y_ND = torch.cat([_combined(*each) for each in zip(back, permutations, own, strict=True)])
        return y_ND if shared_ND is None else y_ND + shared_ND

    def _computed(self, there: tuple[Tensor, _Journey], exchange: Exchange, group: Group) -> tuple[Tensor, _Journey]:
        """The outputs of this rank's experts for a part that has come; on their way back."""
        rows_RD: Any = _Wait.apply(*there)
        said_RD = self.experts(reordered(rows_RD, exchange.received), exchange.counts)
        by_rank = reordered(said_RD, list(zip(*exchange.received, strict=True)))
        return _started(by_rank, exchange.from_ranks, exchange.sent, group)


def _started(rows: Tensor, sent: tuple[int, ...], received: tuple[int, ...], group: Group) -> tuple[Tensor, _Journey]:
    journey = _Journey(sent, received, group)
    return _Start.apply(rows, journey), journey  # pyright: ignore[reportReturnType]


def _combined(back: tuple[Tensor, _Journey], permutation: Permutation, routing: Routing) -> Tensor:
    rows_MD: Any = _Wait.apply(*back)
    return combine(rows_MD, permutation, routing.weights_Nk)


def _parts_of(routing: Routing, parts: int) -> list[Routing]:
    """The routings of equally many neighbouring tokens."""
    each = check_parts(routing.num_tokens, parts)
    if routing.is_balanced and each * routing.k % routing.num_experts:
        raise ValueError(
            f"a balanced routing in parts must have an even load in each: got {each} tokens x {routing.k} choices for "
            f"{routing.num_experts} experts; try a multiple of {parts * routing.num_experts} tokens."
        )
    return [
        replace(routing, experts_Nk=experts, weights_Nk=weights)
        for experts, weights in zip(routing.experts_Nk.chunk(parts), routing.weights_Nk.chunk(parts), strict=True)
    ]


@checked
def check_parts(num_tokens: Count, parts: Count) -> int:
    """Tokens of a part.

    Raises:
        ValueError: parts that do not divide the tokens of a rank.
    """
    if num_tokens % parts:
        raise ValueError(
            f"parts must divide the tokens of a rank: got {parts} of {num_tokens}; "
            f"try {-(-num_tokens // parts) * parts} tokens."
        )
    return num_tokens // parts


@checked
def overlap_experts(model: nn.Module, parts: Count = 2) -> Any:
    """Let the mixtures of a model send one part of their tokens while another is computed, in place. Return it.

    Arguments:
        model: as `ExpertParallel.parallelize` returned it.
        parts: 2, or more: each is smaller, and hides better.

    Raises:
        ValueError: no mixture that is spread, one with tensor parallelism or with a capacity.
    """
    spread = [mixture for mixture in mixtures(model) if isinstance(mixture, ParallelMixture)]
    if not spread:
        raise ValueError("overlap is for mixtures that are spread over ranks: got none; call ExpertParallel first.")
    for mixture in spread:
        if mixture.parallel.tensor_group is not None or mixture.config.capacity_factor is not None:
            raise ValueError(
                "overlap is for dropless mixtures without tensor parallelism: got "
                f"capacity_factor={mixture.config.capacity_factor}; leave it out."
            )
    for name, module in list(model.named_modules()):
        if isinstance(module, ParallelMixture):
            owner, _, last = name.rpartition(".")
            setattr(model.get_submodule(owner), last, OverlappedMixture(module, parts).train(module.training))
    return model
