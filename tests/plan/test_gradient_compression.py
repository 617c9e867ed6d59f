"""Compressed gradients: the ratios that the papers state, and what they cost."""

from dataclasses import replace
from math import isclose

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.hardware import CLUSTERS
from lablib.models.published import find_transformer
from lablib.models.transformer_sizes import transformer_parameters
from lablib.plan import IDEAL, Parallel, predict, search
from lablib.plan.gradient_compression import COMPRESSIONS, find_compression


@pytest.mark.parametrize(
    ("rows", "columns", "ratio"),
    [(64, 576, 58), (128, 1152, 115), (256, 2304, 230), (512, 2304, 419), (512, 4608, 461), (10, 512, 10)],
)
def test_powersgd_shrinks_the_layers_of_resnet18_as_its_appendix_prints(rows, columns, ratio):
    method = replace(find_compression("powersgd"), rank=1)
    grads = rows * columns
    assert round(4 * grads / method.wire_bytes(grads, rows=rows, columns=columns)) == ratio


@given(rows=st.integers(1, 500), columns=st.integers(1, 500), rank=st.integers(1, 600))
def test_powersgd_sends_two_factors_and_never_of_more_than_the_matrixs_own_rank(rows, columns, rank):
    method = replace(find_compression("powersgd"), rank=rank)
    factors = np.zeros((rows, min(rank, rows, columns))).size + np.zeros((min(rank, rows, columns), columns)).size
    sent = method.wire_bytes(rows * columns, rows=rows, columns=columns)
    assert isclose(sent, 4 * factors, rel_tol=1e-12)


def test_powersgd_sends_vectors_as_they_are():
    assert find_compression("powersgd").wire_bytes(1000) == 4000


def test_one_bit_is_a_sixteenth_of_16_bits_and_with_its_warm_up_a_fifth():
    message = {name: find_compression(name).wire_bytes(336_000_000) for name in ("fp16", "one-bit")}
    share = message["one-bit"] / message["fp16"]
    assert isclose(share, 1 / 16, rel_tol=1e-6)
    # 1-bit Adam: BERT-Large's first 23,000 of 152,000 steps are not compressed; "up to 5 times" less (abstract).
    warm_up = 23 / 152
    assert 1 / (warm_up + (1 - warm_up) * share) == pytest.approx(5, abs=0.2)


def test_int4_sends_a_quarter_of_16_bits_and_its_scales():
    # ZeRO++, table 2: M becomes 0.25 M.
    int4, fp16 = (find_compression(name).wire_bytes(2560) for name in ("int4", "fp16"))
    assert int4 == fp16 / 4 + 4 * 10
    assert find_compression("int8").wire_bytes(257) == 257 + 4 * 2


def test_top_k_sends_a_value_and_an_index_to_everybody():
    method = replace(find_compression("top-k"), ratio=0.001)
    message = method.wire_bytes(1_000_000)
    assert message == 1000 * (4 + 4)
    assert method.sent_bytes(message, 64) == 63 * message
    # Each further rank adds a message: with enough of them nothing is saved.
    plain = find_compression("none")
    assert method.sent_bytes(message, 2000) > plain.sent_bytes(plain.wire_bytes(1_000_000), 2000)


@given(ranks=st.integers(2, 4096), grads=st.integers(1, 10**9))
def test_what_can_be_summed_on_the_way_costs_a_ring_whatever_the_number_of_ranks(ranks, grads):
    for name in ("none", "bf16", "int8", "one-bit", "powersgd"):
        message = find_compression(name).wire_bytes(grads)
        assert isclose(find_compression(name).sent_bytes(message, ranks), 2 * message * (1 - 1 / ranks), rel_tol=1e-9)


def test_nothing_is_packed_where_gradients_go_as_they_are():
    assert find_compression("none").moved_bytes(1000) == 0
    assert find_compression("bf16").moved_bytes(1000, grad_bytes=2) == 0
    assert find_compression("bf16").moved_bytes(1000, grad_bytes=4) == 2 * (4 + 2) * 1000


def test_one_bit_reads_and_writes_gradients_errors_and_few_bits():
    # Gradients in and out, error in and out, bits written, read, summed of 4 ranks.
    moved = find_compression("one-bit").moved_bytes(8_000_000, ranks=4)
    assert moved == pytest.approx((4 + 4 + 8) * 8_000_000 + (3 + 1 / 4) * 1_000_000, rel=1e-6)


def test_top_k_reads_its_gradients_to_choose_and_everybodys_choices():
    # Gradient and error read; their sum written and read four times; the dense result written. Messages: one out, 8 in.
    method = replace(find_compression("top-k"), ratio=0.01)
    moved = method.moved_bytes(1_000_000, ranks=8)
    assert moved == pytest.approx(4 * (2 + 1 + 4 + 1) * 1_000_000 + 9 * (8 * 10_000))


def test_powersgd_moves_its_matrix_nine_times_and_its_factors_twice():
    # Gradient and error read, sum written; sum read for P, for Q; product written; sum, product read, error written.
    moved = find_compression("powersgd").moved_bytes(6000, rows=100, columns=60)
    assert moved == pytest.approx(4 * 9 * 6000 + 2 * (4 * 2 * (100 + 60)))


def test_powersgd_multiplies_the_matrix_three_times():
    method = replace(find_compression("powersgd"), rank=2)
    products = 3 * 2 * 100 * 60 * 2  # M Q, its transpose with P, P with Q's transpose
    assert method.flops(6000, rows=100, columns=60) == pytest.approx(products + 2 * 100 * 2**2)


def packing_s(rank: int) -> float:
    method = replace(find_compression("powersgd"), rank=rank)
    split = Parallel(data=8)
    return predict("llama-2-7b", "dgx-a100", split, 8, derating=IDEAL, compression=method).parts["packing"]


def test_powersgds_products_take_their_time():
    # The bytes of the factors are next to nothing: a high rank is slow by its FLOPs, in 32 bits.
    layers = transformer_parameters(find_transformer("llama-2-7b")).layers
    rate = CLUSTERS["dgx-a100"].device.matmul_rate("float32")
    assert packing_s(512) > 6 * 512 * layers / rate > 2 * packing_s(2) > 0


def test_error_feedback_keeps_a_number_for_each_gradient_and_for_each_sum_that_a_rank_owns():
    kept = {name: method.memory_bytes(8000, ranks=8) for name, method in COMPRESSIONS.items()}
    assert kept == {
        "none": 0, "fp16": 0, "bf16": 0, "int8": 0, "int4": 0, "one-bit": 36_000, "top-k": 32_000, "powersgd": 32_000
    }  # fmt: skip


@pytest.mark.parametrize("name", list(COMPRESSIONS))
def test_arrays_cost_what_each_of_their_numbers_costs(name):
    method = find_compression(name)
    grads, rows, columns = np.array([640, 64_000]), np.array([8, 80]), np.array([80, 800])
    together = _amounts(method, grads, rows, columns, np.array([2, 64]))
    for index, ranks in enumerate((2, 64)):
        one = _amounts(method, int(grads[index]), int(rows[index]), int(columns[index]), ranks)
        assert [float(amount[index]) for amount in together] == pytest.approx(one, rel=1e-12)


def _amounts(method, grads, rows, columns, ranks):
    message = method.wire_bytes(grads, rows=rows, columns=columns)
    return [
        message,
        method.sent_bytes(message, ranks),
        method.moved_bytes(grads, ranks=ranks, rows=rows, columns=columns),
        method.flops(grads, rows=rows, columns=columns),
        method.memory_bytes(grads, ranks=ranks),
    ]


def test_names_are_found_and_bad_ones_answered():
    assert find_compression(None).name == "none"
    assert find_compression("PowerSGD") is COMPRESSIONS["powersgd"]
    with pytest.raises(ValueError, match="unknown gradient compression 'topk': did you mean 'top-k'"):
        find_compression("topk")


@pytest.mark.parametrize(
    "asked", [{"parallel": Parallel(data=8, zero_stage=3)}, {"parallel": Parallel(data=8), "trainable": "lora"}]
)
@pytest.mark.parametrize("method", [name for name in COMPRESSIONS if name != "none"])
def test_where_nothing_could_be_compressed_a_method_is_refused(asked, method):
    with pytest.raises(ValueError, match="before ZeRO-3 and without lora"):
        predict("gpt2", "dgx-a100", batch=8, compression=method, **asked)
    assert predict("gpt2", "dgx-a100", batch=8, **asked).step_time_s > 0


def test_a_search_with_compression_tries_the_stages_that_can_have_it():
    found = search("gpt2", "dgx-a100", batch=8, gpus=8, compression="powersgd")
    assert {found.plans[int(number)].parallel.zero_stage for number in found.order} == {0, 1, 2}
    with pytest.raises(ValueError, match="before ZeRO-3"):
        search("gpt2", "dgx-a100", batch=8, gpus=8, compression="powersgd", zero_stage=3)


def test_parameters_that_are_not_split_cannot_be_kept():
    with pytest.raises(ValueError, match="reshard_after_forward=False is a kind of ZeRO-3"):
        Parallel(data=8, reshard_after_forward=False)
