"""Time of a matrix product on one device: [M, K] times [K, N], as tiles, waves and depth.

The output is cut into tiles; each core computes one tile at a time, and the cores work in waves:

    tiles   = batch * ceil(M / m) * ceil(N / n)              m x n the tile
    waves   = ceil(tiles / cores)                            the last wave may be nearly empty and lasts as long
    wave_s  = 2 m n (K / rate + depth / fastest) / share     rate = peak * efficiency / cores, of one core
    time    = max( min over tiles (waves * wave_s), bytes / bandwidth )

So 129 columns cost as much as 256 where a tile has 128 (tile quantization), and 109 tiles on 108 cores as much as 216
(wave quantization). Filling the pipeline and writing the tile takes a fixed time, equal to `depth` more steps of K at
the fastest dtype: a product of that dtype reaches K / (K + depth) of the device's efficiency.

A library has smaller tiles too (cublasLtMatmulTile_t lists them from 256 x 128 down), and takes the fastest. A smaller
tile multiplies fewer numbers for each one it loads, m n / (m + n), and its rate falls in proportion: the largest tile
is the one with loads that just keep up.

A core loads 16 bytes at a time if every row of the matrices begins at a multiple of 16 bytes: 8 numbers of 16 bits.
Otherwise it loads fewer at once, as far as the rows allow, and the tensor cores wait for the loads:

    rows are multiples of       16 bytes    4 or 8 bytes, the least of an asynchronous copy    less
    share of the rate           1           0.67                                               0.29

The rows are contiguous in memory: for [M, K] times [K, N], as torch stores them, rows have K and N numbers. A linear
layer's forward pass and its input's gradient have such rows; the gradient of its weight, [N, M] times [M, K], reads
rows of N and K. The number of tokens, M, is no row length and may be odd.

Source: NVIDIA, "Matrix Multiplication Background User's Guide" (DU-09799-001), 2023, sections 2.1 (alignment), 2.3 and
3; Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009. The two shares: medians of an A100's products relative
to their aligned neighbours, from Anthony et al., "The Case for Co-Designing Model Architectures with Hardware", 2024,
arXiv 2401.14489 (github.com/EleutherAI/cookbook, 27dff48, sizing/results). Checked against published measurements in
tests/cost/test_published.py.
Simplified: no split of K over cores, no clock reduction under load; the shares of an A100 for every GPU that has them
(a V100 loses less, an H100 more); an operand's first address is assumed to be aligned.
"""

from dataclasses import dataclass
from functools import cache, lru_cache

from lablib.cost.arrays import Array, Numbers, is_array, maximum, np
from lablib.cost.memory import stream_time_s
from lablib.cost.precision import bytes_per_number
from lablib.hardware.device import Device

_SMALLEST_TILE = 32
_TENSOR_CORE_DTYPES = ("tfloat32", "float16", "bfloat16", "float8", "int8", "float4")
# Shares of the rate: loads of 4 or 8 bytes, which may be asynchronous copies; shorter loads, which may not.
_ASYNC_LOADS, _SHORT_LOADS = 0.67, 0.29
_MIN_COPY_BYTES = 4


def matmul_flops(m: Numbers, n: Numbers, k: Numbers, batch: Numbers = 1) -> Numbers:
    """FLOPs of `batch` products [m, k] x [k, n]: a multiply-add is two."""
    return 2 * batch * m * n * k


def matmul_compute_s(
    m: Numbers,
    n: Numbers,
    k: Numbers,
    dtype: str,
    device: Device,
    batch: Numbers = 1,
    rows: tuple[Numbers, ...] | None = None,
) -> Numbers:
    """Seconds of the arithmetic alone, without memory traffic. Arguments as in `matmul_time_s`."""
    rate, fastest = _rates(device, dtype)
    if not device.num_cores and device.matmul_tile == (1, 1):
        return 2 * batch * m * n * (k / rate + device.matmul_half_depth / fastest)
    # One more multiply-add for each number of the output, on all cores: the unit of a wave.
    step_s = 2 * max(1, device.num_cores) * (k / rate + device.matmul_half_depth / fastest)
    time_s = _least_work(m, n, batch, device.matmul_tile, device.num_cores or 1) * step_s
    if not device.row_alignment_bytes:
        return time_s
    return time_s / alignment_share((k, n) if rows is None else rows, dtype, device)


def matmul_time_s(
    m: Numbers,
    n: Numbers,
    k: Numbers,
    dtype: str,
    device: Device,
    batch: Numbers = 1,
    rows: tuple[Numbers, ...] | None = None,
) -> Numbers:
    """Seconds of `batch` products [m, k] x [k, n] in one kernel, without its launch.

    Arguments:
        m, n, k, batch: whole numbers, or numpy arrays of them.
        dtype: "float64", "float32", "tfloat32", "float16", "bfloat16" or "float8", of the operands. The result has the
            same dtype, except for float8, where it has 16 bits.
        device: the device.
        rows: row lengths of operands and result in memory, in numbers; None: k and n. For the gradient of a weight,
            with operand [m, k] transposed, (m, n).
    """
    size = bytes_per_number(dtype)
    size_bytes = batch * ((m * k + k * n) * size + m * n * max(size, 2))
    return maximum(matmul_compute_s(m, n, k, dtype, device, batch, rows), stream_time_s(size_bytes, device))


@dataclass(frozen=True, slots=True)
class Tiling:
    """Tiling of a product's output: the tile's rows and columns, its share of the rate, and the number of tiles."""

    rows: int
    columns: int
    share: float
    tiles: int
    waves: int


def tiling(m: int, n: int, device: Device, batch: int = 1) -> Tiling:
    """The tile that `matmul_compute_s` takes for an output [m, n]; of equally fast ones the largest."""
    cores, found = device.num_cores or 1, []
    for a, b, area, share in _by_share(device.matmul_tile):
        tiles = batch * -(-m // a) * -(-n // b)
        found.append((-(-tiles // cores) * area, Tiling(a, b, share, tiles, -(-tiles // cores))))
    return min(found, key=lambda one: one[0])[1]


def alignment_share(rows: tuple[Numbers, ...], dtype: str, device: Device) -> Numbers:
    """Share of the rate that rows of these lengths (in numbers) leave: 1 if all are multiples of 16 bytes.

    A dtype that tensor cores do not compute (float32, float64) loses nothing, nor does one that the device has no units
    for, which is computed as float32.
    """
    if not device.row_alignment_bytes or dtype not in _TENSOR_CORE_DTYPES or dtype not in device.peak_flops_per_s:
        return 1.0
    # The lowest bit set in any length: the largest power of two that divides all rows.
    bits = 0
    for row in rows:
        bits = bits | (row if type(row) is int else row.astype(np.int64) if is_array(row) else int(row))
    size = bytes_per_number(dtype)
    off_load, off_copy = bits & (int(device.row_alignment_bytes / size) - 1), bits & (int(_MIN_COPY_BYTES / size) - 1)
    if is_array(bits):
        return np.where(off_load == 0, 1.0, np.where(off_copy, _SHORT_LOADS, _ASYNC_LOADS))
    return 1.0 if off_load == 0 else _SHORT_LOADS if off_copy else _ASYNC_LOADS


def _least_work(m: Numbers, n: Numbers, batch: Numbers, largest: tuple[int, int], cores: int) -> Numbers:
    """Minimum, over the tiles of a library, of waves times the numbers in a tile over its share of the rate."""
    if is_array(m) or is_array(n) or is_array(batch):
        return _least_work_of_each(m, n, batch, largest, cores)
    best, even_work = float("inf"), batch * m * n / cores * (1 - 1e-12)
    for a, b, area, share in _by_share(largest):
        # Even full waves of this tile would be more work, and so would later tiles, which have a smaller share.
        if best * share < even_work:
            break
        best = min(best, -(-batch * -(-m // a) * -(-n // b) // cores) * area)
    return best


def _least_work_of_each(m: Numbers, n: Numbers, batch: Numbers, largest: tuple[int, int], cores: int) -> Array:
    """The same for arrays. A quotient of floats, rounded up, is exact below 2^45, and five times as fast."""
    tiles = _by_share(largest)
    extents = {extent for tile in tiles for extent in tile[:2]}
    down, across = {extent: batch * np.ceil(m / extent) for extent in extents}, {e: np.ceil(n / e) for e in extents}
    least = np.full(np.broadcast_shapes(*(np.shape(x) for x in (m, n, batch))), np.inf)
    waves = np.empty_like(least)
    for a, b, area, _ in tiles:  # in place: a new array for each step would take longer than the step
        np.multiply(down[a], across[b], out=waves)
        np.ceil(np.divide(waves, cores, out=waves), out=waves)
        np.minimum(least, np.multiply(waves, area, out=waves), out=least)
    return least


@cache
def _by_share(largest: tuple[int, int]) -> tuple[tuple[int, int, float, float], ...]:
    """Each tile, with its numbers over its share of the rate, and the share; the largest share first."""
    return tuple(sorted(((a, b, a * b / share, share) for a, b, share in _tiles(largest)), key=lambda tile: -tile[3]))


@cache
def _tiles(largest: tuple[int, int]) -> tuple[tuple[int, int, float], ...]:
    """The tiles of a library: halves of the largest, in both orientations; each with its share of the rate."""
    found = {(a, b) for a in _halves(largest[0]) for b in _halves(largest[1])}
    # The largest tile has the least load for its work; a transposed tile has the same share.
    intensity = largest[0] * largest[1] / sum(largest)
    return tuple((a, b, a * b / (a + b) / intensity) for a, b in sorted(found | {(b, a) for a, b in found}))


def _halves(extent: int) -> list[int]:
    halves = [extent]
    while halves[-1] % 2 == 0 and halves[-1] // 2 >= _SMALLEST_TILE:
        halves.append(halves[-1] // 2)
    return halves


@lru_cache(maxsize=1024)
def _rates(device: Device, dtype: str) -> tuple[float, float]:
    """FLOP/s of a dtype, and of the fastest dtype wider than 8 bits, the unit of `matmul_half_depth`."""
    narrow = ("float8", "float4", "int8")
    fastest = max(device.matmul_rate(name) for name in device.peak_flops_per_s if name not in narrow)
    return device.matmul_rate(dtype), fastest
