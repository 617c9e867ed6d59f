"""Tokens in parts, on their way beside experts: the plain layer's gradients, and the seconds left, as predicted."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from lablib import CLUSTERS, launch, parallel
from lablib.models.gpt import GPT, GPTConfig, next_token_loss
from lablib.studies import expert_cost

THOROUGH = pytest.mark.thorough
EXACT: Any = {"rtol": 1e-11, "atol": 1e-13}


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gradients(parts: int, balanced: bool, num_shared: int) -> list[Tensor]:
    """Output, and gradients of input and parameters; parts=0 is the plain layer."""
    config = parallel.MixtureConfig(8, 2, num_shared, balanced=balanced)
    model = nn.Sequential(parallel.MixtureOfExperts(config, 16, 32, dtype=torch.float64))
    with torch.no_grad():
        model[0].router.weight.mul_(20)  # pyright: ignore  (busy experts, and idle ones)
    parallel.ExpertParallel().parallelize(model)
    if parts:
        parallel.overlap_experts(model, parts)
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
    mesh, model = parallel.Mesh(data=2, expert=2), _gpt()
    parallel.ExpertParallel(mesh.group("expert")).parallelize(model)
    if parts:
        parallel.overlap_experts(model, parts)
    reduce = parallel.ExpertReduce(model, mesh.group("data", "expert"))
    replica = parallel.DataParallel(model, mesh.group("data"), bucket_bytes=1000, reduce=reduce)
    tokens = torch.randint(0, 32, (2, 9), generator=torch.Generator().manual_seed(dist.get_rank()))
    next_token_loss(replica(tokens[:, :-1]), tokens[:, 1:]).backward()
    return [param.grad for param in model.parameters() if param.grad is not None]


def _gpt() -> GPT:
    config = GPTConfig(num_layers=2, d_model=16, num_heads=2, vocab_size=32, max_seq_len=8)
    return parallel.with_experts(GPT(config).double(), 4, 2)


def test_all_mixtures_of_a_model_are_overlapped_beside_data_parallelism():
    plain, found = launch(trained, 0, ranks=4).values, launch(trained, 2, ranks=4).values
    for expected, of_rank in zip(plain, found, strict=True):
        assert len(expected) == len(of_rank) > 0
        for a, b in zip(expected, of_rank, strict=True):
            torch.testing.assert_close(b, a, **EXACT)


# ---- seconds ----


LAYER = parallel.ExpertSizes(8192, 2048, 1024, 64, 8)


@pytest.mark.parametrize("num_shared", [0, 1])
def test_two_parts_send_the_same_rows_and_expose_less_than_half(num_shared: int):
    sizes = replace(LAYER, num_shared=num_shared)
    plain, parts = (expert_cost(sizes, CLUSTERS["dgx-h100"], 8, parts=parts) for parts in (None, 2))
    counts_bytes = 8 * 64 * 7 / 8
    assert parts.sent_bytes - 2 * counts_bytes == plain.sent_bytes - counts_bytes
    assert parts.time_s < plain.time_s and parts.exposed_s < 0.5 * plain.exposed_s


def test_a_shared_expert_hides_what_two_parts_leave():
    """The first part's way there, and the last one's back in backward, are beside it."""
    without, beside = (expert_cost(replace(LAYER, num_shared=n), CLUSTERS["dgx-h100"], 8, parts=2) for n in (0, 1))
    assert beside.exposed_s < 0.25 * without.exposed_s
    assert without.exposed_s < 0.2 * expert_cost(LAYER, CLUSTERS["dgx-h100"], 8).exposed_s


def test_one_part_exposes_what_the_plain_layer_does():
    one, plain = (expert_cost(LAYER, CLUSTERS["dgx-h100"], 8, parts=parts) for parts in (1, None))
    assert one.exposed_s == pytest.approx(plain.exposed_s)


def test_between_nodes_an_exchange_is_longer_than_what_could_hide_it():
    """16 ranks of two nodes: the link is the limit; four parts do not help much more than two."""
    plain, two, four = (expert_cost(LAYER, CLUSTERS["dgx-a100"], 16, parts=parts) for parts in (None, 2, 4))
    assert two.exposed_s > 0.5 * plain.exposed_s and four.time_s > 0.95 * two.time_s


def test_parts_of_few_tokens_cost_more_than_they_hide():
    plain, two = (expert_cost(replace(LAYER, tokens=512), CLUSTERS["dgx-h100"], 4, parts=parts) for parts in (None, 2))
    assert two.time_s > 1.2 * plain.time_s


# ---- bad input ----


def test_models_that_cannot_be_overlapped_are_refused():
    with pytest.raises(ValueError, match="overlap is for mixtures that are spread over ranks: got none"):
        parallel.overlap_experts(_gpt())

    def limited() -> str:
        model = parallel.ExpertParallel().parallelize(
            parallel.with_experts(GPT(_gpt().config), 4, 2, capacity_factor=1.25)
        )
        with pytest.raises(ValueError, match="overlap is for dropless mixtures.*got capacity_factor=1.25"):
            parallel.overlap_experts(model)
        return "refused"

    assert launch(limited, ranks=1).values == ["refused"]


def test_parts_that_do_not_divide_a_ranks_tokens_are_refused_with_a_remedy():
    def program(tokens: int, balanced: bool) -> str:
        model = nn.Sequential(parallel.MixtureOfExperts(parallel.MixtureConfig(8, 2, balanced=balanced), 16, 32))
        parallel.overlap_experts(parallel.ExpertParallel().parallelize(model))
        with pytest.raises(ValueError) as error:
            model(torch.ones(tokens, 16))
        return str(error.value)

    assert "parts must divide the tokens of a rank: got 2 of 9; try 10" in launch(program, 9, False, ranks=1).values[0]
    assert "a balanced routing in parts must have an even load" in launch(program, 12, True, ranks=1).values[0]
