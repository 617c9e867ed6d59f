"""Bytes and kernels of a chain by hand are those that the simulator counts: chains, dtypes, sizes that nobody chose."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib import figures, launch
from lablib.hardware import DEVICES
from lablib.kernels.elementwise_chain import (
    ONE_OPERAND,
    TWO_OPERANDS,
    chain_time_s,
    chain_timeline,
    fused_cost,
    num_second_operands,
    run_fused,
    run_unfused,
    unfused_cost,
)

H100 = DEVICES["H100-80GB-SXM"]
WAYS = {"unfused": (run_unfused, unfused_cost), "fused": (run_fused, fused_cost)}
chains = st.lists(st.sampled_from([*ONE_OPERAND, *TWO_OPERANDS]), min_size=1, max_size=7)
dtypes = st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16])


def counted(way, chain, shape, dtype, fidelity="values"):
    """Kernels, bytes and seconds of the chain alone, by the simulator."""

    def program():
        x, others = torch.ones(shape, dtype=dtype), [torch.ones(shape, dtype=dtype)] * num_second_operands(chain)
        with torch.profiler.record_function("chain"):
            WAYS[way][0](chain, x, others)

    spans = launch(program, ranks=1, cluster="dgx-h100", fidelity=fidelity).timeline.spans
    mine = [span for span in spans if span.phase == "chain"]
    return len(mine), sum(span.size_bytes for span in mine), sum(span.duration_s for span in mine)


@settings(max_examples=40, deadline=None)
@given(
    chain=chains,
    dtype=dtypes,
    shape=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    way=st.sampled_from(sorted(WAYS)),
    fidelity=st.sampled_from(["values", "shapes"]),
)
def test_the_simulator_counts_what_the_formula_says(chain, dtype, shape, way, fidelity):
    cost = WAYS[way][1](chain, shape[0] * shape[1], dtype.itemsize)
    kernels, size_bytes, _ = counted(way, chain, shape, dtype, fidelity)
    assert (kernels, size_bytes) == (cost.kernels, cost.size_bytes)


@settings(max_examples=40, deadline=None)
@given(chain=chains, dtype=dtypes, seed=st.integers(0, 99))
def test_both_ways_give_the_same_to_the_bit(chain, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    x, *others = (torch.randn(5, 3, generator=generator).to(dtype) for _ in range(1 + num_second_operands(chain)))
    ways = run_unfused(chain, x, others), run_fused(chain, x, others)
    torch.testing.assert_close(*ways, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("numel", [1, 1 << 20, 1 << 25])
def test_seconds_are_the_simulators(numel):
    """In the cache and beyond it: its clock and the sum over kernels read one cost model."""
    chain = ["relu", "add", "tanh"]
    for way, (_, cost) in WAYS.items():
        _, _, seconds = counted(way, chain, (numel,), torch.float32, "shapes")
        assert seconds == pytest.approx(chain_time_s(cost(chain, numel, 4), H100), rel=1e-9)


@given(k=st.integers(1, 50), itemsize=st.sampled_from([1, 2, 4, 8]))
def test_fusing_raises_the_intensity_by_the_number_of_operators(k, itemsize):
    chain = ["relu"] * k
    unfused, fused = unfused_cost(chain, 64, itemsize), fused_cost(chain, 64, itemsize)
    assert unfused.intensity == 1 / (2 * itemsize)
    assert fused.intensity == pytest.approx(k * unfused.intensity)


def test_nothing_moved_has_no_intensity():
    assert unfused_cost(["relu"], 0, 4).intensity == fused_cost(["relu"], 0, 4).intensity == 0.0


def test_fusing_a_large_chain_is_as_much_faster_as_it_moves_fewer_bytes():
    chain, numel = ["relu", "add", "tanh", "mul", "double", "exp"], 1 << 30
    unfused, fused = unfused_cost(chain, numel, 2), fused_cost(chain, numel, 2)
    assert chain_time_s(unfused, H100) / chain_time_s(fused, H100) == pytest.approx(14 / 4, rel=0.01)


def test_the_roofline_shows_both_under_the_memory_roof():
    chain = ["relu", "add", "tanh"]
    costs = {name: cost(chain, 1 << 28, 4) for name, (_, cost) in WAYS.items()}
    from lablib.figures.run.roofline import points_of

    timeline = chain_timeline(costs, H100)
    points = {point.name: point for point in points_of(timeline, H100)}
    assert {name: point.intensity for name, point in points.items()} == {
        name: cost.intensity for name, cost in costs.items()
    }
    assert {point.roof for point in points.values()} == {"memory"}
    assert figures.figure_roofline(timeline, H100).data


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: unfused_cost([], 8, 4), r'not empty: got \[\]; try \["relu"\]'),
        (lambda: fused_cost(["softmax"], 8, 4), "got 'softmax' at index 0"),
        (lambda: run_unfused(["add"], torch.ones(2), []), "for each of its 1 operators"),
        (lambda: run_fused(["add"], torch.ones(2), [torch.ones(3)]), "one tensor like x"),
    ],
)
def test_a_chain_that_cannot_be_is_one_clear_error(call, words):
    with pytest.raises(ValueError, match=words):
        call()
