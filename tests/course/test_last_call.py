"""A failed check shows the answer's last call as a line that can be pasted."""

import ast
import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from lablib.course import Expect, exercise
from lablib.course.checks.last_call import MAX_ELEMENTS, literal
from lablib.course.checks.trial import run_check

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.bool)
SHAPES = st.lists(st.integers(0, 4), max_size=3)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(DTYPES),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.tuples(inner)
            | st.tuples(inner, inner)
            | st.dictionaries(st.text(), inner, max_size=3)
        ),
    )
)
def test_the_text_of_a_value_is_that_value(value: Any):
    assert repr(eval(literal(value))) == repr(value)


@given(st.sampled_from(DTYPES), SHAPES, st.integers(0, 10**6), st.booleans())
def test_the_text_of_a_small_tensor_is_that_tensor(dtype: torch.dtype, shape: list[int], seed: int, wants: bool):
    x = (100 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).to(dtype)
    if x.is_floating_point() and x.numel():
        x.view(-1)[0] = (math.nan, math.inf, -math.inf, 0.1)[seed % 4]
        x.requires_grad_(wants)
    text = literal(x)
    assert bool(text) == (x.numel() <= MAX_ELEMENTS)
    if text:
        back = eval(text)
        assert (back.dtype, back.shape, back.requires_grad) == (x.dtype, x.shape, x.requires_grad)
        assert torch.equal(back.nan_to_num(7.0), x.nan_to_num(7.0)) if x.is_floating_point() else torch.equal(back, x)


def test_what_has_no_short_text_has_none():
    for value in (torch.ones(MAX_ELEMENTS + 1), torch.ones(2, device="meta"), [object()], print, torch.nn.Linear(2, 2)):
        assert literal(value) == ""


@exercise("Twice", hints=["two"])
def twice(expect: Expect, answer):
    for _ in range(3):
        x = expect.draw.tensor((3,), torch.float64)
        expect.close("x is doubled", answer(x, 2), 2 * x)


def test_a_wrong_answer_is_shown_with_its_input_and_fails_on_that_input():
    def wrong(x: torch.Tensor, times: int) -> torch.Tensor:
        return x * times if x[0] > 0 else x

    for seed in range(8):
        result = run_check("90", twice, wrong, seed=seed, with_input=True)
        if result.status == "passed":
            assert not result.call
            continue
        assert result.call in result.message and result.call.startswith("twice(")
        value = eval(result.call, {"torch": torch, "twice": wrong})
        assert f"{value[int(result.saw[result.saw.index('[') + 1])]:.6g}" == f"{float(result.saw.split()[0]):.6g}"
        exec(dict(result._rows())["seed"], {})
        assert run_check("90", twice, wrong).saw == result.saw  # the seed is read from the environment


@pytest.fixture(autouse=True)
def _no_seed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LAB_CHECK_SEED", "0")


@exercise("Sum", hints=["all_reduce"])
def sums(expect: Expect, answer):
    parts = [expect.draw.tensor((2,)) for _ in range(3)]
    run = expect.launch(lambda: answer(parts[dist.get_rank()].clone()), ranks=3)
    for rank in range(3):
        expect.close(f"the sum (rank {rank})", run.values[rank], torch.stack(parts).sum(0), rtol=1e-5)


def test_on_ranks_the_call_of_the_rank_that_failed_is_shown():
    def wrong(x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        return x + (dist.get_rank() == 1)

    result = run_check("90", sums, wrong, with_input=True)
    assert result.call.startswith("sums(torch.tensor([") and result.call.endswith("  # on rank 1")
    ast.parse(result.call)


def test_what_an_answer_prints_is_printed_once(capsys: pytest.CaptureFixture[str]):
    run_check("90", twice, lambda x, times: print("here"), with_input=True)
    assert capsys.readouterr().out == "here\n"
