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


def test_a_device_that_computes_in_no_time_takes_none():
    assert matmul_time_s(4096, 4096, 4096, "bfloat16", FREE) == 0.0


def test_an_unknown_dtype_is_refused():
    with pytest.raises(ValueError, match="unknown dtype 'fp16': choose from float64, float32"):
        matmul_time_s(1, 1, 1, "fp16", PLAIN)
