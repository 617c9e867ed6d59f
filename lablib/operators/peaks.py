"""Row of a device's table of peaks that a dtype uses.

    float64, float32, float16, bfloat16     the row of the same name
    float32, where the program allows it    tfloat32: 4 bytes in memory, 10 bits of mantissa in the product
    float8_e4m3fn, float8_e5m2, ...         float8

A missing row falls back on float32's: the device computes, slowly (a V100 has no unit for bfloat16).

torch allows TF32 in two places, and by default in one of them (pytorch 2.11 to 2.13, "TensorFloat-32 on Ampere
and later" in docs/source/notes/cuda.rst):

    products of matrices    no; torch.set_float32_matmul_precision("high" or "medium") allows it
    convolutions (cuDNN)    yes; torch.backends.cudnn.allow_tf32 = False, or torch.backends.cudnn.conv.fp32_precision =
                            "ieee", forbids it
"""

import torch

from lablib.torch_compat import get_fp32_precision_getter


def peak_name(dtype: torch.dtype, convolves: bool = False) -> str:
    """The row of a device's peak table for products or convolutions of this dtype, by the program's settings."""
    if dtype == torch.float32:
        return "tfloat32" if (convolutions_use_tf32() if convolves else products_use_tf32()) else "float32"
    if dtype.itemsize == 1 and dtype.is_floating_point:
        return "float8"
    return str(dtype).removeprefix("torch.")


def products_use_tf32() -> bool:
    """Whether products of matrices in float32 may use TF32."""
    return torch.get_float32_matmul_precision() != "highest"


def convolutions_use_tf32() -> bool:
    """Whether convolutions in float32 may use TF32."""
    return get_fp32_precision_getter("cuda", "conv") == "tf32"
