"""Tokens in parts, on their way beside experts: the plain layer's gradients, and the seconds left, as predicted."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from lablib import CLUSTERS, launch
from lablib.models.gpt import GPT, GPTConfig, next_token_loss
from lablib.parallel import (
    DataParallel,
    ExpertParallel,
    ExpertRanks,
    ExpertReduce,
    ExpertSizes,
    Mesh,
    MixtureConfig,
    MixtureOfExperts,
    grouped_product,
    overlap_experts,
    with_experts,
)
from lablib.studies import expert_time, overlapped_time

THOROUGH = pytest.mark.thorough
EXACT: Any = {"rtol": 1e-11, "atol": 1e-13}


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gradients(parts: int, balanced: bool, num_shared: int) -> list[Tensor]:
    """Output, and gradients of input and parameters; parts=0 is the plain layer."""
    config = MixtureConfig(8, 2, num_shared, balanced=balanced)
    model = nn.Sequential(MixtureOfExperts(config, 16, 32, dtype=torch.float64))
    with torch.no_grad():
        model[0].router.weight.mul_(20)  # pyright: ignore  (busy experts, and idle ones)
    ExpertParallel().parallelize(model)
    if parts:
        overlap_experts(model, parts)
    x = drawn(64, 16, seed=dist.get_rank()).add_(1.0).requires_grad_()
    y = model(x)
    (y * drawn(64, 16, seed=9 + dist.get_rank())).sum().backward()
    assert x.grad is not None
    return [y.detach(), x.grad, *[param.grad for param in model.parameters() if param.grad is not None]]


@pytest.mark.parametrize(
    ("parts", "balanced", "num_shared"),
    [(2, False, 1), (4, False, 0), (2, True, 1), pytest.param(1, False, 1, marks=THOROUGH)],
)
def test_parts_have_the_gradients_of_the_plain_layer(parts: int, balanced: bool, num_shared: int):
    plain = launch(gradients, 0, balanced, num_shared, ranks=4).values
    run = launch(gradients, parts, balanced, num_shared, ranks=4)
    assert run.notes == ()  # nothing reads what is on its way
    for expected, of_rank in zip(plain, run.values, strict=True):
        assert len(of_rank) == 5 + 2 * num_shared
        for a, b in zip(expected, of_rank, strict=True):
            torch.testing.assert_close(b, a, **EXACT)


def test_parts_repeat_to_the_bit_and_are_the_same_on_gloo():
    runs = [launch(gradients, 2, False, 1, ranks=2, backend=backend).values for backend in ("sim", "sim", "gloo")]
    for first, again, real in zip(*runs, strict=True):
        for a, b, c in zip(first, again, real, strict=True):
            assert torch.equal(a, b)
            torch.testing.assert_close(c, a, **EXACT)


def trained(parts: int) -> list[Tensor]:
    """Gradients of a GPT whose buckets are summed while exchanges are on their way, on the same ranks."""
    mesh, model = Mesh(data=2, expert=2), _gpt()
    ExpertParallel(mesh.group("expert")).parallelize(model)
    if parts:
        overlap_experts(model, parts)
    reduce = ExpertReduce(model, mesh.group("data", "expert"))
    replica = DataParallel(model, mesh.group("data"), bucket_bytes=1000, reduce=reduce)
    tokens = torch.randint(0, 32, (2, 9), generator=torch.Generator().manual_seed(dist.get_rank()))
    next_token_loss(replica(tokens[:, :-1]), tokens[:, 1:]).backward()
    return [param.grad for param in model.parameters() if param.grad is not None]


def _gpt() -> GPT:
    config = GPTConfig(num_layers=2, d_model=16, num_heads=2, vocab_size=32, max_seq_len=8)
    return with_experts(GPT(config).double(), 4, 2)


def test_all_mixtures_of_a_model_are_overlapped_beside_data_parallelism():
    plain, found = launch(trained, 0, ranks=4).values, launch(trained, 2, ranks=4).values
    for expected, of_rank in zip(plain, found, strict=True):
        assert len(expected) == len(of_rank) > 0
        for a, b in zip(expected, of_rank, strict=True):
            torch.testing.assert_close(b, a, **EXACT)


# ---- seconds ----


def timed(sizes: ExpertSizes, parts: int) -> None:
    config = MixtureConfig(sizes.num_experts, sizes.k, sizes.num_shared, balanced=True, product=grouped_product)
    model = nn.Sequential(MixtureOfExperts(config, sizes.d_model, sizes.d_ff, dtype=torch.bfloat16))
    ExpertParallel().parallelize(model, broadcasts=False)
    if parts:
        overlap_experts(model, parts)
    x = torch.zeros(sizes.tokens, sizes.d_model, dtype=torch.bfloat16, requires_grad=True)
    grad = torch.ones_like(x, requires_grad=False)
    dist.barrier()
    model(x).backward(grad)


def simulated(sizes: ExpertSizes, cluster: str, ranks: int, parts: int) -> tuple[float, float, float]:
    """Seconds behind a barrier, those of them in which rank 0 computes nothing, and bytes of rows that it sends."""
    run = launch(timed, sizes, parts, ranks=ranks, cluster=cluster, fidelity="shapes")
    start_s = next(one for one in run.traffic.transfers if one.name == "barrier").end_s
    spans = [span for span in run.timeline.spans if span.rank == 0 and span.start_s >= start_s - 1e-12]
    computed_s = sum(span.end_s - span.start_s for span in spans if span.stream == "compute")
    sent = sum(one.sent_bytes[0] for one in run.traffic.transfers if one.tensor_bytes > 8 * sizes.num_experts)
    return run.timeline.makespan_s - start_s, run.timeline.makespan_s - start_s - computed_s, sent


LAYER = ExpertSizes(8192, 2048, 1024, 64, 8)


@pytest.mark.parametrize(
    ("sizes", "cluster", "ranks", "parts"),
    [
        (LAYER, "dgx-h100", 8, 2),
        (replace(LAYER, num_shared=1), "dgx-h100", 8, 2),
        pytest.param(LAYER, "dgx-a100", 16, 4, marks=THOROUGH),
        pytest.param(ExpertSizes(4096, 4096, 14336, 8, 2, 1), "pcie-a100", 8, 4, marks=THOROUGH),
    ],
)
def test_what_is_left_over_is_what_the_simulator_leaves(sizes: ExpertSizes, cluster: str, ranks: int, parts: int):
    expected = overlapped_time(sizes, CLUSTERS[cluster], ranks, parts)
    found_s, exposed_s, sent = simulated(sizes, cluster, ranks, parts)
    assert found_s == pytest.approx(expected.layer_s, rel=0.01)
    assert exposed_s == pytest.approx(expected.exposed_s, rel=0.05, abs=0.001 * found_s)
    plain_s, plain_exposed_s, plain_sent = simulated(sizes, cluster, ranks, 0)
    assert sent == plain_sent
    assert found_s < plain_s and exposed_s < 0.5 * plain_exposed_s


def test_a_shared_expert_hides_what_two_parts_leave():
    """The first part's way there, and the last one's back in backward, are beside it."""
    without, beside = (overlapped_time(replace(LAYER, num_shared=n), CLUSTERS["dgx-h100"], 8) for n in (0, 1))
    assert beside.exposed_s < 0.25 * without.exposed_s < 0.05 * expert_time(LAYER, CLUSTERS["dgx-h100"], 8).exposed_s


def test_one_part_exposes_what_the_plain_layer_does():
    one, plain = overlapped_time(LAYER, CLUSTERS["dgx-h100"], 8, 1), expert_time(LAYER, CLUSTERS["dgx-h100"], 8)
    assert one.exposed_s == pytest.approx(plain.exposed_s) and one.compute_s == pytest.approx(plain.compute_s)


def test_between_nodes_an_exchange_is_longer_than_what_could_hide_it():
    """16 ranks of two nodes: the link is the limit; four parts do not help much more than two."""
    cluster = CLUSTERS["dgx-a100"]
    plain, two, four = expert_time(LAYER, cluster, 16), *(overlapped_time(LAYER, cluster, 16, n) for n in (2, 4))
    assert two.exposed_s > 0.5 * plain.exposed_s and four.layer_s > 0.95 * two.layer_s


def test_parts_of_few_tokens_cost_more_than_they_hide():
    few, cluster = replace(LAYER, tokens=512), CLUSTERS["dgx-h100"]
    assert overlapped_time(few, cluster, 4).layer_s > 1.2 * expert_time(few, cluster, 4).layer_s


# ---- bad input ----


def test_models_that_cannot_be_overlapped_are_refused():
    with pytest.raises(ValueError, match="overlap is for mixtures that are spread over ranks: got none"):
        overlap_experts(_gpt())

    def limited() -> str:
        model = ExpertParallel().parallelize(with_experts(GPT(_gpt().config), 4, 2, capacity_factor=1.25))
        with pytest.raises(ValueError, match="overlap is for dropless mixtures.*got capacity_factor=1.25"):
            overlap_experts(model)
        return "refused"

    assert launch(limited, ranks=1).values == ["refused"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (replace(LAYER, tokens=9), CLUSTERS["dgx-h100"], 8),
            "parts must divide the tokens of a rank: got 2 of 9.*try 10",
        ),
        ((LAYER, CLUSTERS["dgx-h100"], 1), "expert_ranks must be a whole number, 2 or more"),
        ((LAYER, CLUSTERS["dgx-h100"], 8, 0), "parts must be a whole number, 1 or more"),
        ((LAYER, CLUSTERS["dgx-h100"], ExpertRanks(4, tensor=2)), "tokens go in parts without tensor ranks.*tensor=2"),
    ],
)
def test_times_that_cannot_be_are_refused(arguments: Any, message: str):
    with pytest.raises(ValueError, match=message):
        overlapped_time(*arguments)


def test_parts_that_do_not_divide_a_ranks_tokens_are_refused_with_a_remedy():
    def program(tokens: int, balanced: bool) -> str:
        model = nn.Sequential(MixtureOfExperts(MixtureConfig(8, 2, balanced=balanced), 16, 32))
        overlap_experts(ExpertParallel().parallelize(model))
        with pytest.raises(ValueError) as error:
            model(torch.ones(tokens, 16))
        return str(error.value)

    assert "parts must divide the tokens of a rank: got 2 of 9; try 10" in launch(program, 9, False, ranks=1).values[0]
    assert "a balanced routing in parts must have an even load" in launch(program, 12, True, ranks=1).values[0]
