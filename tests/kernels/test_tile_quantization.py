"""What a size wastes: closed forms over sizes nobody chose, and published facts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib.cost.matmul import matmul_compute_s, matmul_time_s, tiling
from lablib.hardware import DEVICES
from lablib.kernels.tile_quantization import (
    Product,
    advise,
    head_width_waste,
    pad_vocabulary,
    staircase,
    swiglu_width,
    waste,
)

A100, H100 = DEVICES["A100-80GB-SXM"], DEVICES["H100-80GB-SXM"]
sizes = st.integers(1, 20_000)
devices = st.sampled_from([A100, H100, DEVICES["V100-32GB-SXM2"], DEVICES["B200-SXM"]])
dtypes = st.sampled_from(["float16", "float32"])
quick = settings(max_examples=60, deadline=None)


@quick
@given(M=sizes, N=sizes, K=sizes, dtype=dtypes, device=devices)
def test_the_shares_multiply_to_the_useful_one(M, N, K, dtype, device):
    """Depth has a closed form of its own: K / (K + depth * rate / fastest rate)."""
    found = waste(Product(M, N, K, dtype, device))
    fastest = max(device.matmul_rate(name) for name in device.peak_flops_per_s if name not in ("float8", "float4"))
    depth = device.matmul_half_depth * device.matmul_rate(dtype) / fastest
    assert found.depth_share == pytest.approx(K / (K + depth), rel=1e-9)
    product = (1 - found.tile_waste) * (1 - found.wave_waste) * found.tiling.share * found.depth_share * found.alignment
    assert found.useful == pytest.approx(product) or found.is_memory_bound
    assert 0 < found.useful <= 1 + 1e-9
    assert found.time_s == matmul_time_s(M, N, K, dtype, device)


@quick
@given(M=sizes, N=sizes, device=devices, batch=st.integers(1, 20))
def test_the_tiling_is_the_one_that_the_cost_model_takes(M, N, device, batch):
    cut = tiling(M, N, device, batch)
    assert cut.tiles == batch * -(-M // cut.rows) * -(-N // cut.columns)
    assert (cut.waves - 1) * device.num_cores < cut.tiles <= cut.waves * device.num_cores
    K, rate = 4096, device.matmul_rate("float16")
    wave_s = 2 * cut.rows * cut.columns * (K + device.matmul_half_depth) / (rate / device.num_cores) / cut.share
    rows = (8, 8)  # aligned
    assert matmul_compute_s(M, N, K, "float16", device, batch, rows) == pytest.approx(cut.waves * wave_s, rel=1e-9)


def test_one_wave_of_an_a100_and_one_row_more():
    """He, 2024: 1,792 x 1,792 is 7 * 14 = 98 tiles of 256 x 128 for 108 cores; one more row and column makes 8 * 15."""
    assert A100.num_cores == 108 and A100.matmul_tile in ((128, 256), (256, 128))
    fits = waste(Product(1792, 1792, 4096, "float16", A100))
    assert sorted((fits.tiling.rows, fits.tiling.columns)) == [128, 256]
    assert (fits.tiling.tiles, fits.tiling.waves, fits.tile_waste) == (98, 1, 0.0)
    assert fits.wave_waste == pytest.approx(10 / 108)
    more = waste(Product(1793, 1800, 4096, "float16", A100))
    assert more.useful < 0.75 * fits.useful  # 120 such tiles would be two waves; smaller tiles save some


@quick
@given(N=st.integers(8, 4000), device=st.sampled_from([A100, H100]))
def test_seconds_never_fall_where_aligned_sizes_grow(N, device):
    first, second = staircase(Product(4096, 8, 4096, "float16", device), "N", [8 * N, 8 * (N + 1)])
    assert first.time_s <= second.time_s * (1 + 1e-12)


@settings(max_examples=15, deadline=None)
@given(
    M=st.integers(1, 6000), K=st.integers(64, 6000), axis=st.sampled_from("MNK"), device=st.sampled_from([A100, H100])
)
def test_advice_is_the_nearest_that_is_better(M, K, axis, device):
    product = Product(M, 1000, K, "bfloat16", device)
    found = advise(product, axis, gain=0.05, reach=100)
    useful = found.here.useful
    for other in (found.smaller, found.larger):
        if other is not None:
            assert waste(product.at(axis, other)).useful >= 1.05 * useful
            between = range(min(other, found.size) + 1, max(other, found.size))
            assert all(waste(product.at(axis, size)).useful < 1.05 * useful for size in between)
    assert found.end_of_step >= found.size
    assert waste(product.at(axis, found.end_of_step)).time_s <= found.here.time_s


@pytest.mark.parametrize(("d_model", "width"), [(4096, 11008), (5120, 13824), (6656, 17920), (8192, 22016)])
def test_llamas_widths(d_model, width):
    """LLaMA 7B, 13B, 33B, 65B: 2/3 of 4 d, rounded up to a multiple of 256."""
    found = swiglu_width(d_model, 256, 2048, "bfloat16", A100)
    assert found.padded == width
    assert found.extra_bytes == pytest.approx(2 * 3 * d_model * (width - 8 * d_model / 3))
    assert 0 <= found.extra < 0.02 and found.padded_s < found.time_s  # 8/3 d rounded to a whole number is crooked


@given(d_model=st.integers(1, 9000), multiple=st.integers(1, 600))
@quick
def test_a_width_is_the_least_multiple(d_model, multiple):
    found = swiglu_width(d_model, multiple, 64, "float16", H100)
    assert found.padded % multiple == 0
    assert 0 <= found.padded - found.size < multiple + 1
    assert found.extra == pytest.approx(found.padded / (8 * d_model / 3) - 1, abs=1e-12)


@pytest.mark.parametrize("multiple", [64, 128])
def test_karpathys_vocabulary(multiple):
    """50,304 is the next multiple of 64, and of 128. A whole step of nanoGPT was 25% faster; the head alone is more."""
    found = pad_vocabulary(50257, multiple, 12 * 1024, 768, "bfloat16", A100)
    assert found.padded == 50304 == 393 * 128
    assert found.extra == pytest.approx(47 / 50257) and found.extra_bytes == 47 * 768 * 2
    assert found.time_s > 1.25 * found.padded_s


def test_widths_of_heads():
    assert head_width_waste(64) == head_width_waste(128) == head_width_waste(64, is_triton=True) == 0
    assert head_width_waste(80) == pytest.approx(1 / 6)  # GPT-3 2.7B: 80 of 96
    assert head_width_waste(80, is_triton=True) == pytest.approx(3 / 8)  # 80 of 128


@given(width=st.integers(1, 256), is_triton=st.booleans())
def test_a_head_never_wastes_all(width, is_triton):
    assert 0 <= head_width_waste(width, is_triton) < 1
