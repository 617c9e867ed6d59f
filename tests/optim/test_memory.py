"""Bytes by formula, from the state and in the memory tracker: equal; the peak of a step; steps inside backward."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lablib import launch
from lablib.optim.adamw import AdamW
from lablib.optim.in_backward import step_in_backward
from lablib.optim.lion import Lion
from lablib.optim.memory import OPTIMIZERS, state_bytes
from lablib.plan.optimizers import find_optimizer
from tests.optim.drawn import MAKE, assert_near, drawn, gradients, parameters, run

SIDE = st.integers(1, 30)
OPTIONS: dict[str, dict[str, Any]] = {
    "adam8bit": {"block_size": 64, "min_8bit_size": 100},
    "q_galore": {"block_size": 64, "min_8bit_size": 100, "rank": 1},
    "galore": {"rank": 1},
    "soap": {"max_precond_dim": 20},
}


def made(name: str, params: Any, **options: Any) -> Any:
    make = MAKE[name].func if isinstance(MAKE[name], partial) else MAKE[name]  # pyright: ignore[reportFunctionMemberAccess]
    return make(params, **options)


@pytest.mark.parametrize("name", OPTIMIZERS)
@settings(max_examples=25)
@given(rows=SIDE, columns=SIDE, size=SIDE, rank=st.integers(1, 30), is_wide=st.booleans())
def test_the_formula_is_what_the_state_holds(name, rows, columns, size, rank, is_wide):
    dtype = torch.float64 if is_wide else torch.float32
    shapes = [(rows, columns)] if name == "muon" else [(rows, columns), (size,), (2, 3, size), ()]
    options = {**OPTIONS.get(name, {})}
    if "rank" in options:
        options["rank"] = min(rank, rows, columns)
    params = parameters(shapes, dtype)
    optimizer = made(name, params, **options)
    assert optimizer.state_bytes() == 0
    run(optimizer, gradients(shapes, 1, dtype))
    want = sum(state_bytes(name, shape, itemsize=dtype.itemsize, **options) for shape in shapes)
    assert optimizer.state_bytes() == want


def in_the_tracker(name: str, shapes, options, in_backward: bool = False):
    """Bytes of optimizer state after three steps, and the peak of the last beyond parameters, gradients and state."""

    def program() -> int:
        params = [nn.Parameter(torch.randn(shape)) for shape in shapes]
        optimizer = made(name, params, **options)
        for phase in ("first", "second", "last"):
            for i in range(len(params)):
                params[i].grad = torch.randn(shapes[i])
            with torch.profiler.record_function(phase):
                optimizer.step()
            with torch.profiler.record_function(f"after {phase}"):
                torch.zeros(1)
        return optimizer.state_bytes()

    launched = launch(program, ranks=1)
    (mark,) = [block for block in launched.memory.allocations if block.phase == "after last"]
    held = launched.memory.at(0, mark.start_s)
    at_rest = held["parameter"] + held["gradient"] + held["optimizer state"]
    peak = int(launched.memory.by_phase(0).loc["last", "peak_bytes"])
    return held["optimizer state"], peak - at_rest, launched.values[0]


@pytest.mark.parametrize("name", OPTIMIZERS)
@settings(max_examples=3)
@given(rows=st.integers(2, 20), columns=st.integers(2, 20), rank=st.integers(1, 2))
def test_the_tracker_holds_the_same(name, rows, columns, rank):
    shapes = [(rows, columns), (columns, rows)] + ([(columns,)] if name != "muon" else [])
    options = {**OPTIONS.get(name, {})} | ({"rank": rank} if "galore" in name else {})
    held, _, counted = in_the_tracker(name, shapes, options)
    assert held == counted == sum(state_bytes(name, shape, **options) for shape in shapes)


@pytest.mark.parametrize("name", ["adamw", "adafactor", "lamb", "lion", "sophia", "muon", "soap", "adam8bit", "galore"])
@given(rows=st.integers(1, 500), columns=st.integers(1, 500))
def test_a_planner_counts_the_same(name, rows, columns):
    other_names = {"adam8bit": "adam-8bit", "soap": "adamw", "muon": "lion"}
    planned = find_optimizer(other_names[name] if name in other_names else name)
    rank = planned.rank and min(planned.rank, rows, columns)
    got = state_bytes(name, (rows, columns), rank=rank, min_8bit_size=0, max_precond_dim=0)
    assert got == pytest.approx(planned.moment_state_bytes(rows * columns, rows=rows, columns=columns), rel=1e-12)


@pytest.mark.parametrize("name", ["adamw", "adafactor", "lamb", "lion", "sophia"])
def test_a_batched_step_has_one_more_copy_of_everything(name):
    shapes = [(64, 128), (128, 64), (64, 64)]
    numel = sum(math.prod(shape) for shape in shapes)
    _, temporary, _ = in_the_tracker(name, shapes, {})
    assert 4 * numel <= temporary <= 4 * numel + 8 * (64 + 128) * 3


@pytest.mark.parametrize(("name", "each"), [("adam8bit", 18), ("adam_bf16", 14), ("muon", 10), ("galore", 4)])
def test_others_have_a_few_copies_of_the_largest(name, each):
    shapes = [(512, 256)] * 3
    options = {"rank": 4} if name == "galore" else {}
    _, temporary, _ = in_the_tracker(name, shapes, options)
    tables, small = 2 * 2**16, 3 * 2 * 4 * 4 * 512  # of 8 bits; GaLore's directions of all, and scales
    assert 4 * 512 * 256 <= temporary <= each * 512 * 256 + small + tables * (name == "adam8bit")


@settings(max_examples=10)
@given(rows=st.integers(20, 200), columns=st.integers(20, 200), count=st.integers(1, 3), turns=st.booleans())
def test_soap_has_all_gradients_rotated_and_four_more_of_the_largest(rows, columns, count, turns):
    options = {"precondition_frequency": 1 if turns else 10}
    _, temporary, _ = in_the_tracker("soap", [(rows, columns)] * count, options)
    each, side = rows * columns, max(rows, columns) ** 2
    step = (
        count * each + 4 * each
    )  # denominator, direction, and a rotation on its way: its first product and its second
    turn = 3 * side if turns else side  # the product, Q and R; else the gradient's outer product alone
    assert temporary == pytest.approx(4 * max(step, turn), rel=0.02)


@settings(max_examples=10)
@given(rows=st.integers(100, 300), columns=st.integers(100, 300), rank=st.integers(1, 6), renews=st.booleans())
@pytest.mark.parametrize("name", ["galore", "q_galore"])
def test_galore_has_one_matrix_back_in_full_or_the_vectors_of_one(name, rows, columns, rank, renews):
    options = {"rank": rank, "update_proj_gap": 1 if renews else 200}
    _, temporary, _ = in_the_tracker(name, [(rows, columns)] * 2, options)
    vectors = min(rows, columns) * (rows + columns)  # all singular vectors, of which `rank` are kept
    most = max(rows * columns, vectors) if renews else rows * columns
    low, tables = rank * (rows + columns), 2**17 * (name == "q_galore")  # of 8 bits, six times as much in the making
    assert 4 * most <= temporary <= max(4 * most + 48 * low + tables, 6 * tables)


# ---- in backward ----


def chain(depth: int = 4, width: int = 16) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width, bias=False, dtype=torch.float64) for _ in range(depth)))


@pytest.mark.parametrize("make", [partial(AdamW, lr=0.1), partial(torch.optim.SGD, lr=0.1, momentum=0.9), Lion])
def test_steps_in_backward_are_the_same_steps(make):
    x, usual, hooked = drawn(8, 16), chain(), chain()
    usual[1].weight.requires_grad_(False)
    hooked[1].weight.requires_grad_(False)
    optimizer = make([param for param in usual.parameters() if param.requires_grad])
    running = step_in_backward(make, hooked.parameters())
    assert len(running.optimizers) == 3
    for _ in range(4):
        optimizer.zero_grad()
        usual(x).square().mean().backward()
        optimizer.step()
        hooked(x).square().mean().backward()
        assert all(param.grad is None for param in hooked.parameters())
    assert_near(list(hooked.parameters()), list(usual.parameters()), 1e-12)
    running.close()
    before = [param.detach().clone() for param in hooked.parameters()]
    hooked(x).square().mean().backward()
    assert hooked[0].weight.grad is not None
    assert_near(list(hooked.parameters()), before, 0.0)


def test_a_gradient_that_is_there_already_is_refused():
    model = chain()
    model(drawn(2, 16)).sum().backward()
    with pytest.raises(ValueError, match="gradients must be None .* call zero_grad"):
        step_in_backward(AdamW, model.parameters())


def peak_of_a_training_step(in_backward: bool, depth: int, width: int) -> int:
    def program() -> None:
        model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(depth)))
        if in_backward:
            running = step_in_backward(AdamW, model.parameters())
            assert len(running.optimizers) == depth
        else:
            optimizer = AdamW(model.parameters())
        for phase in ("first", "second"):
            with torch.profiler.record_function(phase):
                model(torch.ones(1, width)).sum().backward()
                if not in_backward:
                    optimizer.step()
                    optimizer.zero_grad()

    return int(launch(program, ranks=1).memory.by_phase(0).loc["second", "peak_bytes"])


@settings(max_examples=5)
@given(depth=st.integers(3, 8), width=st.sampled_from([64, 100]))
def test_the_peak_has_no_gradients_of_all(depth, width):
    """Of d layers of s bytes: weights, two means, then gradients and denominators: of all, or of one."""
    size, small = 4 * width**2, 4 * width * (2 * depth + 4)
    usual, hooked = (peak_of_a_training_step(way, depth, width) for way in (False, True))
    assert (3 + 2) * depth * size <= usual <= (3 + 2) * depth * size + small
    assert (3 * depth + 2) * size <= hooked <= (3 * depth + 2) * size + small


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "q_galore"])
def test_a_step_needs_no_values(name):
    """On meta tensors (`fidelity="shapes"`), so that a large model's step can be simulated."""
    shape, options = (64, 48), {"rank": 4} if name == "galore" else {}

    def program() -> int:
        (param,) = [nn.Parameter(torch.randn(shape))]
        optimizer = made(name, [param], **options)
        for _ in range(3):
            param.grad = torch.randn(shape)
            optimizer.step()
        return optimizer.state_bytes()

    assert launch(program, ranks=1, fidelity="shapes").values == [state_bytes(name, shape, **options)]
