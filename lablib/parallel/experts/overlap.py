"""All-to-all overlapped with experts: half of a batch is sent while the other half is computed.

A layer of experts waits four times for an all-to-all, as the next product needs the received tokens. But a part of the
tokens needs only that part. So tokens are cut in parts, each is sent before the previous part is computed, and shared
experts, which need only this rank's tokens, are computed while the first part is in flight:

    plain       compute  [sort    ]            [experts    ]          [combine ]
                comm               [there    ]              [back    ]

    two parts   compute  [sort 1][sort 2][shared][experts 1][experts 2][combine 1]   [combine 2]
                comm             [there 1][there 2]          [back 1  ][back 2  ]

Autograd mirrors this in backward: an exchange is two nodes of the graph. One starts it in forward and waits in
backward, the other waits in forward and starts it in backward. Nodes run backward in reverse order, so the work of the
other part is between the two.

Cost for parts with x seconds per all-to-all and e seconds for the experts of a part, forward, without shared experts:
    exposed    x + max(0, x - e) + ... + x: the first part's exchange and the last part's way back overlap only with
               sorting and combining; backward the same with experts twice as long
    compute    products of R / 2 rows take longer than half of one of R; each part's weights' gradients are added
    peak bytes nothing more is kept; rows of both parts may be in flight at once
    sent bytes as in the plain layer, in twice as many messages
Shapes: as in `experts/parallel.py`.
Source: DeepSeek-V3, 2024, arXiv 2412.19437, section 3.2.1 (two micro-batches, in opposite directions); "Scalable
Training of Mixture-of-Experts Models with Megatron Core", 2026, arXiv 2603.07685 (overlap of expert communication);
Rajbhandari et al., "DeepSpeed-MoE", 2022, arXiv 2201.05596; shared expert during the dispatch: Megatron-Core's
`--moe-shared-expert-overlap`.
Simplified: parts of one micro-batch of one layer, while DualPipe pairs whole layers of two micro-batches; dropless, no
tensor ranks; communication uses no cores of the GPU.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

from lablib.parallel.experts.dispatch import Permutation, combine, dispatch, sort_by_expert
from lablib.parallel.experts.exchange import RowExchange, exchange_counts, reordered
from lablib.parallel.experts.layer import mixtures
from lablib.parallel.experts.parallelize import ParallelMixture
from lablib.parallel.experts.routing import Routing
from lablib.parallel.tensor.regions import Group, with_gradient
from lablib.signature import Count, checked

Rows = tuple[int, ...]  # to each rank, or from each


@dataclass(slots=True)
class _Journey:
    """One all-to-all of rows in both passes: the state shared by its two nodes in the graph."""

    sent: Rows
    received: Rows
    group: Group
    under_way: tuple[Any, Tensor, Tensor] | None = None  # the work, and its input and output until it is done

    def start(self, rows: Tensor, sent: Rows, received: Rows) -> Tensor:
        """Start the all-to-all, and return the output before it has arrived."""
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


def _arrived(rows: Tensor, journey: _Journey) -> Tensor:
    def backward(grad: Tensor) -> Tensor:
        journey.start(grad, journey.received, journey.sent)
        return grad

    return with_gradient(rows, lambda rows: journey.wait().view_as(rows), backward)


class OverlappedMixture(ParallelMixture):
    """A `ParallelMixture` that processes its tokens in parts; made by `overlap_experts`."""

    def __init__(self, mixture: ParallelMixture, parts: int = 2):
        nn.Module.__init__(self)
        self.config, self.routing, self.num_dropped = mixture.config, None, 0
        self.parallel, self.router = mixture.parallel, mixture.router
        self.register_buffer("bias_E", mixture.bias_E)
        self.shared, self.experts, self.parts = mixture.shared, mixture.experts, parts

    def mix(self, x_ND: Float[Tensor, "N D"], routing: Routing) -> Float[Tensor, "N D"]:
        group, own = self.parallel.group, _parts_of(routing, self.parts)
        # ---- sort, send counts, start ----
        permutations = [sort_by_expert(part) for part in own]
        options = {"is_balanced": routing.is_balanced, "device": x_ND.device}
        exchanges = [exchange_counts(one.counts, group, **options) for one in permutations]
        there = [
            _started(dispatch(x_nD, permutation), exchange.sent, exchange.from_ranks, group)
            for x_nD, permutation, exchange in zip(x_ND.chunk(self.parts), permutations, exchanges, strict=True)
        ]
        # ---- shared experts, while the first part is in flight ----
        shared_ND = None if self.shared is None else self.shared(x_ND, (len(x_ND),))
        # ---- experts of a part, while the next part is in flight ----
        back = [self._computed(*each) for each in zip(there, exchanges, [group] * self.parts, strict=True)]
        # ---- combine, while the next part is sent back ----
        y_ND = torch.cat([_combined(*each) for each in zip(back, permutations, own, strict=True)])
        return y_ND if shared_ND is None else y_ND + shared_ND

    def _computed(self, there: tuple[Tensor, _Journey], exchange: RowExchange, group: Group) -> tuple[Tensor, _Journey]:
        """The outputs of this rank's experts for a received part; starts to send them back."""
        rows_RD = _arrived(*there)
        said_RD = self.experts(reordered(rows_RD, exchange.received), exchange.counts)
        by_rank = reordered(said_RD, list(zip(*exchange.received, strict=True)))
        return _started(by_rank, exchange.from_ranks, exchange.sent, group)


def _started(rows: Tensor, sent: tuple[int, ...], received: tuple[int, ...], group: Group) -> tuple[Tensor, _Journey]:
    journey = _Journey(sent, received, group)
    start = partial(journey.start, sent=sent, received=received)
    # The gradient is the one that arrives, not its argument, which has the shape of the forward output.
    return with_gradient(rows, start, lambda _: journey.wait()), journey


def _combined(back: tuple[Tensor, _Journey], permutation: Permutation, routing: Routing) -> Tensor:
    rows_MD = _arrived(*back)
    return combine(rows_MD, permutation, routing.weights_Nk)


def _parts_of(routing: Routing, parts: int) -> list[Routing]:
    """The routings of `parts` equal runs of tokens."""
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
    """Tokens of a part. ValueError: parts that do not divide the tokens of a rank."""
    if num_tokens % parts:
        raise ValueError(
            f"parts must divide the tokens of a rank: got {parts} of {num_tokens}; "
            f"try {-(-num_tokens // parts) * parts} tokens."
        )
    return num_tokens // parts


@checked
def overlap_experts(model: nn.Module, parts: Count = 2) -> Any:
    """Make the mixtures of a model send one part of the tokens while another is computed, in place; return the model.

    Arguments:
        model: as `ExpertParallel.parallelize` returned it.
        parts: at least 2; more parts overlap better.

    Raises ValueError: no `ParallelMixture`, or one with tensor parallelism or with a capacity.
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
