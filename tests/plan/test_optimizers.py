"""What optimizers keep and move: as torch's own do, and as the papers state."""

from dataclasses import replace
from math import isclose

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.plan.optimizers import OPTIMIZERS, find_optimizer

SIZES = st.integers(1, 3000)


@pytest.mark.parametrize(
    ("name", "bytes_per_param"),
    [("sgd", 0), ("sgd-momentum", 4), ("lion", 4), ("adamw", 8), ("lamb", 8), ("sophia", 8)],
)
def test_a_master_copy_takes_four_bytes_more(name, bytes_per_param):
    optimizer = find_optimizer(name)
    assert optimizer.state_bytes(1000, has_master=False) == 1000 * bytes_per_param
    # With AdamW the K = 12 of ZeRO (arXiv 1910.02054, section 3.1).
    assert optimizer.state_bytes(1000) == 1000 * (bytes_per_param + 4)


@given(m=SIZES, n=SIZES, rank=SIZES)
def test_galore_keeps_the_states_of_its_table_1(m, n, rank):
    m, n = sorted((m, n))  # the table has m <= n
    rank = min(rank, m)
    optimizer = replace(find_optimizer("galore"), rank=rank)
    numbers = m * rank + 2 * n * rank
    for rows, columns in ((m, n), (n, m)):
        kept = optimizer.state_bytes(m * n, rows=rows, columns=columns, has_master=False)
        assert isclose(kept, 4 * numbers, rel_tol=1e-12)


def test_galore_of_a_rank_beyond_the_matrix_has_that_of_the_matrix():
    optimizer = replace(find_optimizer("galore"), rank=999)
    assert optimizer.state_bytes(6 * 8, rows=6, columns=8, has_master=False) == 4 * (6 * 6 + 2 * 8 * 6)


@pytest.mark.parametrize(("params", "blocks"), [(1, 1), (2048, 1), (2049, 2), (10 * 2048, 10)])
def test_eight_bit_adam_keeps_two_bytes_and_two_scales_a_block(params, blocks):
    optimizer = replace(find_optimizer("adam-8bit"), block=2048)  # section 2.1 of the paper
    assert optimizer.state_bytes(params, has_master=False) == 2 * params + 2 * 4 * blocks


def test_vectors_keep_full_moments_in_every_optimizer():
    assert find_optimizer("adafactor").state_bytes(100, has_master=False) == 400
    assert find_optimizer("galore").state_bytes(100, has_master=False) == 800


@pytest.mark.parametrize(
    ("name", "has_master", "words"),
    [
        pytest.param("sgd", False, 3, id="sgd: gradient, weight, weight"),
        pytest.param("adamw", False, 7, id="adamw: reads 4, writes 3"),
        pytest.param("lion", False, 5, id="lion: reads 3, writes 2"),
        pytest.param("lamb", False, 12, id="lamb: stage 1 reads 4 writes 3, norms read 2, stage 2 reads 2 writes 1"),
    ],
)
def test_a_step_in_32_bits_moves_each_number_as_often_as_its_kernels_touch_it(name, has_master, words):
    moved = find_optimizer(name).moved_bytes(1000, has_master=has_master, param_bytes=4)
    assert moved == 4 * words * 1000


def test_a_mixed_precision_step_also_writes_the_16_bit_parameter():
    # Gradient 4, master 4 + 4, two moments 8 + 8, parameter 2.
    assert find_optimizer("adamw").moved_bytes(1000) == 30_000
    assert find_optimizer("adamw").moved_bytes(1000, grad_bytes=2) == 28_000


def test_adafactor_reads_its_gradient_twice_and_goes_over_its_update_again():
    # Sums of the gradient; the update from it, written, read for its size and read to be applied; weight read for its
    # size, read and written. The sums themselves are read and written.
    moved = find_optimizer("adafactor").moved_bytes(600, rows=20, columns=30, has_master=False, param_bytes=4)
    assert moved == pytest.approx(4 * (1 + 1 + 3 + 3) * 600 + 8 * (20 + 30))


def test_galore_moves_gradient_weight_and_update_in_full_and_the_rest_in_its_rank():
    m, n, r = 64, 96, 16
    full = 1 + 2 + 2  # gradient; weight read, written; update written, read
    small = 2 * r * n + 2 * r * n + 2 * 2 * r * n + 2 * m * r  # gradient, update, moments, projection: each twice
    moved = replace(find_optimizer("galore"), rank=r).moved_bytes(m * n, rows=m, columns=n, has_master=False)
    # In 16 bits without a master copy, as its authors train: the weight has 2 bytes, all else 4.
    assert moved == pytest.approx(4 * (full - 2) * m * n + 2 * 2 * m * n + 4 * small)


def test_an_update_that_is_written_out_takes_room_and_a_fused_one_does_not():
    needed = {name: optimizer.temporary_bytes(100) for name, optimizer in OPTIMIZERS.items()}
    assert {name for name, size_bytes in needed.items() if size_bytes} == {"lamb", "adafactor", "galore", "muon"}
    assert set(needed.values()) == {0, 400}


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_arrays_cost_what_each_of_their_numbers_costs(name):
    optimizer = replace(find_optimizer(name), rank=7 if name == "galore" else None)
    params, rows, columns = np.array([640, 64_000]), np.array([8, 80]), np.array([80, 8])
    together = _amounts(optimizer, params, rows, columns)
    for index in range(2):
        one = _amounts(optimizer, int(params[index]), int(rows[index]), int(columns[index]))
        assert [float(amount[index]) for amount in together] == pytest.approx(one, rel=1e-12)


def _amounts(optimizer, params, rows, columns):
    return [
        optimizer.state_bytes(params, rows=rows, columns=columns),
        optimizer.moved_bytes(params, rows=rows, columns=columns),
        optimizer.step_flops(params, rows=rows, columns=columns),
        optimizer.temporary_bytes(params),
    ]


def test_kernels_are_launched_once_or_for_each_tensor():
    assert find_optimizer("adamw").num_kernels(300) == 1
    assert find_optimizer("adam-8bit").num_kernels(300) == 300


def test_projections_are_counted_as_products_of_matrices():
    optimizer = replace(find_optimizer("galore"), rank=16)
    flops = optimizer.step_flops(64 * 96, rows=64, columns=96)
    products = 2 * (2 * 64 * 96 * 16)  # [16, 64] x [64, 96] and back
    renewal = 4 * 64 * 96 * 64 / 200
    assert flops == products + renewal + 16 * (16 * 96) + 4 * (64 * 96)


def test_names_are_found_in_any_case_and_unknown_ones_answered_with_the_nearest():
    assert find_optimizer("AdamW") is OPTIMIZERS["adamw"]
    assert find_optimizer(OPTIMIZERS["lion"]) is OPTIMIZERS["lion"]
    with pytest.raises(ValueError, match="unknown optimizer 'adam8bit': did you mean 'adam-8bit'"):
        find_optimizer("adam8bit")


def test_every_optimizer_says_where_it_was_published():
    assert all(optimizer.source for optimizer in OPTIMIZERS.values())
