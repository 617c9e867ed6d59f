"""Rounding equals torch's casts on every number of 16 bits, and the nearest number found by search."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lablib.precision.formats import BF16, E2M1, E4M3, E5M2, E8M0, FORMATS, FP16, FP32, TF32, all_values
from lablib.precision.rounding import round_by_table, round_to

CAST = [BF16, FP16, E5M2, E4M3, E8M0]
NARROW = [format for format in FORMATS.values() if format.num_bits <= 16]


def every_16_bits() -> torch.Tensor:
    """Each bfloat16 and each float16, as float32, infinities and NaN among them."""
    bits = torch.arange(2**16, dtype=torch.int32)
    return torch.cat([(bits << 16).view(torch.float32), bits.to(torch.int16).view(torch.float16).float()])


def random_bits(count: int, seed: int = 0) -> torch.Tensor:
    """float32 numbers of any exponent."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**31), 2**31, (count,), generator=generator).to(torch.int32).view(torch.float32)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


@pytest.mark.parametrize("format", CAST, ids=str)
def test_equals_torchs_cast_on_every_16_bit_value_and_a_million_random_ones(format):
    for x in (every_16_bits(), random_bits(1_000_000), torch.randn(100_000), 448 * torch.randn(100_000)):
        if format is E8M0:
            # torch drops the sign, as there is none, and rounds all that is between 2^-127 and 2^-126 up.
            x = x.abs()
            x = x[(x <= 2.0**-127) | (x >= 2.0**-126) | x.isnan()]
        # torch's E4M3 saturates.
        assert same(round_to(x, format, saturates=format is E4M3), x.to(format.dtype).float())


def test_tf32_drops_13_bits_of_fp32_by_the_carry_trick():
    """Add half of what is dropped, less one if the last bit that stays is even, and cut: on the bits themselves."""
    x = random_bits(1_000_000)
    x = x[x.isfinite()]
    bits = x.view(torch.int32)
    kept = (bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF
    assert same(round_to(x, TF32), kept.view(torch.float32))


def test_float64_to_fp32_is_torchs():
    x = torch.randn(100_000, dtype=torch.float64) * 2.0 ** torch.randint(-160, 130, (100_000,))
    assert same(round_to(x, FP32), x.float().double())


@pytest.mark.parametrize("format", NARROW, ids=str)
def test_equals_the_nearest_of_all_numbers(format):
    values = all_values(format)
    middles = (values[1:] + values[:-1]) / 2
    x = torch.cat([values, middles, torch.nextafter(middles, values[1:]), torch.nextafter(middles, values[:-1])])
    assert torch.equal(round_to(x, format, saturates=True), round_by_table(x, format))


@given(format=st.sampled_from(list(FORMATS.values())), x=st.floats(-1e30, 1e30), saturates=st.booleans())
def test_rounding_again_changes_nothing_and_never_moves_past_a_neighbour(format, x, saturates):
    once = round_to(torch.tensor([x], dtype=torch.float64), format, saturates=saturates)
    assert same(round_to(once, format, saturates=saturates), once)
    if abs(x) < format.largest and format.is_signed:
        assert abs(float(once) - x) <= max(abs(x) * format.epsilon / 2, format.smallest_subnormal / 2)


@pytest.mark.parametrize("format", [BF16, E4M3, E2M1], ids=str)
def test_stochastic_rounding_takes_a_neighbour_and_is_right_in_the_mean(format):
    generator = torch.Generator().manual_seed(0)
    values = all_values(format)
    near = values[values.abs() <= 4]
    lower = near[torch.randint(len(near) - 1, (40,), generator=generator)]
    upper = values[torch.searchsorted(values, lower) + 1]
    x = lower + torch.rand(40, dtype=torch.float64, generator=generator) * (upper - lower)
    num_draws = 20_000
    drawn = round_to(x.expand(num_draws, -1), format, rounding="stochastic", generator=generator)
    assert bool(((drawn == lower) | (drawn == upper)).all())
    # The mean of n draws is off by less than 5 standard errors, each at most half a spacing over sqrt(n).
    assert bool(((drawn.mean(0) - x).abs() <= 5 * (upper - lower) / 2 / num_draws**0.5).all())


def test_what_a_format_has_stays_under_stochastic_rounding():
    x = all_values(E4M3)
    assert torch.equal(round_to(x, E4M3, rounding="stochastic"), x)


@pytest.mark.parametrize(
    ("format", "saturates", "expected"),
    [
        (FP16, False, torch.inf),
        (FP16, True, 65504.0),
        (E4M3, False, torch.nan),
        (E4M3, True, 448.0),
        (E2M1, False, 6.0),
    ],
)
def test_what_is_too_large(format, saturates, expected):
    x = torch.tensor([1e6, -1e6, torch.inf])
    want = torch.tensor([expected, -expected, expected])
    assert same(round_to(x, format, saturates=saturates), want)


def test_the_input_stays_and_its_dtype_is_kept():
    x = torch.tensor([[0.1, 0.2]], dtype=torch.bfloat16)
    before = x.clone()
    y = round_to(x, E4M3)
    assert torch.equal(x, before) and y.dtype == torch.bfloat16 and y.shape == x.shape
