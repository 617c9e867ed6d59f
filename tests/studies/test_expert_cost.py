"""What a mixture sends, keeps and takes: closed forms beside the simulator."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
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
from lablib.studies import expert_time, expert_times

THOROUGH = pytest.mark.thorough
SIZES = ExpertSizes(64, 16, 32, 8, 2, num_shared=1)
RANKS = [
    ExpertRanks(4),
    ExpertRanks(1, data=4),
    ExpertRanks(2, data=2, tensor=2),
    ExpertRanks(2, data=2, tensor=2, cuts_experts=False),
    ExpertRanks(1, tensor=2),
]
DTYPES = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}


def number_of(ranks: ExpertRanks) -> int:
    return ranks.expert * ranks.data * ranks.tensor


def mixture_on(sizes: ExpertSizes, ranks: ExpertRanks, balanced: bool, multiply: Product = loop_product) -> Any:
    """A mixture spread over this rank's groups, and the mesh."""
    mesh = Mesh(data=ranks.data, expert=ranks.expert, tensor=ranks.tensor)
    config = MixtureConfig(sizes.num_experts, sizes.k, sizes.num_shared, balanced=balanced, product=multiply)
    dtype = DTYPES[sizes.element_bytes]
    model = nn.Sequential(MixtureOfExperts(config, sizes.d_model, sizes.d_ff, dtype=dtype))
    group = mesh.group("expert") if ranks.cuts_experts else mesh.group("expert", "tensor")
    tensor_group = mesh.group("tensor") if ranks.tensor > 1 else None
    parallel = ExpertParallel(group, tensor_group, cuts_experts=ranks.cuts_experts)
    return parallel.parallelize(model, broadcasts=False), mesh


def step(sizes: ExpertSizes, ranks: ExpertRanks, balanced: bool) -> list[int]:
    model, mesh = mixture_on(sizes, ranks, balanced)
    generator = torch.Generator().manual_seed(dist.get_rank() // ranks.tensor)
    x = torch.randn(sizes.tokens, sizes.d_model, generator=generator).to(DTYPES[sizes.element_bytes])
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
    sizes = replace(SIZES, element_bytes=width)
    run = launch(step, sizes, ranks, True, ranks=number_of(ranks))
    for rank in range(number_of(ranks)):
        assert sent_in_rings(run.traffic, rank) == expert_sent_bytes(sizes, ranks).total


@pytest.mark.parametrize("ranks", [ExpertRanks(4), ExpertRanks(2, data=2)], ids=str)
def test_a_real_routing_sends_what_its_counts_say(ranks: ExpertRanks):
    sizes = replace(SIZES, k=3, element_bytes=4)
    run = launch(step, sizes, ranks, False, ranks=4)
    sent = set()
    for rank in range(4):
        first = rank // ranks.expert * ranks.expert
        counts: Sequence[Sequence[int]] = run.values[first : first + ranks.expert]
        expected = expert_sent_bytes(sizes, ranks, counts, rank - first)
        assert sent_in_rings(run.traffic, rank) == expected.total
        sent.add(expected.rows)
    assert len(sent) > 1  # ranks differ, or nothing was tried


def kept(sizes: ExpertSizes, ranks: ExpertRanks) -> tuple[int, int]:
    """Bytes that autograd saves, without x and the weights; numbers of the experts' weights."""
    model, _ = mixture_on(sizes, ranks, True)
    x = torch.zeros(sizes.tokens, sizes.d_model, dtype=DTYPES[sizes.element_bytes], requires_grad=True)
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
    ("ranks", "k", "shared", "width"),
    [
        (RANKS[0], 2, 1, 2),
        (RANKS[0], 1, 0, 2),
        (RANKS[0], 2, 1, 4),
        (RANKS[2], 2, 1, 2),
        (RANKS[3], 2, 1, 4),
        *(
            pytest.param(*one, marks=THOROUGH)
            for one in product((RANKS[2], RANKS[3], RANKS[4]), (1, 2), (0, 1), (2, 4))
        ),
    ],
)
def test_what_is_kept_for_backward_is_what_autograd_saves(ranks: ExpertRanks, k: int, shared: int, width: int):
    sizes = replace(SIZES, k=k, num_shared=shared, element_bytes=width)
    expected = (expert_kept_bytes(sizes, ranks).total, expert_weights(sizes, ranks))
    assert launch(kept, sizes, ranks, ranks=number_of(ranks)).values == [expected] * number_of(ranks)


def test_whole_experts_on_tensor_ranks_send_less_than_cut_ones():
    """Of the two ways beside tensor parallelism, as the head of expert_parallelize.py says; and keep less."""
    sizes, cut = ExpertSizes(4096, 2048, 1024, 64, 8), ExpertRanks(4, tensor=2)
    whole = replace(cut, cuts_experts=False)
    assert expert_sent_bytes(sizes, whole).total < expert_sent_bytes(sizes, cut).total
    assert expert_kept_bytes(sizes, whole).total < expert_kept_bytes(sizes, cut).total
    assert expert_weights(sizes, whole) == expert_weights(sizes, cut)


def test_spreading_experts_sends_less_than_summing_their_gradients_up_to_some_tokens():
    """The head's bound: rows are fewer bytes than gradients below E F / k tokens a rank."""
    sizes = ExpertSizes(1, 2048, 1024, 64, 8)
    for tokens, is_less in ((0.9, True), (1.1, False)):
        one = replace(sizes, tokens=64 * round(tokens * 64 * 1024 / 8 / 64))
        spread, copied = expert_sent_bytes(one, ExpertRanks(8)), expert_sent_bytes(one, ExpertRanks(1, data=8))
        assert (spread.rows < copied.gradients) == is_less


# ---- seconds ----


def timed(sizes: ExpertSizes, is_real: bool, ranks: ExpertRanks) -> list[int]:
    """Forward and backward behind a barrier. A real routing: tokens of a rank are alike, so its experts are busy."""
    model, _ = mixture_on(sizes, ranks, not is_real, grouped_product)
    x = torch.zeros(sizes.tokens, sizes.d_model, dtype=DTYPES[sizes.element_bytes])
    if is_real:
        model[0].router.weight.data.mul_(20)
        x.normal_(1.0, generator=torch.Generator().manual_seed(dist.get_rank()))
    grad = torch.ones_like(x)
    dist.barrier()
    model(x.requires_grad_()).backward(grad)
    return model[0].routing.counts_E().tolist() if is_real else []


def simulated(
    sizes: ExpertSizes, cluster: str, ranks: int | ExpertRanks, is_real: bool = False
) -> tuple[float, float, Any]:
    """Seconds behind the barrier, those of communication on rank 0, and the counts."""
    fidelity: Any = "values" if is_real else "shapes"
    shared = ranks if isinstance(ranks, ExpertRanks) else ExpertRanks(ranks)
    run = launch(timed, sizes, is_real, shared, ranks=number_of(shared), cluster=cluster, fidelity=fidelity)
    start_s = next(one for one in run.traffic.transfers if one.name == "barrier").end_s
    sent = [one for one in run.traffic.transfers if one.name != "barrier" and 0 in one.ranks]
    return run.timeline.makespan_s - start_s, sum(one.end_s - one.start_s for one in sent), run.values


OLMOE_LAYER = ExpertSizes(4096, 2048, 1024, 64, 8)


@pytest.mark.parametrize(
    ("sizes", "cluster", "ranks"),
    [
        (OLMOE_LAYER, "dgx-h100", 8),
        (replace(OLMOE_LAYER, k=6, num_shared=2), "dgx-a100", 16),
        (ExpertSizes(1024, 1024, 2048, 16, 1), "pcie-a100", 4),
        (replace(OLMOE_LAYER, tokens=256), "dgx-h100", 1),
        (OLMOE_LAYER, "dgx-h100", ExpertRanks(4, tensor=2)),
        (OLMOE_LAYER, "dgx-h100", ExpertRanks(4, tensor=2, cuts_experts=False)),
        (replace(OLMOE_LAYER, tokens=256, k=1, num_shared=1), "pcie-a100", ExpertRanks(1, tensor=4)),
        (replace(OLMOE_LAYER, num_shared=2), "dgx-a100", ExpertRanks(1, tensor=2, cuts_experts=False)),
        *(
            pytest.param(
                replace(OLMOE_LAYER, k=6, num_shared=2), "dgx-a100", ExpertRanks(e, d, t, cuts), marks=THOROUGH
            )
            for e, d, t in ((4, 1, 4), (2, 2, 2))
            for cuts in (True, False)
        ),
        pytest.param(ExpertSizes(4096, 4096, 14336, 8, 2), "dgx-h100", 8, marks=THOROUGH),
    ],
)
def test_the_closed_form_is_what_the_simulator_takes(sizes: ExpertSizes, cluster: str, ranks: int | ExpertRanks):
    expected = expert_time(sizes, CLUSTERS[cluster], ranks)
    found_s, exposed_s, _ = simulated(sizes, cluster, ranks)
    assert found_s == pytest.approx(expected.layer_s, rel=0.01)
    assert exposed_s == pytest.approx(expected.exposed_s, rel=0.01)


def test_a_real_routing_takes_what_its_busiest_rank_does():
    """Without the counts a quarter would be missing."""
    sizes, cluster = ExpertSizes(1024, 256, 512, 8, 2, element_bytes=4), CLUSTERS["pcie-a100"]
    found_s, _, counts = simulated(sizes, "pcie-a100", 4, is_real=True)
    assert found_s == pytest.approx(expert_time(sizes, cluster, 4, counts).layer_s, rel=0.03)
    assert expert_time(sizes, cluster, 4).layer_s < 0.8 * found_s


def test_narrow_experts_spend_more_on_moves_and_on_the_way_than_on_products():
    """The head's bound, some 2,000 on H100s, with the FLOP/s that products reach."""
    cluster = CLUSTERS["dgx-h100"]
    shares = {}
    for width in (512, 1024, 4096, 8192):
        one = expert_time(replace(OLMOE_LAYER, tokens=32768, d_ff=width, num_experts=16, k=4), cluster, 8)
        shares[width] = one.products_s / (one.products_s + one.moves_s + one.exposed_s)
    assert shares[512] < shares[1024] < 0.5 < shares[4096] < shares[8192]


def test_the_same_tokens_on_more_ranks_have_the_same_products_and_more_on_the_way():
    times = expert_times(OLMOE_LAYER, CLUSTERS["dgx-h100"], [1, 2, 4, 8, 16])
    assert [one.expert_ranks for one in times] == [1, 2, 4, 8, 16]
    assert times[0].exposed_s == 0 and all(a.exposed_s < b.exposed_s for a, b in zip(times, times[1:], strict=False))
    assert all(a.rows_of_an_expert < b.rows_of_an_expert for a, b in zip(times, times[1:], strict=False))
    assert times[3].products_s < times[0].products_s  # more rows of each expert, fewer weights to read
    assert times[4].exposed_s > 3 * times[3].exposed_s  # a node has 8


def test_a_deduplicated_dispatch_sends_less_between_nodes():
    two = (
        expert_time(OLMOE_LAYER, CLUSTERS["dgx-h100"], 16),
        expert_time(OLMOE_LAYER, CLUSTERS["dgx-h100"], 16, dispatcher="deduplicated"),
    )
    assert two[1].exposed_s < 0.5 * two[0].exposed_s and two[1].compute_s == two[0].compute_s


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((OLMOE_LAYER, CLUSTERS["dgx-h100"], 3), "the experts must be a multiple of the ranks"),
        ((replace(OLMOE_LAYER, element_bytes=3), CLUSTERS["dgx-h100"], 8), "element_bytes must be one of"),
        ((OLMOE_LAYER, CLUSTERS["dgx-h100"], 8, None, "alltoal"), "alltoall"),
        ((OLMOE_LAYER, CLUSTERS["dgx-h100"], 1, [[512] * 64], "deduplicated"), "counts are for all-to-alls"),
        ((OLMOE_LAYER, CLUSTERS["dgx-h100"], ExpertRanks(2, 1, 2), None, "deduplicated"), "tensor ranks are priced"),
        ((OLMOE_LAYER, CLUSTERS["dgx-h100"], ExpertRanks(2, tensor=3)), "hidden width must be a multiple"),
    ],
)
def test_what_has_no_price_is_refused(arguments: Any, message: str):
    with pytest.raises(ValueError, match=message):
        expert_time(*arguments)


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
    for function in (expert_sent_bytes, expert_kept_bytes):
        with pytest.raises(ValueError, match=message):
            function(sizes, ranks, counts, rank)


def test_sizes_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="k must be at most the number of experts: got 9 of 8"):
        replace(SIZES, k=9)
    with pytest.raises(ValueError, match="expert must be a whole number"):
        ExpertRanks(0)
