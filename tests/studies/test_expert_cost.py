"""Bytes and seconds of a mixture: closed forms of bytes next to the simulator, and what takes the time."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from lablib import CLUSTERS, launch
from lablib.parallel import (
    ExpertParallel,
    ExpertRanks,
    ExpertSizes,
    Mesh,
    MixtureConfig,
    MixtureOfExperts,
    average_expert_gradients,
    expert_kept_bytes,
    expert_sent_bytes,
    expert_weights,
    grouped_product,
    loop_product,
    mixtures,
)
from lablib.parallel.experts.products import Product
from lablib.run import Traffic
from lablib.studies import PRODUCTS, expert_cost

THOROUGH = pytest.mark.thorough
SIZES = ExpertSizes(64, 16, 32, 8, 2, num_shared=1)
RANKS = [
    ExpertRanks(4),
    ExpertRanks(1, data=4),
    ExpertRanks(2, data=2, tensor=2),
    ExpertRanks(2, data=2, tensor=2, cuts_experts=False),
    ExpertRanks(1, tensor=2),
    ExpertRanks(2, tensor=2, cuts_sequence=True),
]
DTYPES = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}


def number_of(ranks: ExpertRanks) -> int:
    return ranks.expert * ranks.data * ranks.tensor


def mixture_on(sizes: ExpertSizes, ranks: ExpertRanks, balanced: bool, multiply: Product = loop_product) -> Any:
    """A mixture spread over this rank's groups, and the mesh."""
    mesh = Mesh(data=ranks.data, expert=ranks.expert, tensor=ranks.tensor)
    options: Any = {"balanced": balanced, "product": multiply, "has_gate": sizes.has_gate}
    config = MixtureConfig(sizes.num_experts, sizes.k, sizes.num_shared, **options)
    dtype = DTYPES[sizes.element_bytes]
    model = nn.Sequential(MixtureOfExperts(config, sizes.d_model, sizes.d_ff, dtype=dtype))
    group = mesh.group("expert") if ranks.cuts_experts else mesh.group("expert", "tensor")
    tensor_group = mesh.group("tensor") if ranks.tensor > 1 else None
    cuts = {"cuts_experts": ranks.cuts_experts, "cuts_sequence": ranks.cuts_sequence}
    parallel = ExpertParallel(group, tensor_group, **cuts)
    return parallel.parallelize(model, broadcasts=False), mesh


def step(sizes: ExpertSizes, ranks: ExpertRanks, balanced: bool) -> list[int]:
    model, mesh = mixture_on(sizes, ranks, balanced)
    generator = torch.Generator().manual_seed(dist.get_rank() // ranks.tensor)
    x = torch.randn(sizes.tokens // ranks.sequence_parts, sizes.d_model, generator=generator).to(
        DTYPES[sizes.element_bytes]
    )
    y = model(x.requires_grad_())
    y.backward(torch.ones_like(y, requires_grad=False))
    average_expert_gradients(model, mesh.group("data"), mesh.group("data", "expert"))
    routing = next(mixtures(model)).routing
    assert routing is not None
    return routing.counts_E().tolist()


def sent_in_rings(traffic: Traffic, rank: int) -> float:
    """By one rank, were every sum over ranks a ring's; small ones are trees' on the simulator."""
    total = 0.0
    for one in traffic.transfers:
        if one.name == "all_reduce" and rank in one.ranks:
            total += 2 * (len(one.ranks) - 1) / len(one.ranks) * one.tensor_bytes
        elif rank in one.ranks:
            total += one.sent_bytes[one.ranks.index(rank)]
    return total


# ---- bytes ----


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("ranks", RANKS, ids=str)
def test_an_even_load_sends_what_the_closed_form_says(ranks: ExpertRanks, width: int):
    sizes = replace(SIZES, element_bytes=width, has_gate=width == 4)
    run = launch(step, sizes, ranks, True, ranks=number_of(ranks))
    for rank in range(number_of(ranks)):
        assert sent_in_rings(run.traffic, rank) == sum(expert_sent_bytes(sizes, ranks).values())


@pytest.mark.parametrize("ranks", [ExpertRanks(4), ExpertRanks(2, data=2)], ids=str)
def test_a_real_routing_sends_what_its_counts_say(ranks: ExpertRanks):
    sizes = replace(SIZES, k=3, element_bytes=4)
    run = launch(step, sizes, ranks, False, ranks=4)
    sent = set()
    for rank in range(4):
        first = rank // ranks.expert * ranks.expert
        counts: Sequence[Sequence[int]] = run.values[first : first + ranks.expert]
        expected = expert_sent_bytes(sizes, ranks, counts, rank - first)
        assert sent_in_rings(run.traffic, rank) == sum(expected.values())
        sent.add(expected["rows"])
    assert len(sent) > 1  # ranks differ, or nothing was tried


def kept(sizes: ExpertSizes, ranks: ExpertRanks) -> tuple[int, int]:
    """Bytes that autograd saves, without x and the weights; numbers of the experts' weights."""
    model, _ = mixture_on(sizes, ranks, True)
    x = torch.zeros(
        sizes.tokens // ranks.sequence_parts, sizes.d_model, dtype=DTYPES[sizes.element_bytes], requires_grad=True
    )
    known = {tensor.untyped_storage().data_ptr() for tensor in (x, *model.parameters())}
    alive: list[torch.Tensor] = []
    found: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        alive.append(tensor)
        if (place := tensor.untyped_storage().data_ptr()) not in known:
            found[place] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(x)
    return sum(found.values()), sum(param.numel() for param in next(mixtures(model)).experts.parameters())


@pytest.mark.parametrize(
    ("ranks", "k", "shared", "width", "has_gate"),
    [
        (RANKS[0], 2, 1, 2, False),
        (RANKS[0], 1, 0, 2, True),
        (RANKS[0], 2, 1, 4, False),
        (RANKS[2], 2, 1, 2, True),
        (RANKS[3], 2, 1, 4, False),
        (RANKS[5], 2, 1, 2, True),
        (RANKS[5], 2, 1, 4, False),
        *(pytest.param(*one, marks=THOROUGH) for one in product(RANKS[2:], (1, 2), (0, 1), (2, 4), (False, True))),
    ],
)
def test_what_is_kept_for_backward_is_what_autograd_saves(
    ranks: ExpertRanks, k: int, shared: int, width: int, has_gate: bool
):
    sizes = replace(SIZES, k=k, num_shared=shared, element_bytes=width, has_gate=has_gate)
    expected = (expert_kept_bytes(sizes, ranks), expert_weights(sizes, ranks))
    assert launch(kept, sizes, ranks, ranks=number_of(ranks)).values == [expected] * number_of(ranks)


def test_whole_experts_on_tensor_ranks_send_less_than_cut_ones():
    """Of the two ways beside tensor parallelism, as the head of expert_parallelize.py says; and keep less."""
    sizes, cut = ExpertSizes(4096, 2048, 1024, 64, 8), ExpertRanks(4, tensor=2)
    whole = replace(cut, cuts_experts=False)
    assert sum(expert_sent_bytes(sizes, whole).values()) < sum(expert_sent_bytes(sizes, cut).values())
    assert expert_kept_bytes(sizes, whole) < expert_kept_bytes(sizes, cut)
    assert expert_weights(sizes, whole) == expert_weights(sizes, cut)


def test_spreading_experts_sends_less_than_summing_their_gradients_up_to_some_tokens():
    """The head's bound: rows are fewer bytes than gradients below E F / k tokens a rank."""
    sizes = ExpertSizes(1, 2048, 1024, 64, 8)
    for tokens, is_less in ((0.9, True), (1.1, False)):
        one = replace(sizes, tokens=64 * round(tokens * 64 * 1024 / 8 / 64))
        spread, copied = expert_sent_bytes(one, ExpertRanks(8)), expert_sent_bytes(one, ExpertRanks(1, data=8))
        assert (spread["rows"] < copied["gradients"]) == is_less


# ---- seconds ----


OLMOE_LAYER = ExpertSizes(4096, 2048, 1024, 64, 8)


@pytest.mark.parametrize("ranks", [ExpertRanks(8), ExpertRanks(4, tensor=2), ExpertRanks(4, 1, 2, False)], ids=str)
def test_the_cost_has_the_bytes_of_the_closed_form_and_exposes_all_communication(ranks: ExpertRanks):
    cost = expert_cost(OLMOE_LAYER, CLUSTERS["dgx-h100"], ranks)
    expected = expert_sent_bytes(OLMOE_LAYER, ranks)
    assert cost.sent_bytes == sum(expected.values()) - expected["gradients"]
    assert cost.exposed_s == pytest.approx(cost.communication_s) and cost.exposed_s > 0


def real_step(sizes: ExpertSizes) -> list[int]:
    """Forward and backward behind a barrier. Tokens of a rank are similar, so its experts are busy."""
    model, _ = mixture_on(sizes, ExpertRanks(4), False, grouped_product)
    model[0].router.weight.data.mul_(20)
    noise = torch.randn(sizes.tokens, sizes.d_model, generator=torch.Generator().manual_seed(dist.get_rank()))
    x = (1 + noise).to(DTYPES[sizes.element_bytes])
    grad = torch.ones_like(x)
    dist.barrier()
    model(x.requires_grad_()).backward(grad)
    return model[0].routing.counts_E().tolist()


def test_given_counts_cost_what_their_real_routing_takes():
    """Without the counts a quarter would be missing."""
    sizes, cluster = ExpertSizes(1024, 256, 512, 8, 2), CLUSTERS["pcie-a100"]
    run = launch(real_step, sizes, ranks=4, cluster=cluster)
    start_s = next(one for one in run.traffic.transfers if one.name == "barrier").end_s
    found_s = run.timeline.makespan_s - start_s
    assert expert_cost(sizes, cluster, 4, run.values).time_s == pytest.approx(found_s, rel=0.03)
    assert expert_cost(sizes, cluster, 4).time_s < 0.8 * found_s


def test_narrow_experts_spend_more_on_moves_and_on_the_way_than_on_products():
    """The head's bound, some 2,000 on H100s, with the FLOP/s that products reach."""
    cluster = CLUSTERS["dgx-h100"]
    shares = {}
    for width in (512, 1024, 4096, 8192):
        one = expert_cost(replace(OLMOE_LAYER, tokens=32768, d_ff=width, num_experts=16, k=4), cluster, 8)
        shares[width] = one.seconds_of(*PRODUCTS) / one.time_s
    assert shares[512] < shares[1024] < 0.5 < shares[4096] < shares[8192]


def test_the_same_tokens_on_more_ranks_have_the_same_products_and_more_on_the_way():
    costs = [expert_cost(OLMOE_LAYER, CLUSTERS["dgx-h100"], n) for n in (1, 2, 4, 8, 16)]
    exposed = [cost.exposed_s for cost in costs]
    assert exposed[0] == pytest.approx(0, abs=1e-12) and all(a < b for a, b in pairwise(exposed))
    # More rows of each expert, fewer weights to read.
    assert costs[3].seconds_of(*PRODUCTS) < costs[0].seconds_of(*PRODUCTS)
    assert exposed[4] > 3 * exposed[3]  # a node has 8


@pytest.mark.parametrize(
    ("arguments", "parts", "message"),
    [
        ((OLMOE_LAYER, CLUSTERS["dgx-h100"], 3), None, "the experts must be a multiple of the ranks"),
        ((replace(OLMOE_LAYER, element_bytes=3), CLUSTERS["dgx-h100"], 8), None, "element_bytes must be one of"),
        ((OLMOE_LAYER, CLUSTERS["dgx-h100"], ExpertRanks(2, tensor=3)), None, "hidden width must be a multiple"),
        ((replace(OLMOE_LAYER, tokens=9), CLUSTERS["dgx-h100"], 8), 2, "parts must divide the.*got 2 of 9.*try 10"),
        ((replace(OLMOE_LAYER, tokens=12), CLUSTERS["dgx-h100"], 8), 2, "an even load in each.*multiple of 128 tokens"),
        ((OLMOE_LAYER, CLUSTERS["dgx-h100"], 1), 2, "expert_ranks must be a whole number, 2 or more"),
        ((OLMOE_LAYER, CLUSTERS["dgx-h100"], ExpertRanks(4, tensor=2)), 2, "without tensor ranks.*tensor=2"),
    ],
)
def test_a_mixture_without_a_cost_is_refused(arguments: Any, parts: int | None, message: str):
    with pytest.raises(ValueError, match=message):
        expert_cost(*arguments, parts=parts)


@pytest.mark.parametrize(
    ("sizes", "ranks", "counts", "rank", "message"),
    [
        (SIZES, ExpertRanks(3), None, 0, "the experts must be a multiple of the ranks"),
        (SIZES, ExpertRanks(2, tensor=3), None, 0, "hidden width must be a multiple of the tensor ranks"),
        (replace(SIZES, tokens=63), ExpertRanks(2, 1, 2, False), None, 0, "tokens must be a multiple.*got 63.*try 64"),
        (SIZES, ExpertRanks(2), [[16] * 8], 0, "counts must be of 2 ranks and 8 experts: got 1"),
        (SIZES, ExpertRanks(2), [[16] * 8, [1] * 8], 0, r"must sum to 64 tokens x 2 choices: got \[128, 8\]"),
        (SIZES, ExpertRanks(2), None, 2, "rank must be 0 to 1"),
    ],
)
def test_what_cannot_be_shared_is_refused(sizes: Any, ranks: Any, counts: Any, rank: int, message: str):
    with pytest.raises(ValueError, match=message):
        expert_sent_bytes(sizes, ranks, counts, rank)


def test_sizes_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="k must be at most the number of experts: got 9 of 8"):
        replace(SIZES, k=9)
