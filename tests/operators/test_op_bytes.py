"""Bytes are those that really move: rows gathered, numbers picked, repeated operands once, gradients not rewritten."""

from dataclasses import replace
from math import isclose

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lablib.cost import memory_bound_time_s
from lablib.hardware import Device

DEVICE = Device("easy", {"float32": 1e12}, memory_bytes=1e12, memory_bandwidth_bytes_per_s=1e12)
LONG, SHORT = 8, 4  # bytes of an index and of a number


# ---- seconds ----


def test_kernels_reach_their_share_of_the_bandwidth():
    assert memory_bound_time_s(1e9, DEVICE) == 1e-3
    assert isclose(memory_bound_time_s(1e9, replace(DEVICE, memory_efficiency=0.8)), 1e-3 / 0.8, rel_tol=1e-12)


def test_what_fits_in_the_cache_moves_at_its_speed_and_never_slower_than_memory():
    device = replace(DEVICE, cache_bytes=5e7, cache_bandwidth_bytes_per_s=4e12)
    assert isclose(memory_bound_time_s(5e7, device), 5e7 / 4e12, rel_tol=1e-12)
    assert memory_bound_time_s(5e7 + 1, device) == (5e7 + 1) / 1e12
    slow = replace(device, cache_bandwidth_bytes_per_s=1e11)
    assert memory_bound_time_s(1e6, slow) == 1e-6


def test_an_array_of_sizes_takes_what_each_of_them_takes():
    device = replace(DEVICE, cache_bytes=5e7, cache_bandwidth_bytes_per_s=4e12, memory_efficiency=0.9)
    sizes = [0.0, 1e3, 5e7, 6e7, 1e10]
    assert memory_bound_time_s(np.array(sizes), device).tolist() == [memory_bound_time_s(s, device) for s in sizes]


# ---- bytes of an operator ----


@pytest.mark.parametrize("place", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("program", "size_bytes"),
    [
        pytest.param(
            lambda x, i: F.embedding(i, x), 2 * 20 * 30 * SHORT + 20 * LONG, id="embedding: the rows, not the table"
        ),
        pytest.param(lambda x, i: x.index_select(0, i), 2 * 20 * 30 * SHORT + 20 * LONG, id="index_select"),
        pytest.param(lambda x, i: x[i], 2 * 20 * 30 * SHORT + 20 * LONG, id="index"),
        pytest.param(lambda x, i: x.gather(0, i[:, None]), 2 * 20 * SHORT + 20 * LONG, id="gather"),
        pytest.param(
            lambda x, i: x.index_add_(0, i, x.new_empty(20, 30)),
            3 * 20 * 30 * SHORT + 20 * LONG,
            id="index_add_: rows in, and their places read and written",
        ),
        pytest.param(
            lambda x, i: x.index_add(0, i, x.new_empty(20, 30)),
            (2 * 1000 + 3 * 20) * 30 * SHORT + 20 * LONG,
            id="index_add: a copy of everything besides",
        ),
        pytest.param(
            lambda x, i: x.index_put_((i,), x.new_empty(20, 30)), 3 * 20 * 30 * SHORT + 20 * LONG, id="index_put_"
        ),
        pytest.param(
            lambda x, i: x.scatter_(0, i[:, None], 0.0), 2 * 20 * SHORT + 20 * LONG, id="scatter_ of one value"
        ),
        pytest.param(
            lambda x, i: x.scatter_add_(0, i[:, None], x.new_empty(20, 1)),
            3 * 20 * SHORT + 20 * LONG,
            id="scatter_add_",
        ),
        pytest.param(
            lambda x, i: x + x.new_empty(30).expand(1000, 30),
            (2 * 1000 * 30 + 30) * SHORT,
            id="an expanded operand is read once",
        ),
        pytest.param(
            lambda x, i: x * x.new_empty(1000, 1).expand(1000, 30),
            (2 * 1000 * 30 + 1000) * SHORT,
            id="expanded along the last dimension",
        ),
        pytest.param(lambda x, i: x.t().contiguous(), 2 * 1000 * 30 * SHORT, id="a transposed operand is read whole"),
        pytest.param(
            lambda x, i: torch.native_layer_norm(x, [30], None, None, 1e-5),
            (2 * 30 + 2) * 1000 * SHORT,
            id="layer norm: mean and deviation of each row besides",
        ),
        pytest.param(lambda x, i: x.softmax(-1), 2 * 1000 * 30 * SHORT, id="softmax: one pass"),
    ],
)
def test_an_operator_moves_what_it_touches(program, size_bytes, place, calls_of, priced):
    x, i = torch.empty(1000, 30, device=place), torch.zeros(20, dtype=torch.long, device=place)
    assert [cost.size_bytes for _, cost in priced(lambda: program(x, i), DEVICE)] == [size_bytes]


def test_fsdp_copies_its_shards_and_not_the_buffer_they_are_gathered_in(priced):
    import torch.distributed.fsdp._fully_shard._fsdp_collectives  # noqa: F401  (defines the operator)

    shards, buffer = [torch.zeros(60), torch.zeros(40)], torch.empty(8 * 100)
    copy_in = torch.ops.fsdp.all_gather_copy_in.default
    costs = priced(lambda: copy_in(shards, buffer, [60, 40], 100, 3), DEVICE)
    assert [cost.size_bytes for name, cost in costs if name == "fsdp::all_gather_copy_in"] == [2 * 100 * SHORT]


def test_a_loss_reads_one_score_a_row_and_writes_a_whole_gradient(priced):
    scores = torch.zeros(100, 500, requires_grad=True)
    targets = torch.zeros(100, dtype=torch.long)
    costs = {name: cost.size_bytes for name, cost in priced(lambda: F.nll_loss(scores, targets).backward(), DEVICE)}
    assert costs["aten::nll_loss_forward"] == 100 * SHORT + 100 * LONG + 2 * SHORT  # the loss and its weight
    assert costs["aten::nll_loss_backward"] == 100 * 500 * SHORT + 100 * LONG + 2 * SHORT


def test_a_fused_optimizer_reads_four_numbers_a_parameter_and_writes_three(priced):
    params = [torch.zeros(1000, requires_grad=True) for _ in range(3)]
    for param in params:
        param.grad = torch.zeros(1000)
    optimizer = torch.optim.AdamW(params, fused=True)
    costs = {name: cost.size_bytes for name, cost in priced(optimizer.step, DEVICE)}
    assert costs["aten::_fused_adamw_"] == (4 + 3) * 3 * 1000 * SHORT + 3 * SHORT  # and the number of the step of each


def test_a_looped_foreach_and_fused_step_move_less_and_less(priced):
    moved = []
    for is_fused in (False, True):
        param = torch.zeros(10_000, requires_grad=True)
        param.grad = torch.zeros(10_000)
        optimizer = torch.optim.AdamW([param], foreach=not is_fused, fused=is_fused)
        moved.append(sum(cost.size_bytes for _, cost in priced(optimizer.step, DEVICE)))
    assert moved[1] < moved[0] / 2
