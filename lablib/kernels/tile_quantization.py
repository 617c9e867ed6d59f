"""Tile and wave quantization: why one column more may cost half as much again, and which size to take instead.

A matrix product [M, K] x [K, N] is cut into tiles of its output, and the cores work on them in waves (lablib/cost/
matmul.py). The device computes whole tiles in whole waves; the result has M N numbers:

    useful share = (1 - tile waste) (1 - wave waste) * share of the tile * K / (K + depth) * alignment

    tile waste = 1 - M N / (tiles * m * n)           a tile's edge reaches beyond the matrix
    wave waste = 1 - tiles / (waves * cores)         cores without a tile in the last wave
    the others                                       smaller tiles, a short K, rows that are no multiple of 16 bytes

Seconds against one size climb in steps: every size of a step costs what its largest costs. So a size is well chosen at
the right end of a step, a multiple of the tile:

    width of SwiGLU     8/3 d, which is no whole number: rounded up to a multiple (Llama: of 256)
    vocabulary          50,257 is odd: padded to 50,304 = 393 * 128
    width of a head     64 or 128; one of 80 is computed as 96 or 128

Cost: a sweep of n sizes is n look-ups of the cost model.
Source: NVIDIA, "Matrix Multiplication Background User's Guide" (DU-09799-001), 2023, section 3; Anthony et al., "The
Case for Co-Designing Model Architectures with Hardware", 2024, arXiv 2401.14489; He, "What Shapes Do Matrix
Multiplications Like?", 2024 (an output of 1,792 x 1,792 is 98 tiles of 256 x 128: one wave of an A100's 108 cores);
Karpathy, 2023-02-03, on nanoGPT: 50,304 instead of 50,257 tokens train about 25% faster; Shazeer, "GLU Variants Improve
Transformer", 2020, arXiv 2002.05202 (two thirds of 4 d); Touvron et al., "LLaMA", 2023, arXiv 2302.13971 (its code
has the multiple of 256).
Simplified: as the cost model: a library that takes the best of its tiles, no split of K; memory counts only where it is
the limit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from lablib.cost.matmul import Tiling, alignment_share, matmul_compute_s, matmul_flops, matmul_time_s, tiling
from lablib.cost.precision import bytes_per_number
from lablib.hardware.device import Device
from lablib.signature import Checked, Count, OneOf, Range, checked

Axis = Annotated[str, OneOf(("M", "N", "K"))]
Multiple = Annotated[int, Range(ge=1, example=128)]
_HEAD_WIDTHS = tuple(range(32, 257, 32))  # flash-attention, csrc/flash_attn/src: flash_fwd_hdim*
HeadWidth = Annotated[int, Range(ge=1, le=_HEAD_WIDTHS[-1], example=64)]


@dataclass(frozen=True, slots=True)
class Product(Checked):
    """A matrix product [M, K] x [K, N], and where it runs."""

    M: Count  # M, N, K: rows, columns and depth
    N: Count
    K: Count
    dtype: str  # a name in `Device.peak_flops_per_s`
    device: Device  # with cores and tiles, as in `lablib.hardware.DEVICES`

    @checked
    def at(self, axis: Axis, size: int) -> "Product":
        """The same with another size of one axis."""
        return replace(self, **{axis: size})


@dataclass(frozen=True, slots=True)
class Waste:
    """Seconds of a product, and the losses of the device's rate."""

    time_s: float  # seconds of the product, without its launch
    tiling: Tiling  # the tile that is taken, how many, in how many waves
    # tile_waste, wave_waste: shares of the computed numbers, and of the cores' turns, that the product does not need
    tile_waste: float
    wave_waste: float
    depth_share: float  # depth_share, alignment: shares of the rate that remain with a short K and with unaligned rows
    alignment: float
    useful: float  # needed FLOPs, over the FLOPs of the device's rate in the same time, in (0, 1]
    is_memory_bound: bool  # the bytes take longer than the arithmetic


@checked
def waste(product: Product) -> Waste:
    """Seconds and losses of one product."""
    m, n, k, dtype, device = product.M, product.N, product.K, product.dtype, product.device
    cut = tiling(m, n, device)
    compute_s, time_s = (float(f(m, n, k, dtype, device)) for f in (matmul_compute_s, matmul_time_s))
    rate = device.matmul_rate(dtype)
    tile_waste = 1 - m * n / (cut.tiles * cut.rows * cut.columns)
    wave_waste = 1 - cut.tiles / (cut.waves * (device.num_cores or 1))
    alignment = float(alignment_share((k, n), dtype, device))
    # What remains when all other losses are known.
    known = (1 - tile_waste) * (1 - wave_waste) * cut.share * alignment
    depth_share = matmul_flops(m, n, k) / (rate * compute_s) / known
    useful = float(matmul_flops(m, n, k)) / (rate * time_s)
    return Waste(time_s, cut, tile_waste, wave_waste, depth_share, alignment, useful, time_s > compute_s)


@checked
def staircase(product: Product, axis: Axis, sizes: Sequence[int]) -> tuple[Waste, ...]:
    """The product at each size of one axis."""
    return tuple(waste(product.at(axis, size)) for size in sizes)


@dataclass(frozen=True, slots=True)
class Advice:
    """A size of an axis, and the nearest ones with less waste."""

    size: int
    here: Waste  # at the size itself
    # smaller, larger: nearest sizes below and above that reach a `useful` share better by `gain`; None: none near
    smaller: int | None
    larger: int | None
    end_of_step: int  # the largest size near it that takes no longer


@checked
def advise(product: Product, axis: Axis, gain: Annotated[float, Range(gt=0)] = 0.02, reach: Count = 512) -> Advice:
    """Waste of the size of one axis, and sizes up to `reach` away that are `useful` by a share `gain` more."""
    size, here = getattr(product, axis), waste(product)
    near = {other: waste(product.at(axis, other)) for other in range(max(1, size - reach), size + reach + 1)}
    better = [other for other, found in near.items() if found.useful >= here.useful * (1 + gain)]
    return Advice(
        size,
        here,
        max((other for other in better if other < size), default=None),
        min((other for other in better if other > size), default=None),
        max(other for other, found in near.items() if found.time_s <= here.time_s),
    )


@dataclass(frozen=True, slots=True)
class Padded:
    """A size rounded up to a multiple, with the extra size and the seconds before and after."""

    size: float  # size, padded: asked for, and taken
    padded: int
    extra: float  # FLOPs and parameters more, as a share of those asked for
    extra_bytes: float  # of the matrices' parameters in the product's dtype
    time_s: float  # time_s, padded_s: seconds of the products before and after
    padded_s: float


@checked
def swiglu_width(d_model: Count, multiple: Multiple, tokens: Count, dtype: str, device: Device) -> Padded:
    """The hidden width 8/3 d of a SwiGLU layer, rounded up to a multiple: its three products forward.

    8/3 d keeps the parameters of a plain MLP, as 3 d (8/3 d) = 2 d (4 d).
    """
    exact, bare = 8 * d_model / 3, -(-8 * d_model // 3)
    width = -(-bare // multiple) * multiple
    up, down = Product(tokens, bare, d_model, dtype, device), Product(tokens, d_model, bare, dtype, device)
    seconds = [2 * waste(up.at("N", w)).time_s + waste(down.at("K", w)).time_s for w in (bare, width)]
    extra_bytes = 3 * d_model * (width - exact) * bytes_per_number(dtype)
    return Padded(exact, width, width / exact - 1, extra_bytes, *seconds)


@checked
def pad_vocabulary(
    vocab_size: Count, multiple: Multiple, tokens: Count, d_model: Count, dtype: str, device: Device
) -> Padded:
    """A vocabulary rounded up to a multiple: the head's product forward."""
    padded = -(-vocab_size // multiple) * multiple
    head = Product(tokens, vocab_size, d_model, dtype, device)
    seconds = [waste(head.at("N", size)).time_s for size in (vocab_size, padded)]
    extra_bytes = float((padded - vocab_size) * d_model * bytes_per_number(dtype))
    return Padded(float(vocab_size), padded, padded / vocab_size - 1, extra_bytes, *seconds)


@checked
def head_width_waste(width: HeadWidth, is_triton: bool = False) -> float:
    """Share of attention's arithmetic that pads a head.

    FlashAttention-2 in CUDA has kernels for widths that are multiples of 32, up to 256; a tile in Triton is as wide as
    a power of two of at least 16.
    """
    widths = (16, 32, 64, 128, 256) if is_triton else _HEAD_WIDTHS
    return 1 - width / next(padded for padded in widths if padded >= width)
