"""The formats' figures are those of torch, of the papers' tables, and of a count of their numbers."""

import pytest
import torch

from lablib.precision.formats import FORMATS, all_values

WITH_DTYPE = [format for format in FORMATS.values() if format.dtype is not None]
OF_16_BITS = [format for format in FORMATS.values() if format.num_bits <= 16]


@pytest.mark.parametrize("format", WITH_DTYPE, ids=str)
def test_figures_are_torchs(format):
    info = torch.finfo(format.dtype)
    assert (format.num_bits, format.largest, format.smallest_normal) == (info.bits, info.max, info.smallest_normal)
    if format.mantissa_bits:
        assert format.epsilon == info.eps  # torch calls that of E8M0, which has no mantissa, 1


def test_eight_bit_formats_are_those_of_their_paper():
    """Micikevicius et al., 2022, table 1."""
    e4m3, e5m2 = FORMATS["e4m3"], FORMATS["e5m2"]
    assert (e4m3.largest, e4m3.smallest_normal, e4m3.smallest_subnormal) == (448, 2**-6, 2**-9)
    assert (e5m2.largest, e5m2.smallest_normal, e5m2.smallest_subnormal) == (57344, 2**-14, 2**-16)
    assert (e4m3.has_infinity, e5m2.has_infinity) == (False, True)


def test_four_bit_numbers_are_those_of_the_specification():
    """OCP Microscaling Formats 1.0, table 5."""
    positive = [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert all_values(FORMATS["e2m1"]).tolist() == [-x for x in reversed(positive)] + [0.0] + positive


def test_tf32_has_the_range_of_fp32_and_the_precision_of_fp16():
    tf32 = FORMATS["tf32"]
    assert (tf32.num_bits, tf32.epsilon) == (19, FORMATS["fp16"].epsilon)
    assert tf32.smallest_normal == FORMATS["fp32"].smallest_normal


@pytest.mark.parametrize("format", [f for f in OF_16_BITS if f.dtype is not None], ids=str)
def test_all_values_are_what_torch_decodes_from_all_codes(format):
    bits = torch.arange(2**format.num_bits, dtype=torch.int32)
    codes = bits.to(torch.uint8) if format.num_bits == 8 else bits.to(torch.int16)
    values = codes.view(format.dtype).to(torch.float64)
    finite = values[values.isfinite()].unique()
    assert torch.equal(all_values(format), finite)


def test_a_wide_format_is_not_listed():
    with pytest.raises(ValueError, match="at most 16 bits can be listed: fp32 has 32; try bf16"):
        all_values(FORMATS["fp32"])
