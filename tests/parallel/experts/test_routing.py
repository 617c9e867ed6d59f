"""Routing, and the losses that balance it: published rules in closed form, and all ranks' tokens as one device's."""

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lablib import launch
from lablib.errors import ValueNeededError
from lablib.parallel import (
    Load,
    Routing,
    balancing_loss,
    group_load,
    own_load,
    route,
    router_z_loss,
    sigmoid_gates,
    update_bias_,
)
from tests.parallel.drawn import drawn

# ---- routing ----


def test_switch_takes_the_best_expert_and_its_probability():
    logits = torch.tensor([[0.0, math.log(3), 0.0, 0.0], [math.log(5), 0.0, 0.0, 0.0]], dtype=torch.float64)
    routing = route(logits, 1)
    assert routing.experts_Nk.tolist() == [[1], [0]]
    torch.testing.assert_close(routing.weights_Nk, torch.tensor([[3 / 6], [5 / 8]], dtype=torch.float64))


@given(num_experts=st.integers(2, 9), k=st.integers(2, 9), seed=st.integers(0, 99))
def test_mixtral_is_softmax_over_the_chosen_logits_alone(num_experts: int, k: int, seed: int):
    k, logits = min(k, num_experts), drawn(7, num_experts, seed=seed)
    routing, best = route(logits, k), logits.topk(k)
    assert torch.equal(routing.experts_Nk, best.indices)
    torch.testing.assert_close(routing.weights_Nk, best.values.softmax(-1), rtol=1e-12, atol=0)


def test_deepseek_chooses_by_score_and_bias_and_weighs_by_score_alone():
    logits, bias = drawn(20, 6), torch.tensor([0.0, 0.9, 0.0, -0.9, 0.0, 0.0], dtype=torch.float64)
    routing = route(logits, 3, gates=sigmoid_gates, scale=2.5, bias_E=bias)
    scores = logits.sigmoid()
    assert torch.equal(routing.experts_Nk, (scores + bias).topk(3).indices)
    chosen = scores.gather(1, routing.experts_Nk)
    torch.testing.assert_close(routing.weights_Nk, 2.5 * chosen / chosen.sum(1, keepdim=True))
    assert not torch.equal(routing.experts_Nk, route(logits, 3, gates=sigmoid_gates).experts_Nk)


def test_a_token_goes_to_the_groups_whose_best_experts_have_the_highest_sum():
    logits = torch.tensor([[9.0, 0.0, 0.0, 5.0, 5.0, 0.0, 4.0, 3.0, 0.0]])
    # Of groups of three, the best two sum to 9, 10 and 7: the third is out, though its 4 is more than a 0.
    routing = route(logits, 4, gates=lambda x: x, normalized=False, groups=3, groups_of_token=2)
    assert routing.experts_Nk.tolist() == [[0, 3, 4, 1]]
    assert route(logits, 4, gates=lambda x: x, normalized=False).experts_Nk.tolist() == [[0, 3, 4, 6]]


def test_equal_scores_are_taken_in_the_order_of_the_experts():
    assert route(torch.zeros(3, 300), 4).experts_Nk.tolist() == [[0, 1, 2, 3]] * 3


def test_scores_are_of_float32_at_least():
    routing = route(drawn(5, 4).bfloat16(), 2)
    assert routing.scores_NE.dtype == routing.weights_Nk.dtype == torch.float32


@given(tokens=st.integers(0, 11), num_experts=st.integers(1, 7), k=st.integers(1, 7))
def test_balanced_routing_knows_its_counts(tokens: int, num_experts: int, k: int):
    k = min(k, num_experts)
    routing = route(drawn(tokens, num_experts), k, balanced=True)
    assert list(routing.counts()) == routing.counts_E().tolist()
    assert max(routing.counts()) - min(routing.counts()) <= 1
    assert all(len(set(experts)) == k for experts in routing.experts_Nk.tolist())


def test_under_shapes_a_routing_is_balanced_or_refused():
    def program(balanced: bool) -> tuple[int, ...]:
        return route(torch.randn(6, 4), 2, balanced=balanced).counts()

    assert launch(program, True, ranks=2, fidelity="shapes").values == [(3, 3, 3, 3)] * 2
    with pytest.raises(ValueNeededError, match="use balanced=True"):
        launch(program, False, ranks=2, fidelity="shapes")


# ---- losses ----


def test_an_even_load_costs_1_and_a_router_that_knows_one_expert_costs_e():
    even = route(torch.zeros(8, 4), 2, balanced=True)
    assert balancing_loss(even).item() == pytest.approx(1.0)
    assert own_load(even).imbalance.item() == 1.0
    one = route(torch.tensor([[80.0, 0.0, 0.0, 0.0]] * 8), 1)
    assert balancing_loss(one).item() == pytest.approx(4.0)
    assert own_load(one).imbalance.item() == 4.0


def test_z_loss_is_the_mean_square_of_the_logarithm_of_the_sum():
    logits = torch.log(torch.tensor([[1.0, 2.0, 5.0], [1.0, 1.0, 1.0]], dtype=torch.float64))
    expected = (math.log(8) ** 2 + math.log(3) ** 2) / 2
    assert router_z_loss(route(logits, 1)).item() == pytest.approx(expected, rel=1e-14)


LENGTHS = [5, 0, 2, 9]


def tokens_of(rank: int) -> Tensor:
    """Unequal numbers, and a taste of each rank's own."""
    own = drawn(sum(LENGTHS), 4).split(LENGTHS)[rank] + 2 * drawn(1, 4, seed=50 + rank)
    return own.requires_grad_()


def parts(rank: int, load: Any) -> list[Tensor]:
    """A rank's losses, and the gradient of their sum."""
    logits = tokens_of(rank)
    routing = route(logits, 2)
    losses = [balancing_loss(routing, load(routing)), router_z_loss(routing, load(routing))]
    sum(losses, torch.zeros(())).backward()
    assert logits.grad is not None
    return [*(loss.detach() for loss in losses), logits.grad]


def test_the_mean_of_the_ranks_parts_is_the_loss_of_all_tokens_on_one_device():
    """Gradients too: averaged over ranks, as data parallelism does. Ranks have unequal numbers, one has none."""

    values = launch(lambda: parts(dist.get_rank(), group_load), ranks=4).values
    whole = torch.cat([tokens_of(rank).detach() for rank in range(4)]).requires_grad_()
    routing = route(whole, 2)
    losses = [balancing_loss(routing), router_z_loss(routing)]
    sum(losses, torch.zeros(())).backward()
    for found, expected in zip(zip(*values, strict=True), losses, strict=False):
        torch.testing.assert_close(torch.stack(found).mean(), expected.detach(), rtol=1e-12, atol=0)
    grads = torch.cat([grad for *_, grad in values]) / 4
    torch.testing.assert_close(grads, whole.grad, rtol=1e-12, atol=1e-15)


def test_by_rank_the_loss_asks_for_an_even_load_on_every_rank():
    """Two ranks that like one expert each: together they are even, each alone is as uneven as can be."""

    def program() -> tuple[float, float]:
        logits = torch.full((6, 2), -40.0)
        logits[:, dist.get_rank()] = 40.0
        routing = route(logits, 1)
        return balancing_loss(routing).item(), balancing_loss(routing, group_load(routing)).item()

    assert launch(program, ranks=2).values == [(2.0, 1.0)] * 2


def test_the_bias_moves_by_the_rate_against_the_load_and_not_at_all_where_it_is_even():
    load = Load(torch.tensor([7, 3, 4, 6, 5]), torch.tensor(25))
    bias = torch.zeros(5, dtype=torch.float64)
    update_bias_(bias, load, rate=0.25)
    assert bias.tolist() == [-0.25, 0.25, 0.25, -0.25, 0.0]


def test_the_bias_evens_out_what_a_router_prefers():
    logits, bias = drawn(400, 4) + torch.tensor([2.0, 0.0, 0.0, -1.0]), torch.zeros(4, dtype=torch.float64)
    before = own_load(route(logits, 1, gates=sigmoid_gates, bias_E=bias)).imbalance.item()
    for _ in range(300):
        update_bias_(bias, own_load(route(logits, 1, gates=sigmoid_gates, bias_E=bias)), rate=0.005)
    after = own_load(route(logits, 1, gates=sigmoid_gates, bias_E=bias)).imbalance.item()
    assert before > 2.5 and after < 1.1


# ---- bad input ----


def test_what_cannot_be_is_refused():
    logits = torch.zeros(3, 4)
    refused: list[tuple[Any, str]] = [
        (lambda: route(logits, 5), "k must be at most the number of experts: got 5 of 4; try k=4"),
        (lambda: route(logits[0], 1), r"logits must be \[N, E\] in floating point: got \(4,\)"),
        (lambda: route(logits.long(), 1), "in floating point: got .* of torch.int64"),
        (lambda: route(logits, 1, normalized=True), "the router gets no gradient"),
        (lambda: route(logits, 1, bias_E=torch.zeros(3)), r"got \(3,\) for 4 experts"),
        (lambda: route(logits, 1, groups=3), "groups must divide the experts: got 3 groups of 4"),
        (lambda: route(logits, 2, groups=4), "got 1 of 4 groups, 1 experts for k=2; try groups_of_token=4"),
        (lambda: balancing_loss(route(logits, 1), own_load(route(torch.zeros(3, 2), 1))), "got 2 and 4"),
        (lambda: update_bias_(torch.zeros(3), own_load(route(logits, 1))), r"got \(3,\) and 4 experts"),
    ]
    for call, message in refused:
        with pytest.raises(ValueError, match=message):
            call()


def test_no_tokens_have_a_routing_and_losses_of_0():
    routing = route(torch.zeros(0, 4, requires_grad=True), 2)
    assert isinstance(routing, Routing) and routing.counts() == (0, 0, 0, 0)
    assert balancing_loss(routing).item() == router_z_loss(routing).item() == 0.0
