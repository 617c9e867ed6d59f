"""Quantizers: codes and scales as the formulas say, errors within their bounds, bytes to the last one.

Bounds hold up to the rounding of float32: a quotient of at most 127 and a product, each off by 2^-24 of itself, so by
less than 2^-15 of a step together.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lablib.compress import Asymmetric, Fp8, Int4, Int8, Quantizer, Rotated
from lablib.plan.gradient_compression import find_compression
from lablib.precision.formats import E4M3, E5M2
from lablib.precision.rounding import round_to

SLACK = 2.0**-15
TINY = torch.finfo(torch.float32).tiny
numbers = st.one_of(
    st.floats(-(2.0**120), 2.0**120, width=32),
    st.floats(-128, 128, width=32),
    st.floats(-(2.0**-123), 2.0**-123, width=32),  # subnormals among them
    st.sampled_from([0.0, 1.0, 127.0, -0.5, 1e-45]),
)
rows = st.integers(1, 30).flatmap(
    lambda size: st.lists(st.lists(numbers, min_size=size, max_size=size), min_size=1, max_size=3)
)
block_sizes = st.integers(1, 12)
roundings = st.sampled_from(["nearest", "stochastic"])
QUANTIZERS: list[Quantizer] = [
    *(Int8(), Int4(), Asymmetric(), Asymmetric(bits=4), Fp8(), Fp8(format=E5M2)),
    *(Int8(rounding="stochastic"), Int4(rounding="stochastic"), Asymmetric(rounding="stochastic")),
    *(Fp8(rounding="stochastic"), Rotated(), Rotated(quantizer=Int8(block=7), size=16)),
]


def in_rows(values: list[list[float]]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def there_and_back(quantizer: Quantizer, x: Tensor) -> Tensor:
    return quantizer.dequantize(quantizer.quantize(x))


def blocks_of(x: Tensor, block: int) -> list[list[np.ndarray]]:
    """The numbers of each block of each row, cut by hand."""
    return [[row[i : i + block] for i in range(0, len(row), block)] for row in x.numpy()]


def steps(scales: Tensor, block: int, numel: int) -> Tensor:
    return scales.repeat_interleave(block, dim=-1)[:, :numel].double()


# ---- scales, codes and errors ----


@given(rows, block_sizes, roundings, st.sampled_from([(Int8, 127), (Int4, 7)]))
def test_symmetric_scales_are_the_formulas_and_errors_within_their_bounds(values, block, rounding, kind):
    quantizer, largest = kind[0](block=block, rounding=rounding), kind[1]
    x = in_rows(values)
    quantized = quantizer.quantize(x)
    expected = [[max(abs(part).max() / np.float32(largest), TINY) for part in row] for row in blocks_of(x, block)]
    assert quantized.zeros is None and torch.equal(quantized.scales, torch.tensor(np.array(expected, np.float32)))
    step = steps(quantized.scales, block, x.shape[1])
    error = (quantizer.dequantize(quantized).double() - x.double()).abs()
    assert (error <= step * ((0.5 if rounding == "nearest" else 1.0) + SLACK)).all()
    assert (error[x == 0] == 0).all()


@given(rows, block_sizes, roundings, st.sampled_from([4, 8]))
def test_asymmetric_scales_are_the_formulas_and_errors_within_their_bounds(values, block, rounding, bits):
    quantizer = Asymmetric(block=block, rounding=rounding, bits=bits)
    x = in_rows(values)
    quantized = quantizer.quantize(x)
    parts = blocks_of(x, block)
    low = [[part.min() for part in row] for row in parts]
    scales = [[max((part.max() - part.min()) / np.float32(2**bits - 1), TINY) for part in row] for row in parts]
    assert quantized.zeros is not None and torch.equal(quantized.zeros, torch.tensor(np.array(low)))
    assert torch.equal(quantized.scales, torch.tensor(np.array(scales, np.float32)))
    found = quantizer.dequantize(quantized)
    step = steps(quantized.scales, block, x.shape[1])
    # Far from zero, x - min and min + step code are rounded to digits of x itself.
    digits = 2.0**-23 * (x.double().abs() + steps(quantized.zeros.abs(), block, x.shape[1]))
    bound = step * ((0.5 if rounding == "nearest" else 1.0) + SLACK) + digits
    assert ((found.double() - x.double()).abs() <= bound).all()


@given(rows, block_sizes)
def test_codes_are_those_of_a_loop(values, block):
    """Python's `round` goes to the even one of two equally near, too."""
    x = in_rows(values)
    for quantizer, largest in ((Int8(block=block), 127), (Int4(block=block), 7)):
        quantized = quantizer.quantize(x)
        for i, row in enumerate(x.numpy()):
            codes = [round(float(v / quantized.scales[i, j // block].numpy())) for j, v in enumerate(row)]
            if largest == 127:
                assert quantized.codes[i].tolist() == codes
            else:
                half = (len(codes) + 1) // 2
                upper = [*codes[half:], 0][:half]
                packed = [(low & 15 | high << 4) for low, high in zip(codes[:half], upper, strict=True)]
                assert quantized.codes[i].tolist() == packed


@given(rows, block_sizes, st.sampled_from([E4M3, E5M2]))
def test_fp8_is_the_emulated_format_times_the_scale(values, block, format):
    x, quantizer = in_rows(values), Fp8(block=block, format=format)
    quantized = quantizer.quantize(x)
    scales = steps(quantized.scales, block, x.shape[1]).float()
    assert torch.equal(quantizer.dequantize(quantized), round_to(x / scales, format, saturates=True) * scales)
    relative, least = format.epsilon / 2, format.smallest_subnormal / 2
    bound = torch.maximum(x.double().abs() * relative, scales.double() * least) * (1 + SLACK)
    assert ((quantizer.dequantize(quantized).double() - x.double()).abs() <= bound).all()


def test_ties_go_to_the_even_code():
    x = torch.tensor([127.0, 0.5, 1.5, 2.5, -0.5, -1.5])
    assert Int8().quantize(x).codes.tolist() == [127, 0, 2, 2, 0, -2]


@pytest.mark.parametrize("value", [3.7, -1e-45, 1e-38, 0.0, torch.finfo(torch.float32).max])
def test_equal_numbers_are_exact(value):
    """Symmetric: to the rounding of value / 127 * 127, or to half a smallest normal number, and never infinite."""
    x = torch.full((300,), value)
    assert torch.equal(there_and_back(Asymmetric(bits=4), x), x)
    for quantizer in (Int8(), Int4(), Fp8()):
        torch.testing.assert_close(there_and_back(quantizer, x), x, rtol=2e-7, atol=TINY / 2)


@pytest.mark.parametrize(
    "quantizer",
    [
        Int8(rounding="stochastic"),
        Int4(rounding="stochastic"),
        Asymmetric(bits=4, rounding="stochastic"),
        Fp8(rounding="stochastic"),
    ],
    ids=str,
)
def test_stochastic_rounding_is_right_in_the_mean(quantizer):
    torch.manual_seed(0)
    x, draws = torch.randn(256), 2000
    found = there_and_back(quantizer, x.expand(draws, -1)).double()
    deviation = found.std(dim=0).clamp(min=1e-7)
    assert ((found.mean(dim=0) - x).abs() < 5 * deviation / draws**0.5).all()
    assert (found.std(dim=0) > 0).sum() > 200


@pytest.mark.parametrize("noise", [-(2**15), 2**15 - 1])
def test_the_largest_noise_moves_no_number_by_more_than_a_step(noise, monkeypatch):
    draws = torch.full((1,), noise, dtype=torch.int16).repeat(4).view(torch.int64)
    monkeypatch.setattr(torch.Tensor, "random_", lambda tensor, *_, **__: tensor.fill_(int(draws)))
    x = torch.tensor([127.0, -127.0, 0.0, 1.0, -2.0, 63.49])
    for quantizer in (Int8(rounding="stochastic"), Int4(rounding="stochastic"), Asymmetric(rounding="stochastic")):
        quantized = quantizer.quantize(x)
        assert ((quantizer.dequantize(quantized) - x).abs() <= quantized.scales * (1 + SLACK)).all()
        assert quantized.zeros is not None or quantizer.dequantize(quantized)[2] == 0


def test_the_generator_decides_the_draws():
    x = torch.randn(100)
    once, again, other = (
        Int8(rounding="stochastic", generator=torch.Generator().manual_seed(seed)).quantize(x).codes
        for seed in (1, 1, 2)
    )
    assert torch.equal(once, again) and not torch.equal(once, other)


# ---- rotation ----


@given(st.integers(1, 70), st.sampled_from([1, 2, 16, 64]), st.integers(0, 3))
def test_rotated_errors_have_the_length_of_those_inside(numel, size, seed):
    x = torch.randn(2, numel, generator=torch.Generator().manual_seed(numel))
    inner = Int4(block=size)
    rotated = Rotated(quantizer=inner, size=size, seed=seed)
    quantized = rotated.quantize(x)
    error = (rotated.dequantize(quantized) - x).double().norm()
    assert error <= 0.5 * quantized.scales.double().norm() * size**0.5 * (1 + 1e-5) + 1e-5


def test_rotation_keeps_the_small_beside_an_outlier():
    torch.manual_seed(0)
    x = torch.randn(256)
    x[17] = 100.0
    error = {kind: (there_and_back(kind, x) - x)[18:].norm() / x[18:].norm() for kind in (Int4(), Rotated(size=256))}
    assert error[Int4()] == 1  # all are rounded to zero
    assert error[Rotated(size=256)] < 0.8


# ---- messages ----


@given(st.integers(0, 70), block_sizes, st.integers(1, 3), st.sampled_from(QUANTIZERS))
def test_a_message_is_as_long_as_the_closed_form_and_says_the_same(numel, block, num_rows, quantizer):
    if not isinstance(quantizer, Rotated):
        quantizer = replace(quantizer, block=block)
    x = torch.randn(num_rows, numel, generator=torch.Generator().manual_seed(numel))
    quantized = quantizer.quantize(x)
    message = quantized.message()
    assert message.dtype == torch.uint8 and message.shape == (num_rows, quantizer.message_bytes(numel))
    assert quantized.size_bytes == message.nbytes
    found = quantizer.dequantize(quantizer.from_message(message, numel))
    assert found.shape == x.shape and torch.equal(found, quantizer.dequantize(quantized))
    for row, one in enumerate(message):  # a message among others: its scales may begin at an odd byte
        torch.testing.assert_close(quantizer.dequantize(quantizer.from_message(one, numel)), found[row])


@given(st.integers(1, 3000))
def test_bytes_are_the_planners(numel):
    assert Int8().message_bytes(numel) == find_compression("int8").wire_bytes(numel)
    assert Int4().message_bytes(2 * numel) == find_compression("int4").wire_bytes(2 * numel)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_floating_dtype_is_quantized_as_float32(dtype):
    x = torch.randn(300).to(dtype)
    assert torch.equal(Int8().quantize(x).codes, Int8().quantize(x.float()).codes)


def test_what_is_quantized_does_not_change_and_needs_no_gradient():
    x = torch.randn(100, requires_grad=True)
    before = x.detach().clone()
    for quantizer in QUANTIZERS:
        assert not there_and_back(quantizer, x).requires_grad
        assert torch.equal(x.detach(), before)


# ---- bad input ----


@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=lambda quantizer: str(quantizer)[:40])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_one_clear_error(quantizer, value):
    x = torch.ones(2, 300)
    x[1, 7] = value
    where = "number" if isinstance(quantizer, Rotated) else f"number 307 is {value}"
    with pytest.raises(ValueError, match=f"must be finite in float32: {where}.*; skip the step"):
        quantizer.quantize(x)


def test_other_bad_input():
    with pytest.raises(ValueError, match="only rows of floating-point numbers are quantized: got torch.int64 of shape"):
        Int8().quantize(torch.arange(4))
    with pytest.raises(ValueError, match="only rows of floating-point numbers"):
        Rotated().quantize(torch.tensor(1.0))
    with pytest.raises(ValueError, match="number 0 is 1e\\+300"):
        Int4().quantize(torch.tensor([1e300], dtype=torch.float64))
    with pytest.raises(ValueError, match="a block spans more than 3e38"):
        Asymmetric().quantize(torch.tensor([-3e38, 3e38]))
    with pytest.raises(ValueError, match="numel must be a whole number, 0 or more: got -1"):
        Int8().message_bytes(-1)
