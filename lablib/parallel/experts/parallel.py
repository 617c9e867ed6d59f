"""Expert parallelism: experts are spread over ranks, and tokens are sent to them and back.

    naive   GShard: masks, and the same number of slots for every expert on every rank: all-to-alls of equal parts
    real    dropless or not: counts first, then the actual rows

    1. sort       the choices by expert, that is by rank
    2. counts     all-to-all of E numbers: rows from each rank for each expert of this rank
    3. there      uneven all-to-all of rows
    4. experts    rows sorted by expert, products of uneven groups
    5. back       the reverse all-to-all
    6. combine    weighted sum, on the rank of the token

Every rank has its own tokens: the axis "expert" is part of data parallelism. Averaging of gradients:
`experts/gradients.py`. Exchange of rows: `experts/exchange.py`. A whole model, also with tensor parallelism:
`experts/parallelize.py`.

Cost for n ranks, N tokens of each, an even load, w bytes per number, alpha and beta of the link:
    FLOPs       4 N k D F forward (n / E-th of the experts see n times a rank's tokens)
    time_s      2 (alpha + (n-1)/n N k D w beta) forward, the same backward, and alpha for the counts: no overlap
    sent bytes 4 (n-1)/n N k D w per step, and 8 (n-1)/n E; for an uneven load, the rows of the busiest rank peak bytes
    weights 2 E/n D F w; all received rows: the busiest rank has up to n times the mean
Shapes: N tokens of this rank, D width, E experts, e = E / n on this rank, C slots, F hidden, k choices, M rows sent, R
rows received.
Source: Lepikhin et al., "GShard", 2020, arXiv 2006.16668, section 3 (all-to-all); Rajbhandari et al., "DeepSpeed-MoE",
2022, arXiv 2201.05596, section 5.2 (expert with data parallelism).
Simplified: no overlap with computation (see `experts/overlap.py`); a capacity is for one rank's tokens.
"""

from collections.abc import Callable

import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from lablib.parallel.experts.dispatch import Permutation, combine, dispatch, naive_combine, naive_dispatch, naive_masks
from lablib.parallel.experts.exchange import RowExchange, check_experts, exchange_counts, from_experts, to_experts
from lablib.parallel.experts.routing import Routing
from lablib.parallel.tensor.regions import Group

Compute = Callable[[Tensor, tuple[int, ...]], Tensor]  # (rows of this rank's experts, counts) -> rows


def naive_expert_parallel(
    x_ND: Float[Tensor, "N D"], routing: Routing, compute: Compute, capacity: int, group: Group = None
) -> Float[Tensor, "N D"]:
    """GShard: each expert has the same number of slots for every rank. Communicates: two all-to-alls, two backward.

    The host reads no values, so it runs under fidelity="shapes" with any routing. All ranks have the same capacity.
    """
    n = dist.get_world_size(group)
    own = check_experts(routing.num_experts, routing.k, n)
    takes_NEC, weighs_NEC = naive_masks(routing, capacity)
    rows = naive_dispatch(x_ND, takes_NEC).flatten(0, 1)  # sorted by expert, so also by rank
    full = RowExchange((own * capacity,) * n, ((capacity,) * own,) * n)
    rows = from_experts(compute(to_experts(rows, full, group), full.counts), full, group)
    return naive_combine(rows.unflatten(0, (-1, capacity)), weighs_NEC)


def expert_parallel(
    x_ND: Float[Tensor, "N D"], routing: Routing, compute: Compute, permutation: Permutation, group: Group = None
) -> Float[Tensor, "N D"]:
    """Outputs of the experts on all ranks for this rank's tokens. Communicates: counts, two all-to-alls, two backward.

    `compute`: the experts of this rank, such as `ExpertMLPs`; `permutation`: phase 1, `sort_by_expert(routing, ...)`.
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
