"""Which row of a device's table of peaks a dtype computes at.

    float64, float32, float16, bfloat16     their own row
    float32, where the program allows it    tfloat32: 4 bytes in memory, 10 bits of mantissa in the product
                                            (torch.set_float32_matmul_precision("high" or "medium"))
    float8_e4m3fn, float8_e5m2, ...         float8

A row that a device lacks falls back on float32's: it computes, slowly (a V100 has no unit for bfloat16).
"""

import torch


def peak_name(dtype: torch.dtype) -> str:
    """The row of a device's peak table for products of this dtype, as the program is set up now."""
    if dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest":
        return "tfloat32"
    if dtype.itemsize == 1 and dtype.is_floating_point:
        return "float8"
    return str(dtype).removeprefix("torch.")
