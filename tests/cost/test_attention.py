"""Attention by algorithm: the work of the pairs, the softmax beside it, and the bytes each algorithm moves."""

from dataclasses import replace
from math import isclose

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lablib.cost import attention_time_s, matmul_time_s
from lablib.cost.attention import causal_share, flash_compute_s
from lablib.hardware import Device

DEVICE = Device("easy", {"float32": 1e12, "float16": 4e12}, memory_bytes=1e12, memory_bandwidth_bytes_per_s=1e18)
SLOW_MEMORY = replace(DEVICE, memory_bandwidth_bytes_per_s=1e6)
LENGTHS = st.integers(1, 600)


@given(LENGTHS, LENGTHS)
def test_a_causal_mask_leaves_the_pairs_of_a_query_and_the_keys_up_to_it(queries, keys):
    mask = torch.ones(queries, keys).tril()
    assert isclose(causal_share(queries, keys), mask.mean(dtype=torch.float64).item(), rel_tol=1e-9)


def test_a_fused_kernel_does_two_products_and_a_softmax_as_long_as_32_multiply_adds_of_each():
    work = 2 * 2 * (3 * 8) * 100 * 50
    assert isclose(flash_compute_s(3, 8, 100, 50, 64, "float32", DEVICE), work * (64 + 32) / 1e12, rel_tol=1e-12)
    backward_s = flash_compute_s(3, 8, 100, 50, 64, "float32", DEVICE, backward=True)
    assert isclose(backward_s, work * 5 / 2 * (64 + 48) / 1e12, rel_tol=1e-12)


def test_a_causal_mask_halves_the_work_of_a_fused_kernel_and_none_of_the_unfused():
    sizes = (2, 4, 512, 512, 64, "float32", DEVICE)
    assert isclose(attention_time_s(*sizes, causal=True), attention_time_s(*sizes) * 513 / 1024, rel_tol=1e-12)
    unfused = [attention_time_s(*sizes, causal=causal, algorithm="unfused") for causal in (True, False)]
    assert unfused[0] == unfused[1]


def test_heads_fill_waves_of_cores_in_blocks_of_queries():
    device = replace(DEVICE, num_cores=10, matmul_tile=(128, 128))
    at = lambda heads, queries: flash_compute_s(1, heads, queries, 128, 64, "float32", device)  # noqa: E731
    assert at(10, 64) == at(1, 1) == at(5, 128)  # one wave: ten blocks of 64 queries, or fewer
    assert at(11, 64) == at(20, 64) == 2 * at(10, 64)


@given(st.integers(1, 4), st.integers(1, 8), LENGTHS, LENGTHS, st.sampled_from([32, 64, 128]))
def test_a_fused_kernel_moves_queries_keys_values_and_output_and_the_unfused_its_scores_too(b, h, s, t, d):
    at = lambda **how: attention_time_s(b, h, s, t, d, "float32", SLOW_MEMORY, **how) * 1e6 / 4  # noqa: E731
    sides = b * h * (s + t) * d
    assert isclose(at(), 2 * sides, rel_tol=1e-12)
    assert isclose(at(backward=True), 4 * sides, rel_tol=1e-12)
    scores = b * h * s * t
    # Scores are written and read, probabilities likewise: by the products, and by the softmax between them.
    assert isclose(at(algorithm="unfused"), 2 * sides + 4 * scores, rel_tol=1e-12)


def test_unfused_attention_is_two_products_and_a_pass_of_softmax_and_twice_the_products_backward():
    product_s = matmul_time_s(256, 256, 64, "float16", DEVICE, batch=8)
    forward_s, backward_s = (
        attention_time_s(1, 8, 256, 256, 64, "float16", DEVICE, backward=b, algorithm="unfused") for b in (False, True)
    )
    assert isclose(forward_s, 2 * product_s, rel_tol=1e-3) and isclose(backward_s, 4 * product_s, rel_tol=1e-3)


def test_an_array_of_lengths_takes_what_each_of_them_takes():
    device = replace(DEVICE, num_cores=10, matmul_tile=(128, 256), matmul_half_depth=64)
    lengths = [1, 100, 512, 4096]
    for algorithm in ("flash", "unfused"):
        for how in ({}, {"causal": True}, {"backward": True}):
            times = attention_time_s(
                2, 8, np.array(lengths), np.array(lengths), 64, "float16", device, algorithm=algorithm, **how
            )
            each = [attention_time_s(2, 8, n, n, 64, "float16", device, algorithm=algorithm, **how) for n in lengths]
            assert times.tolist() == each


def test_an_unknown_algorithm_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="unknown attention algorithm 'flesh': did you mean 'flash'"):
        attention_time_s(1, 1, 1, 1, 1, "float32", DEVICE, algorithm="flesh")


# ---- as an operator ----


# ---- alignment ----

LOADS = replace(DEVICE, matmul_tile=(128, 256), num_cores=10, row_alignment_bytes=16)


@given(st.integers(1, 40), st.integers(0, 7), st.booleans())
def test_a_fused_kernel_pads_a_head_to_the_next_eight_numbers_of_sixteen_bits(eights, less, backward):
    at = lambda d_head, device: flash_compute_s(2, 8, 512, 512, d_head, "float16", device, backward=backward)  # noqa: E731
    padded_s = at(8 * eights, replace(LOADS, row_alignment_bytes=0))
    assert at(8 * eights - less, LOADS) == padded_s
    assert at(np.array([8 * eights - less]), LOADS).tolist() == [padded_s]


@pytest.mark.parametrize(("d_head", "share"), [(96, 1.0), (100, 0.67), (98, 0.67), (99, 0.29)])
def test_unfused_attention_multiplies_rows_of_its_heads_width_in_every_product(d_head, share):
    for backward in (False, True):
        times = [
            attention_time_s(2, 8, 512, 512, d_head, "float16", device, backward=backward, algorithm="unfused")
            for device in (LOADS, replace(LOADS, row_alignment_bytes=0))
        ]
        assert isclose(times[0], times[1] / share, rel_tol=1e-6)  # the memory of DEVICE takes almost no time


def test_unfused_attention_with_an_odd_number_of_keys_reads_scores_in_short_loads():
    at = lambda keys, device: attention_time_s(2, 8, 512, keys, 64, "float16", device, algorithm="unfused")  # noqa: E731
    assert isclose(at(511, LOADS), at(511, replace(LOADS, row_alignment_bytes=0)) / 0.29, rel_tol=1e-6)
