"""A matrix product takes its tiles, waves and depth: counted by hand, and the same for numbers and for arrays."""

from dataclasses import replace
from math import ceil, isclose

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.cost import matmul_flops, matmul_time_s
from lablib.cost.matmul import _tiles, matmul_compute_s
from lablib.hardware import Device
from lablib.hardware.device import FREE

# 10 cores of 0.1 TFLOP/s, one tile size (it cannot be halved), no depth, memory that never limits.
TILED = Device(
    "tiled",
    peak_flops_per_s={"float32": 1e12, "float16": 4e12, "float8": 8e12},
    memory_bytes=1e12,
    memory_bandwidth_bytes_per_s=1e18,
    num_cores=10,
    matmul_tile=(33, 33),
)
TILE_S = 2 * 33 * 33 / 0.1e12  # for each step of K, at float32
PLAIN = replace(TILED, name="plain", num_cores=0, matmul_tile=(1, 1))
SIZES = st.integers(1, 3000)


def test_a_plain_device_takes_the_flops_over_the_rate():
    device = replace(PLAIN, matmul_efficiency=0.5)
    assert isclose(matmul_time_s(10, 20, 30, "float32", device, batch=7), 2 * 7 * 10 * 20 * 30 / 0.5e12, rel_tol=1e-12)
    assert matmul_flops(10, 20, 30, batch=7) == 2 * 7 * 10 * 20 * 30


@pytest.mark.parametrize(
    ("m", "n", "batch", "waves"),
    [
        pytest.param(1, 1, 1, 1, id="one number costs a tile"),
        pytest.param(33, 33, 1, 1, id="one tile"),
        pytest.param(33, 330, 1, 1, id="ten tiles on ten cores"),
        pytest.param(33, 331, 1, 2, id="one column more is a second wave"),
        pytest.param(66, 330, 1, 2, id="twenty tiles"),
        pytest.param(34, 330, 1, 2, id="one row more is another row of tiles"),
        pytest.param(33, 33, 10, 1, id="a batch shares a wave"),
        pytest.param(33, 33, 101, 11, id="a batch spills over"),
    ],
)
def test_a_product_takes_whole_waves_of_whole_tiles(m, n, batch, waves):
    assert isclose(matmul_time_s(m, n, 64, "float32", TILED, batch), waves * TILE_S * 64, rel_tol=1e-12)


@given(SIZES, SIZES, SIZES, st.integers(1, 20))
def test_with_one_tile_size_the_time_is_the_closed_form(m, n, k, batch):
    waves = ceil(batch * ceil(m / 33) * ceil(n / 33) / 10)
    assert isclose(matmul_compute_s(m, n, k, "float32", TILED, batch), waves * TILE_S * k, rel_tol=1e-12)


def test_a_product_as_deep_as_the_half_depth_reaches_half_of_the_rate():
    device = replace(PLAIN, matmul_half_depth=100)
    rate = lambda k, dtype: 2 * 50 * 50 * k / matmul_compute_s(50, 50, k, dtype, device)  # noqa: E731
    assert isclose(rate(100, "float16"), 2e12, rel_tol=1e-12)
    assert isclose(rate(300, "float16"), 3e12, rel_tol=1e-12)
    # The depth is a fixed time: float32 works four times as long on each step, and loses a quarter as many.
    assert isclose(rate(25, "float32"), 0.5e12, rel_tol=1e-12)
    # 8 bits are twice as fast, and lose twice as many.
    assert isclose(rate(200, "float8"), 4e12, rel_tol=1e-12)


@given(SIZES, SIZES, SIZES)
def test_no_shape_beats_the_rate_and_a_full_wave_of_the_largest_tile_reaches_it(m, n, k):
    device = replace(TILED, matmul_tile=(128, 256))
    assert matmul_compute_s(m, n, k, "float32", device) >= 2 * m * n * k / 1e12 * (1 - 1e-12)
    full = matmul_compute_s(128 * 2, 256 * 5, k, "float32", device)
    assert isclose(full, 2 * 256 * 1280 * k / 1e12, rel_tol=1e-12)


def test_a_library_has_the_halves_of_the_largest_tile_either_way_up():
    tiles = {(a, b): share for a, b, share in _tiles((128, 256))}
    assert tiles[(128, 256)] == tiles[(256, 128)] == 1.0
    # 128 x 128 multiplies 64 numbers for each it loads, 128 x 256 multiplies 85.3.
    assert isclose(tiles[(128, 128)], 64 / (128 * 256 / 384))
    assert min(min(tile) for tile in tiles) == 32 and max(max(tile) for tile in tiles) == 256
    assert [tile[:2] for tile in _tiles((1, 1))] == [(1, 1)]


def every_tile_s(m: int, n: int, k: int, dtype: str, device: Device, batch: int) -> float:
    """The formula of matmul.py's head over every tile of the library, none left out."""
    fastest = max(device.matmul_rate(name) for name in device.peak_flops_per_s if name != "float8")
    step_s = 2 * max(1, device.num_cores) * (k / device.matmul_rate(dtype) + device.matmul_half_depth / fastest)
    times = []
    for rows, columns, share in _tiles(device.matmul_tile):
        tiles = batch * -(-m // rows) * -(-n // columns)
        waves = -(-tiles // device.num_cores) if device.num_cores else tiles
        times.append(waves * (rows * columns / share) * step_s)
    return min(times)


EXTENTS = st.one_of(st.integers(0, 3000), st.sampled_from([2**i for i in range(17)]), st.integers(1, 10**6))


@given(
    *(EXTENTS,) * 3,
    st.sampled_from(["float32", "float16", "float8"]),
    st.sampled_from([(128, 256), (256, 256), (128, 128), (33, 33), (192, 320), (1, 7)]),
    st.sampled_from([0, 1, 10, 108, 132]),
    st.integers(1, 300),
)
def test_tiles_that_cannot_be_the_fastest_are_passed_over_without_changing_a_bit(m, n, k, dtype, tile, cores, batch):
    device = replace(TILED, matmul_tile=tile, num_cores=cores, matmul_half_depth=85.0)
    expected = every_tile_s(m, n, k, dtype, device, batch)
    assert matmul_compute_s(m, n, k, dtype, device, batch) == expected
    assert matmul_compute_s(np.array([m]), n, k, dtype, device, batch).tolist() == [expected]


def test_a_small_product_takes_smaller_tiles_than_a_large_one():
    device = replace(TILED, matmul_tile=(128, 128), num_cores=4)
    # One large tile would leave three cores idle; four of 64 x 64, at half of the rate, are done in half the time.
    one_tile_s = 2 * 128 * 128 * 100 / (1e12 / 4)
    assert isclose(matmul_compute_s(128, 128, 100, "float32", device), one_tile_s / 2, rel_tol=1e-12)


@given(SIZES, SIZES, SIZES, st.sampled_from(["m", "n", "k", "batch"]), st.integers(1, 500))
def test_a_larger_product_is_never_faster(m, n, k, grown, by):
    device = replace(TILED, matmul_tile=(128, 256), matmul_half_depth=64)
    sizes = {"m": m, "n": n, "k": k, "batch": 1}
    larger = sizes | {grown: sizes[grown] + by}
    before, after = (matmul_time_s(dtype="float16", device=device, **s) for s in (sizes, larger))
    assert before <= after * (1 + 1e-12)


def test_a_thin_product_takes_the_time_of_its_bytes():
    device = replace(PLAIN, memory_bandwidth_bytes_per_s=1e9)
    assert isclose(
        matmul_time_s(1, 1000, 1000, "float16", device), 2 * (1000 + 1000 * 1000 + 1000) / 1e9, rel_tol=1e-12
    )


def test_a_product_of_eight_bits_is_written_in_sixteen():
    device = replace(PLAIN, memory_bandwidth_bytes_per_s=1e9)
    assert isclose(
        matmul_time_s(2, 1000, 500, "float8", device), (2 * 500 + 500 * 1000 + 2 * 2000) / 1e9, rel_tol=1e-12
    )


@given(st.lists(st.tuples(SIZES, SIZES, SIZES), min_size=1, max_size=8), st.sampled_from(["float32", "float16"]))
def test_an_array_of_sizes_takes_what_each_of_them_takes(sizes, dtype):
    device = replace(TILED, matmul_tile=(128, 256), matmul_half_depth=64)
    device = replace(device, memory_bandwidth_bytes_per_s=1e12, cache_bytes=1e7, cache_bandwidth_bytes_per_s=3e12)
    m, n, k = (np.array(column) for column in zip(*sizes, strict=True))
    times = matmul_time_s(m, n, k, dtype, device)
    assert times.shape == m.shape
    assert times.tolist() == [matmul_time_s(*mnk, dtype=dtype, device=device) for mnk in sizes]


# ---- alignment ----

ALIGNED = replace(TILED, name="aligned", matmul_tile=(128, 256), matmul_half_depth=64, row_alignment_bytes=16)
ANY_ROWS = replace(ALIGNED, name="any rows", row_alignment_bytes=0)
WIDTHS = {"float16": 8, "float8": 16, "float4": 32, "tfloat32": 4}  # numbers in 16 bytes
PEAKS = {"float32": 1e12, "tfloat32": 2e12, "float16": 4e12, "float8": 8e12, "float4": 16e12}
ALIGNED, ANY_ROWS = (replace(device, peak_flops_per_s=PEAKS) for device in (ALIGNED, ANY_ROWS))


@given(SIZES, SIZES, SIZES, st.sampled_from(sorted(WIDTHS)))
def test_rows_of_whole_loads_lose_nothing_to_the_bit_whatever_the_number_of_rows(m, n, k, dtype):
    n, k = n * WIDTHS[dtype], k * WIDTHS[dtype]
    assert matmul_time_s(m, n, k, dtype, ALIGNED) == matmul_time_s(m, n, k, dtype, ANY_ROWS)


@given(SIZES, SIZES, SIZES, st.sampled_from(["float32", "float64"]))
def test_what_tensor_cores_do_not_compute_loses_nothing(m, n, k, dtype):
    assert matmul_time_s(m, n, k, dtype, ALIGNED) == matmul_time_s(m, n, k, dtype, ANY_ROWS)


@given(SIZES, SIZES, SIZES, st.sampled_from(["bfloat16", "float8", "int8"]))
def test_a_dtype_without_units_is_computed_as_float32_and_loses_nothing(m, n, k, dtype):
    old = replace(ALIGNED, peak_flops_per_s={"float32": 1e12, "float16": 4e12})
    assert matmul_compute_s(m, n, k, dtype, old) == matmul_compute_s(m, n, k, "float32", old)


@given(SIZES, SIZES, SIZES, st.sampled_from(sorted(WIDTHS)))
def test_the_worst_aligned_row_decides_and_no_product_takes_four_times_as_long(m, n, k, dtype):
    bytes_ = 16 / WIDTHS[dtype]
    share = min(1.0 if row * bytes_ % 16 == 0 else 0.67 if row * bytes_ % 4 == 0 else 0.29 for row in (n, k))
    compute_s = matmul_compute_s(m, n, k, dtype, ALIGNED)
    assert isclose(compute_s, matmul_compute_s(m, n, k, dtype, ANY_ROWS) / share, rel_tol=1e-12)
    assert matmul_time_s(m, n, k, dtype, ALIGNED) < 4 * matmul_time_s(m, n, k, dtype, ANY_ROWS)


@given(st.integers(1, 300), st.integers(1, 300), st.sampled_from(["n", "k"]))
def test_a_longer_row_is_slower_or_better_aligned(n, k, grown):
    sizes = {"m": 512, "n": n, "k": k}
    longer = sizes | {grown: sizes[grown] + 8}  # as well aligned as before
    assert matmul_time_s(dtype="float16", device=ALIGNED, **sizes) <= matmul_time_s(
        dtype="float16", device=ALIGNED, **longer
    ) * (1 + 1e-12)


def test_the_gradient_of_a_weight_reads_rows_of_its_two_widths_and_not_of_tokens():
    at = lambda m, n, k, **how: matmul_compute_s(m, n, k, "float16", ALIGNED, **how)  # noqa: E731
    assert at(512, 1024, 999, rows=(512, 1024)) == matmul_compute_s(512, 1024, 999, "float16", ANY_ROWS)
    assert isclose(at(511, 1024, 999, rows=(511, 1024)), at(512, 1024, 999, rows=(512, 1024)) / 0.29, rel_tol=1e-12)


@given(st.lists(st.tuples(SIZES, SIZES, SIZES), min_size=1, max_size=8))
def test_an_array_of_rows_loses_what_each_of_them_loses(sizes):
    m, n, k = (np.array(column) for column in zip(*sizes, strict=True))
    expected = [matmul_compute_s(*mnk, dtype="float16", device=ALIGNED) for mnk in sizes]
    assert matmul_compute_s(m, n, k, "float16", ALIGNED).tolist() == expected
    assert matmul_compute_s(m * 1.0, n * 1.0, k * 1.0, "float16", ALIGNED).tolist() == expected


def test_a_device_that_computes_in_no_time_takes_none():
    assert matmul_time_s(4096, 4096, 4096, "bfloat16", FREE) == 0.0


def test_an_unknown_dtype_is_refused():
    with pytest.raises(ValueError, match="unknown dtype 'fp16': choose from float64, float32"):
        matmul_time_s(1, 1, 1, "fp16", PLAIN)
