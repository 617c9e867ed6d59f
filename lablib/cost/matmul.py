"""What a matrix product takes on one device: [M, K] times [K, N], as tiles, waves and depth.

The output is cut into tiles; each core computes one tile at a time, and the cores work in waves:

    tiles   = batch * ceil(M / m) * ceil(N / n)              m x n the tile
    waves   = ceil(tiles / cores)                            the last wave may be nearly empty and lasts as long
    wave_s  = 2 m n (K / rate + depth / fastest) / share     rate = peak * efficiency / cores, of one core
    time    = max( min over tiles (waves * wave_s), bytes / bandwidth )

So 129 columns cost as much as 256 where a tile has 128 (tile quantization), and 109 tiles on 108 cores as much as 216
(wave quantization). Filling the pipeline and writing the tile takes a fixed time, that of `depth` more steps of K at
the fastest dtype: a product of that dtype reaches K / (K + depth) of the device's efficiency.

A library has smaller tiles too (cublasLtMatmulTile_t lists them from 256 x 128 down), and takes the fastest. A smaller
tile multiplies fewer numbers for each one it loads, m n / (m + n), and runs at a share of the rate in proportion: the
largest tile is the one whose loads just keep up.

Source: NVIDIA, "Matrix Multiplication Background User's Guide" (DU-09799-001), 2023, sections 2.3 and 3; Williams,
Waterman, Patterson, "Roofline", CACM 52(4), 2009. Checked against published measurements in tests/cost/test_matmul.py.
Simplified: no alignment, no split of K over cores, no clock that sinks under load.
"""

from functools import cache

from lablib.cost.arrays import Numbers, ceil_div, least, most
from lablib.cost.memory import stream_time_s
from lablib.cost.precision import bytes_per_number
from lablib.hardware.device import Device

_SMALLEST_TILE = 32


def matmul_flops(m: Numbers, n: Numbers, k: Numbers, batch: Numbers = 1) -> Numbers:
    """FLOPs of `batch` products [m, k] x [k, n]: a multiply-add is two."""
    return 2 * batch * m * n * k


def matmul_compute_s(m: Numbers, n: Numbers, k: Numbers, dtype: str, device: Device, batch: Numbers = 1) -> Numbers:
    """Seconds of the arithmetic alone, if every operand were at hand. Arguments as in `matmul_time_s`."""
    rate, fastest = device.matmul_rate(dtype), _fastest_rate(device)
    if not device.num_cores and device.matmul_tile == (1, 1):
        return 2 * batch * m * n * (k / rate + device.matmul_half_depth / fastest)
    # One more multiply-add for each number of the output, on all cores: what a wave is made of.
    step_s = 2 * max(1, device.num_cores) * (k / rate + device.matmul_half_depth / fastest)
    cost = None
    for rows, columns, share in _tiles(device.matmul_tile):
        tiles = batch * ceil_div(m, rows) * ceil_div(n, columns)
        waves = ceil_div(tiles, device.num_cores) if device.num_cores else tiles
        time_s = waves * (rows * columns / share) * step_s
        cost = time_s if cost is None else least(cost, time_s)
    return cost


def matmul_time_s(m: Numbers, n: Numbers, k: Numbers, dtype: str, device: Device, batch: Numbers = 1) -> Numbers:
    """Seconds of `batch` products [m, k] x [k, n] in one kernel, without its launch.

    Arguments:
        m, n, k, batch: whole numbers, or numpy arrays of them.
        dtype: "float64", "float32", "tfloat32", "float16", "bfloat16" or "float8": that of the operands. The result has
            it too, but for float8, whose products are written in 16 bits.
        device: where.
    """
    size = bytes_per_number(dtype)
    size_bytes = batch * ((m * k + k * n) * size + m * n * max(size, 2))
    return most(matmul_compute_s(m, n, k, dtype, device, batch), stream_time_s(size_bytes, device))


@cache
def _tiles(largest: tuple[int, int]) -> tuple[tuple[int, int, float], ...]:
    """The tiles a library has: halves of the largest, either way up; each with its share of the rate."""
    found = {(a, b) for a in _halves(largest[0]) for b in _halves(largest[1])}
    # Nothing loads less for its work than the largest: turned around, a tile's share is the same.
    intensity = largest[0] * largest[1] / sum(largest)
    return tuple((a, b, a * b / (a + b) / intensity) for a, b in sorted(found | {(b, a) for a, b in found}))


def _halves(extent: int) -> list[int]:
    halves = [extent]
    while halves[-1] % 2 == 0 and halves[-1] // 2 >= _SMALLEST_TILE:
        halves.append(halves[-1] // 2)
    return halves


def _fastest_rate(device: Device) -> float:
    """The rate of the fastest dtype wider than 8 bits: the one that `matmul_half_depth` is counted in."""
    narrow = ("float8", "float4", "int8")
    return max(device.matmul_rate(dtype) for dtype in device.peak_flops_per_s if dtype not in narrow)
