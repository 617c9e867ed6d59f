"""Inputs of a check: new each time, and the same again from the same seed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lablib.course.checks.draw import Draw
from lablib.course.checks.expect import Expect
from lablib.course.errors import CourseError


def drawn(draw: Draw) -> list:
    values = [draw.integer(0, 10**9), draw.number(0.0, 1.0), draw.choice("abcdef"), draw.shuffled(range(9))]
    return [*values, draw.integers(3, 2, 9), draw.tensor((2, 3), torch.float64).tolist()]


@given(seed=st.integers(0, 2**31))
def test_a_seed_draws_the_same_again(seed: int):
    assert drawn(Draw(seed)) == drawn(Draw(seed))


def test_without_a_seed_everything_is_new(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("LAB_CHECK_SEED", raising=False)
    assert len({str(drawn(Draw())) for _ in range(5)}) == 5


def test_drawing_leaves_torchs_own_generator_alone():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    drawn(Draw(1))
    assert torch.equal(torch.rand(2), expected)


@given(
    seed=st.integers(0, 999), low=st.integers(-5, 5), span=st.integers(0, 9) | st.integers(1000, 10**9), data=st.data()
)
def test_numbers_stay_in_their_bounds(seed: int, low: int, span: int, data: st.DataObject):
    draw, high = Draw(seed), low + span
    assert low <= draw.integer(low, high) <= high
    assert low <= draw.number(low, high) <= high
    count = data.draw(st.integers(0, min(span + 1, 10)))
    several = draw.integers(count, low, high)
    assert len(set(several)) == count and all(low <= number <= high for number in several)
    assert sorted(draw.shuffled(several)) == sorted(several)


def test_more_different_numbers_than_there_are_is_an_error():
    with pytest.raises(ValueError, match="from 2 to 4 there are 3 numbers: got count=4"):
        Draw(0).integers(4, 2, 4)


@pytest.mark.parametrize("shape", [(), (5,), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_tensor_has_its_shape_type_and_strides(shape: tuple[int, ...], dtype: torch.dtype):
    plain, strided = Draw(7).tensor(shape, dtype), Draw(7).tensor(shape, dtype, contiguous=False)
    assert plain.shape == strided.shape == shape and plain.dtype == strided.dtype == dtype
    assert plain.is_contiguous() and (shape == () or not strided.is_contiguous())


def test_the_environment_can_name_the_seed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LAB_CHECK_SEED", "41")
    assert Draw().seed == 41 and Draw(5).seed == 5
    monkeypatch.setenv("LAB_CHECK_SEED", "x")
    with pytest.raises(CourseError, match="LAB_CHECK_SEED must be a whole number"):
        Draw()


def test_a_check_that_draws_nothing_has_no_seed():
    expect = Expect(seed=4)
    assert expect.seed is None
    expect.draw.integer(0, 1)
    assert expect.seed == 4


def test_every_option_and_both_ends_are_drawn():
    draw = Draw(0)
    assert {draw.choice("abc") for _ in range(100)} == set("abc")
    assert {draw.integer(1, 3) for _ in range(100)} == {1, 2, 3}
    assert {draw.integers(1, 1, 3)[0] for _ in range(100)} == {1, 2, 3}
