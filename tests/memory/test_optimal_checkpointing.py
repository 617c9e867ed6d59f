"""The optimal plan equals brute force, is never worse than equal segments, and is carried out within its budget."""

from math import inf

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lablib.memory.optimal_checkpointing import ChainLayer, least_budget_bytes, optimal_plan, run_plan

LAYERS = st.lists(
    st.builds(
        ChainLayer,
        forward_s=st.integers(1, 5).map(float),
        backward_s=st.integers(1, 9).map(float),
        kept_bytes=st.integers(0, 6).map(float),
        output_bytes=st.integers(0, 4).map(float),
    ),
    min_size=1,
    max_size=6,
)


def least_time(layers: list[ChainLayer], i: int, j: int, budget: float) -> float:
    """Every plan, tried: the recursion of the file's head without tables or rounding."""
    own = layers[i].kept_bytes + layers[i].output_bytes
    step = layers[i].forward_s + layers[i].backward_s
    if i == j:
        return step if own <= budget else inf
    best = step + least_time(layers, i + 1, j, budget - own) if own <= budget else inf
    for c in range(i + 1, j + 1):
        outputs = [0.0, *(layer.output_bytes for layer in layers[i:c])]
        if max(map(sum, zip(outputs, outputs[1:], strict=False))) <= budget:
            rest = least_time(layers, c, j, budget - layers[c - 1].output_bytes)
            forward = sum(layer.forward_s for layer in layers[i:c])
            best = min(best, forward + rest + least_time(layers, i, c - 1, budget))
    return best


@settings(max_examples=150)
@given(layers=LAYERS, budget=st.integers(1, 40))
def test_equals_brute_force(layers, budget):
    want = least_time(layers, 0, len(layers) - 1, budget)
    if want == inf:
        with pytest.raises(ValueError, match="no plan fits"):
            optimal_plan(layers, float(budget), slots=budget)
    else:
        assert optimal_plan(layers, float(budget), slots=budget).time_s == want


@given(layers=LAYERS)
def test_the_least_budget_is_the_least(layers):
    least = least_budget_bytes(layers)
    last = len(layers) - 1
    assert least_time(layers, 0, last, least) < inf
    assert least == 0 or least_time(layers, 0, last, least - 1) == inf


def test_rounding_to_slots_never_breaks_the_budget_and_costs_little():
    generator = torch.Generator().manual_seed(0)
    sizes = (torch.rand(20, 2, generator=generator) * 1e6).tolist()
    layers = [ChainLayer(1.0, 2.0, kept, output) for kept, output in sizes]
    budget = 0.5 * sum(map(sum, sizes))
    times = [optimal_plan(layers, budget, slots=slots).time_s for slots in (50, 200, 2000)]
    assert times[0] >= times[1] >= times[2]
    assert times[1] <= 1.02 * times[2]


@settings(max_examples=20)
@given(sizes=st.lists(st.integers(1, 12), min_size=2, max_size=7), share=st.floats(0, 1), seed=st.integers(0, 99))
def test_a_plan_that_is_carried_out_has_the_gradients_of_the_chain(sizes, share, seed):
    torch.manual_seed(seed)
    widths = [4, *sizes]
    chain = [
        nn.Sequential(nn.Linear(a, b), nn.Tanh(), nn.Dropout(0.2)).double()
        for a, b in zip(widths, widths[1:], strict=False)
    ]
    layers = [ChainLayer(1.0, 2.0, float(2 * b), float(b)) for b in sizes]
    least, most = least_budget_bytes(layers), sum(layer.kept_bytes + layer.output_bytes for layer in layers)
    plan = optimal_plan(layers, least + share * (most - least) + 0.01 * most, slots=2000)  # 1%: what rounding takes
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    parameters = [x, *(p for layer in chain for p in layer.parameters())]

    def gradients(run) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        return list(torch.autograd.grad(run(x).square().sum(), parameters))

    want = gradients(nn.Sequential(*chain))
    got = gradients(lambda x: run_plan(plan, chain, x))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_bad_input():
    with pytest.raises(ValueError, match="smallest needs 3 more. Try budget_bytes=8"):
        optimal_plan([ChainLayer(1.0, 1.0, 5.0, 3.0)], 5.0)
