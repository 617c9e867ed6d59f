"""Time of a mixture of experts, forward and backward: products, moves of rows, and communication.

Small experts spend most of their time on work that a dense MLP does not have. R rows of a rank's experts, M = N k:

    products    up and down of E / n experts in one kernel each, R n / E rows for each expert; backward twice that
    moves       4 times M rows gathered by index, 4 times R rows put in order, each read and written; weighed, summed
    router      two products in float32, a softmax, and some twenty kernels on k or E numbers per token
    exposed     4 all-to-alls of rows, and one of counts before them, without compute at the same time
    tensor      with tensor ranks: cut experts: x is summed once each way; whole ones: gathered once each way; and the
                gradients of weights, k per token. Exposed, too

A row's products are 12 D F FLOPs, its moves some 24 D w bytes of memory, its messages 4 (n-1)/n D w bytes of the link.
With C FLOP/s, B bytes per second of memory and L of the link, products take less than half of the total if

    F  <  w C (2 / B + (n-1) / (3 n L))            some 2,000 hidden units on H100s within a node, for any D

The busiest rank decides: all wait for it at the next all-to-all (`counts` of a real routing).

With tokens in parts (`parallel/experts/overlap.py`) the exchange of one hides behind the experts of another. That pays
if an all-to-all is longer than the overhead: products of fewer rows, twice as many kernels, and the sum of weights'
gradients. On 8 H100s a layer of 64 experts of 1,024 units and 8,192 tokens per rank takes 7.8 ms, 2.1 of them exposed,
and in two parts 6.2, 0.3 exposed; with 512 tokens two parts take longer than one.

Cost: a simulation of the techniques (`layer_cost.py`), 60 ms; all ranks are simulated where `counts` tell them apart.
Legend: as in `parallel/experts/bytes.py`.
Simplified: softmax gates; an even load is assigned in turn (`balanced=True`); without the sum of gradients over ranks
(`data_parallel_scaling.py`). Grouped products where torch has shapes of their kernel (16 bits, widths of a multiple of
8); otherwise batched ones, padded to the longest group.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lablib.hardware import Cluster
from lablib.parallel.experts.bytes import ExpertRanks, ExpertSizes, exchanged_rows
from lablib.parallel.experts.dispatch import combine, dispatch, sort_by_expert
from lablib.parallel.experts.exchange import RowExchange, exchange_counts, from_experts, to_experts
from lablib.parallel.experts.layer import MixtureConfig, MixtureOfExperts
from lablib.parallel.experts.overlap import check_parts, overlap_experts
from lablib.parallel.experts.parallelize import ExpertParallel, ParallelMixture
from lablib.parallel.experts.products import grouped_product, padded_product
from lablib.parallel.experts.routing import Routing
from lablib.parallel.mesh.mesh import Mesh
from lablib.signature import checked, whole_number
from lablib.studies.layer_cost import LayerCost, dtype_of, layer_cost

# Kernels of the experts' products and activation; all others move rows, or are the router's.
PRODUCTS = ("aten._grouped_mm", "aten.bmm", "aten.gelu", "aten.gelu_backward", "aten.silu", "aten.silu_backward")


@checked
def expert_cost(
    sizes: ExpertSizes,
    cluster: Cluster,
    expert_ranks: int | ExpertRanks,
    counts: Sequence[Sequence[int]] | None = None,
    *,
    parts: int | None = None,
) -> LayerCost:
    """The cost of one mixture, forward and backward, until the busiest rank is done.

    Arguments:
        expert_ranks: their number, or `ExpertRanks`: with tensor ranks, neighbours inside the expert ranks. Data ranks
            are outside, and change nothing.
        counts: of each rank that shares experts, its rows for each of them; None: an even load.
        parts: number of parts of a rank's tokens, by `overlap_experts`: two or more ranks, no tensor ranks, no counts.

    Raises:
        ValueError: as `exchanged_rows`; parts that do not divide the tokens, or with one rank, tensor ranks or
            counts.
    """
    ranks = expert_ranks
    if not isinstance(ranks, ExpertRanks):
        ranks = ExpertRanks(whole_number("expert_ranks", ranks, 1 if parts is None else 2, example=8))
    ranks = replace(ranks, data=1)
    exchanged_rows(sizes, ranks, counts)
    dtype_of(sizes.element_bytes)
    if parts is not None:
        check_parts(sizes.tokens, parts)
        if ranks.tensor > 1 or counts is not None:
            raise ValueError(
                "tokens go in parts without tensor ranks and with an even load, as overlap_experts refuses others: got "
                f"{ranks} and counts {counts}; take tensor=1 and counts=None, or no parts."
            )
    known = None if counts is None else tuple(map(tuple, counts))
    simulate = (0,) if counts is None else None
    return layer_cost(mixture_step, ranks.expert * ranks.tensor, cluster, sizes, ranks, known, parts, simulate=simulate)


def mixture_step(
    sizes: ExpertSizes, ranks: ExpertRanks, counts: Sequence[Sequence[int]] | None, parts: int | None
) -> Callable[[], None]:
    """A mixture and this rank's tokens, for `layer_cost`."""
    mesh, dtype = Mesh(expert=ranks.expert, tensor=ranks.tensor), dtype_of(sizes.element_bytes)
    has_kernel = sizes.element_bytes == 2 and not (sizes.d_model % 8 or sizes.d_ff // ranks.cut % 8)
    product = grouped_product if has_kernel else padded_product
    options: Any = {"balanced": counts is None, "product": product, "has_gate": sizes.has_gate}
    config = MixtureConfig(sizes.num_experts, sizes.k, sizes.num_shared, **options)
    model = nn.Sequential(MixtureOfExperts(config, sizes.d_model, sizes.d_ff, dtype=dtype))
    group = mesh.group("expert") if ranks.cuts_experts else mesh.group("expert", "tensor")
    tensor_group = mesh.group("tensor") if ranks.tensor > 1 else None
    cuts = {"cuts_experts": ranks.cuts_experts, "cuts_sequence": ranks.cuts_sequence}
    ExpertParallel(group, tensor_group, **cuts).parallelize(model, broadcasts=False)
    if parts is not None:
        overlap_experts(model, parts)
    if counts is not None:
        mixture: Any = model[0]
        mixture._routed = partial(_routed_by_counts, mixture, counts)
    x = torch.empty(sizes.tokens // ranks.sequence_parts, sizes.d_model, dtype=dtype, requires_grad=True)
    grad = torch.empty_like(x, requires_grad=False)
    return lambda: model(x).backward(grad)


def _routed_by_counts(
    mixture: ParallelMixture, counts: Sequence[Sequence[int]], x_ND: Tensor, routing: Routing
) -> Tensor:
    """`expert_parallel` with the counts of every rank given, as shapes cannot tell them."""
    group = mixture.parallel.group
    rank, own = dist.get_rank(group), mixture.experts.num_experts
    routing.counts_E()
    permutation = replace(sort_by_expert(replace(routing, is_balanced=True)), counts=tuple(counts[rank]))
    sent = exchange_counts(permutation.counts, group, is_balanced=True, device=x_ND.device).sent
    exchange = RowExchange(sent, tuple(tuple(row[rank * own : (rank + 1) * own]) for row in counts))
    rows_RD = mixture.experts(to_experts(dispatch(x_ND, permutation), exchange, group), exchange.counts)
    return combine(from_experts(rows_RD, exchange, group), permutation, routing.weights_Nk)
