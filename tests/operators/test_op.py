"""The roofline of an operator: FLOPs by formula, bytes by operand, and the peak of the dtype that computes."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import isclose
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, register_flop_formula

from lablib.cost import matmul_time_s
from lablib.hardware import DEVICES, Device
from lablib.operators import OpCost, op_cost
from lablib.operators.op import _MAY_BE_IN_TABLE, _TABLE, is_free, op_time_s

# Figures that keep mental arithmetic easy: 1 TFLOP/s peak of float32 at half efficiency, 1 TB/s, no overhead.
DEVICE = Device(
    "easy",
    peak_flops_per_s={
        "float64": 0.5e12,
        "float32": 1e12,
        "tfloat32": 8e12,
        "float16": 16e12,
        "bfloat16": 16e12,
        "float8": 32e12,
    },
    memory_bytes=1e12,
    memory_bandwidth_bytes_per_s=1e12,
    matmul_efficiency=0.5,
)
DIMS = st.integers(1, 2048)


class Recorder(TorchDispatchMode):
    """Every operator below autograd, with its cost."""

    def __init__(self, device: Device):
        super().__init__()
        self.device = device
        self.costs: list[tuple[str, OpCost]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not is_free(func):
            cost = op_cost(func, args, kwargs or {}, out, self.device)
            assert op_time_s(func, args, kwargs or {}, out, self.device) == cost.time_s
            self.costs.append((func._schema.name, cost))
        return out


def costs_of(program: Callable[[], Any], device: Device = DEVICE) -> list[tuple[str, OpCost]]:
    with Recorder(device) as recorder:
        program()
    return recorder.costs


def cost_of(program: Callable[[], Any], device: Device = DEVICE) -> OpCost:
    """The cost of a program that is one kernel."""
    costs = costs_of(program, device)
    assert len(costs) == 1, [name for name, _ in costs]
    return costs[0][1]


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.fixture
def float32_precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


# ---- FLOPs ----


@given(DIMS, DIMS, DIMS)
def test_a_matrix_product_has_two_flops_for_each_multiply_add(m, n, k):
    cost = cost_of(lambda: torch.mm(meta(m, k), meta(k, n)))
    assert cost.flops == 2 * m * n * k and cost.size_bytes == 4 * (m * k + k * n + m * n)


@given(DIMS, DIMS, DIMS)
def test_a_product_with_a_bias_has_the_flops_of_the_product(m, n, k):
    cost = cost_of(lambda: torch.addmm(meta(n), meta(m, k), meta(k, n)))
    assert cost.flops == 2 * m * n * k and cost.size_bytes == 4 * (n + m * k + k * n + m * n)


@given(st.integers(1, 16), DIMS, DIMS, DIMS)
def test_a_batch_of_products_is_that_many_products(b, m, n, k):
    cost = cost_of(lambda: torch.bmm(meta(b, m, k), meta(b, k, n)))
    assert cost.flops == 2 * b * m * n * k and cost.size_bytes == 4 * b * (m * k + k * n + m * n)


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 24), st.integers(1, 24), st.integers(1, 16))
def test_attention_is_two_products_forward_and_five_backward(b, h, q_len, k_len, d):
    q = torch.empty(b, h, q_len, d, requires_grad=True)
    k, v = (torch.empty(b, h, k_len, d, requires_grad=True) for _ in range(2))
    grad = torch.empty(b, h, q_len, d)
    outs: list[torch.Tensor] = []
    forward = costs_of(lambda: outs.append(F.scaled_dot_product_attention(q, k, v)))
    backward = costs_of(lambda: torch.autograd.grad(outs[0], (q, k, v), grad))
    assert sum(cost.flops for _, cost in forward) == 2 * (2 * b * h * q_len * k_len * d)
    # The scores once more (they are not kept), then the gradients of v, of the scores, of q and of k.
    assert sum(cost.flops for _, cost in backward) == 5 * (2 * b * h * q_len * k_len * d)


def test_attention_of_shared_heads_has_the_flops_of_the_query_heads():
    q, kv = torch.empty(2, 8, 16, 4, requires_grad=True), torch.empty(2, 2, 16, 4, requires_grad=True)
    costs = costs_of(lambda: F.scaled_dot_product_attention(q, kv, kv, enable_gqa=True).sum().backward())
    assert sum(cost.flops for _, cost in costs) == (2 + 5) * (2 * 2 * 8 * 16 * 16 * 4)


def test_attention_with_dropout_is_made_of_products_and_counts_the_same():
    q = torch.empty(2, 3, 8, 4)
    costs = costs_of(lambda: F.scaled_dot_product_attention(q, q, q, dropout_p=0.5))
    assert sum(cost.flops for _, cost in costs) == 2 * (2 * 2 * 3 * 8 * 8 * 4)


def test_a_convolution_is_a_product_at_each_output_pixel():
    cost = cost_of(lambda: F.conv2d(meta(2, 3, 10, 10), meta(8, 3, 3, 3)))
    assert cost.flops == 2 * (2 * 8 * 8) * 8 * (3 * 3 * 3)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(6, 16), (2, 6, 16), (2, 3, 6, 16)])
def test_a_linear_layer_is_one_product_forward_and_two_backward(shape, bias):
    layer, x = torch.nn.Linear(16, 32, bias=bias), torch.ones(shape, requires_grad=True)
    rows = x.numel() // 16
    outs: list[torch.Tensor] = []
    costs = costs_of(lambda: outs.append(layer(x)))
    product = 2 * rows * 16 * 32
    # One kernel: a batch of matrices is a longer matrix, and to see it so copies nothing.
    assert [cost.flops for _, cost in costs] == [product]
    grad = torch.ones(*shape[:-1], 32)
    backward = costs_of(lambda: torch.autograd.grad(outs[0], [x, *layer.parameters()], grad))
    assert sum(cost.flops for _, cost in backward) == 2 * product


# ---- time ----


@given(DIMS, DIMS, DIMS, st.sampled_from(sorted(DEVICES)))
def test_an_operator_takes_the_longer_of_arithmetic_and_memory_and_the_overhead(m, n, k, name):
    device = replace(DEVICES[name], step_share=1.0)
    cost = cost_of(lambda: torch.mm(meta(m, k), meta(k, n)), device)
    assert isclose(cost.time_s, matmul_time_s(m, n, k, "float32", device) + device.kernel_overhead_s, rel_tol=1e-12)
    arithmetic_s = 2 * m * n * k / device.matmul_rate("float32")
    memory_s = 4 * (m * k + k * n + m * n) / (device.memory_bandwidth_bytes_per_s * device.memory_efficiency)
    assert cost.time_s >= (max(arithmetic_s, memory_s) + device.kernel_overhead_s) * (1 - 1e-12)


def test_a_large_product_is_limited_by_arithmetic_and_a_thin_one_by_memory():
    square = cost_of(lambda: torch.mm(meta(1000, 1000), meta(1000, 1000)))
    assert isclose(square.time_s, 2e9 / 0.5e12, rel_tol=1e-12)
    thin = cost_of(lambda: torch.mm(meta(1, 1000), meta(1000, 1000)))
    assert isclose(thin.time_s, 4 * (1000 + 1000 * 1000 + 1000) / 1e12, rel_tol=1e-12)


def test_an_h100_multiplies_matrices_of_bfloat16_at_the_measured_rate():
    # 4096^3: 32 x 16 tiles of 128 x 256 on 132 cores are 4 waves of 3.88, and 4096 steps lose 160 to depth.
    square = meta(4096, 4096, dtype=torch.bfloat16)
    product = cost_of(lambda: torch.mm(square, square), replace(DEVICES["H100-80GB-SXM"], step_share=1.0))
    large_s = 137.438953472e9 / 794.5e12  # 2 * 4096^3 at what a product 8,192 deep reaches in full waves
    shape = (4 * 132) / (32 * 16) * (1 + 160 / 4096) / (1 + 160 / 8192)
    assert isclose(product.time_s, large_s * shape + 5e-6, rel_tol=1e-12)


# ---- alignment ----

TILED = replace(DEVICE, matmul_tile=(128, 256), num_cores=10, memory_bandwidth_bytes_per_s=1e18)


def slower(program: Callable[[], Any]) -> list[float]:
    """How many times as long each of a program's products takes on a device that needs aligned rows."""
    either = [costs_of(program, replace(TILED, row_alignment_bytes=needed)) for needed in (16, 0)]
    return [
        aligned.time_s / any_row.time_s for (_, aligned), (_, any_row) in zip(*either, strict=True) if any_row.flops
    ]


@pytest.mark.parametrize(
    ("tokens", "d_in", "d_out", "share"),
    [
        pytest.param(1000, 1024, 512, 1.0, id="aligned"),
        pytest.param(999, 1024, 512, 1.0, id="tokens may be odd"),
        pytest.param(1000, 1020, 512, 0.67, id="a width of 4 numbers more"),
        pytest.param(1000, 1024, 511, 0.29, id="an odd width"),
        pytest.param(1000, 1022, 511, 0.29, id="the worse of two"),
    ],
)
def test_each_of_a_linear_layers_three_products_loads_rows_of_its_widths_and_none_of_tokens(tokens, d_in, d_out, share):
    x, w, grad = (meta(*shape, dtype=torch.bfloat16) for shape in ((tokens, d_in), (d_out, d_in), (tokens, d_out)))
    ratios = slower(lambda: (torch.mm(x, w.t()), torch.mm(grad, w), torch.mm(grad.t(), x)))
    assert ratios == pytest.approx([1 / share] * 3, rel=1e-9)


def test_a_slice_is_loaded_by_the_rows_of_the_matrix_it_was_cut_from():
    whole, other = meta(512, 1004, dtype=torch.bfloat16), meta(1000, 512, dtype=torch.bfloat16)
    assert slower(lambda: torch.mm(whole[:, :1000], other)) == pytest.approx([1 / 0.67], rel=1e-9)
    assert slower(lambda: torch.mm(meta(512, 1000, dtype=torch.bfloat16), other)) == pytest.approx([1.0], rel=1e-9)


# ---- the peak of the dtype ----


def product_s(dtype: torch.dtype, device: Device = DEVICE) -> float:
    return cost_of(lambda: torch.mm(meta(2048, 2048, dtype=dtype), meta(2048, 2048, dtype=dtype)), device).time_s


@pytest.mark.parametrize(
    ("dtype", "peak"), [(torch.float64, 0.5e12), (torch.float32, 1e12), (torch.float16, 16e12), (torch.bfloat16, 16e12)]
)
def test_each_dtype_computes_at_its_own_peak(dtype, peak):
    assert isclose(product_s(dtype), 2 * 2048**3 / (peak * 0.5), rel_tol=1e-12)


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_float32_computes_at_the_peak_of_tfloat32_where_the_program_allows_it(precision, float32_precision):
    torch.set_float32_matmul_precision("highest")
    assert isclose(product_s(torch.float32), 2 * 2048**3 / 0.5e12, rel_tol=1e-12)
    torch.set_float32_matmul_precision(precision)
    assert isclose(product_s(torch.float32), 2 * 2048**3 / 4e12, rel_tol=1e-12)
    assert isclose(product_s(torch.float64), 2 * 2048**3 / 0.25e12, rel_tol=1e-12)


def scaled_product_s(device: Device) -> float:
    n = 2048
    a = meta(n, n, dtype=torch.float8_e4m3fn)
    b = meta(n, n, dtype=torch.float8_e4m3fn).t()
    one = meta()
    costs = costs_of(lambda: torch.ops.aten._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16), device)
    assert [cost.flops for _, cost in costs] == [2 * n**3]
    return costs[0][1].time_s


def test_float8_computes_at_its_own_peak_and_where_there_is_none_at_that_of_float32():
    assert isclose(scaled_product_s(DEVICE), 2 * 2048**3 / 16e12, rel_tol=1e-12)
    a100 = DEVICES["A100-80GB-SXM"]  # no unit for 8 bits
    float32_s = matmul_time_s(2048, 2048, 2048, "float32", a100)
    assert isclose(scaled_product_s(a100), float32_s + 5e-6, rel_tol=1e-12) and float32_s > 2 * 2048**3 / 19.5e12


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_dtype_without_a_unit_computes_at_the_peak_of_float32(dtype):
    plain = Device("plain", {"float32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e15)
    assert isclose(product_s(dtype, plain), 2 * 2048**3 / 1e12, rel_tol=1e-12)


# ---- bytes ----


@pytest.mark.parametrize(
    ("program", "numbers"),
    [
        pytest.param(lambda x, y: x + y, 3, id="add: two in, one out"),
        pytest.param(lambda x, y: torch.relu(x), 2, id="relu: one in, one out"),
        pytest.param(lambda x, y: x.add_(y), 3, id="in-place add: two in, one out"),
        pytest.param(lambda x, y: x.mul_(2.0), 2, id="in-place scaling: one in, one out"),
        pytest.param(lambda x, y: x.copy_(y), 2, id="copy: the target is not read"),
        pytest.param(lambda x, y: x.zero_(), 1, id="zero: nothing is read"),
        pytest.param(lambda x, y: x.fill_(1.0), 1, id="fill: nothing is read"),
        pytest.param(lambda x, y: torch.zeros_like(x), 1, id="zeros_like: only the shape is read"),
        pytest.param(lambda x, y: x.new_zeros(x.shape), 1, id="new_zeros: nothing is read"),
        pytest.param(lambda x, y: x.clone(), 2, id="clone"),
        pytest.param(lambda x, y: torch.cat([x, y]), 4, id="cat: every part in, all of them out"),
        pytest.param(lambda x, y: torch.where(x > 0, x, y), None, id="where: two kernels"),
        pytest.param(lambda x, y: torch.add(x, x, out=y), 3, id="out=: written, not read"),
        pytest.param(
            lambda x, y: torch.ops.aten._foreach_add_([x], [y]), 3, id="foreach, in place: writes, returns nothing"
        ),
        pytest.param(lambda x, y: torch.ops.aten._foreach_add([x, x], [y, y]), 6, id="foreach: lists of operands"),
    ],
)
def test_an_operator_limited_by_memory_moves_each_operand_once(program, numbers):
    x, y = torch.ones(1000), torch.ones(1000)
    costs = costs_of(lambda: program(x, y))
    if numbers is None:  # x > 0 writes bytes, 1 a number; where reads them and two operands and writes one
        assert [cost.size_bytes for _, cost in costs] == [5000, 13000]
        return
    assert [cost.size_bytes for _, cost in costs] == [4000 * numbers]
    assert costs[0][1].flops == 0 and isclose(costs[0][1].time_s, 4000 * numbers / 1e12, rel_tol=1e-12)


def test_half_the_bits_are_half_the_bytes():
    narrow, wide = (torch.ones(100, dtype=dtype) for dtype in (torch.bfloat16, torch.float32))
    assert 2 * cost_of(lambda: torch.relu(narrow)).size_bytes == cost_of(lambda: torch.relu(wide)).size_bytes == 800


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(lambda x: x.view(-1), id="view"),
        pytest.param(lambda x: x.reshape(2, -1), id="reshape"),
        pytest.param(lambda x: x.t(), id="t"),
        pytest.param(lambda x: x.mT, id="mT"),
        pytest.param(lambda x: x.permute(1, 0), id="permute"),
        pytest.param(lambda x: x[1:3], id="slice"),
        pytest.param(lambda x: x[0], id="select"),
        pytest.param(lambda x: x.unsqueeze(0).squeeze(0), id="squeeze"),
        pytest.param(lambda x: x.expand(3, *x.shape), id="expand"),
        pytest.param(lambda x: x.split(2), id="split"),
        pytest.param(lambda x: x.chunk(2), id="chunk"),
        pytest.param(lambda x: x.unbind(), id="unbind"),
        pytest.param(lambda x: x.diagonal(), id="diagonal"),
        pytest.param(lambda x: x.unfold(0, 2, 1), id="unfold"),
        pytest.param(lambda x: x.detach(), id="detach"),
        pytest.param(lambda x: x.contiguous(), id="contiguous, which it is"),
        pytest.param(lambda x: x.to(x.dtype), id="to its own dtype"),
        pytest.param(lambda x: torch.view_as_real(torch.empty(2, dtype=torch.complex64)), id="view_as_real"),
        pytest.param(lambda x: torch.empty(5), id="empty"),
        pytest.param(lambda x: torch.empty_like(x), id="empty_like"),
        pytest.param(lambda x: x.new_empty(4), id="new_empty"),
        pytest.param(lambda x: torch.empty_strided((2, 2), (2, 1)), id="empty_strided"),
        pytest.param(lambda x: torch.empty(3, 4).t_(), id="t in place"),
        pytest.param(lambda x: torch.empty(3, 4).unsqueeze_(0).squeeze_(0), id="squeeze in place"),
        pytest.param(lambda x: torch.empty(3).detach_(), id="detach in place"),
        pytest.param(lambda x: torch.empty(3).resize_(4), id="resize"),
        pytest.param(lambda x: torch.ops.aten._unsafe_view(x, [-1]), id="the view of a batched product"),
        pytest.param(lambda x: torch.empty(1).item(), id="item"),
    ],
)
def test_a_view_or_a_reservation_of_memory_is_free(program):
    assert costs_of(lambda: program(torch.empty(4, 4))) == []


def test_a_reshape_that_must_copy_is_paid():
    cost = cost_of(lambda: torch.empty(4, 8).t().reshape(-1))
    assert cost.size_bytes == 2 * 4 * 32


def test_tensors_without_storage_cost_what_real_ones_cost():
    def program(device: str) -> None:
        x = torch.empty(16, 16, device=device)
        (x @ x + x).softmax(0)

    assert costs_of(lambda: program("cpu")) == costs_of(lambda: program("meta"))


def test_only_names_that_torchs_table_of_flops_may_have_lead_to_its_import():
    """It imports Triton, which takes as long as the rest of a first launch."""
    in_table = [op for op in flop_registry if isinstance(op, torch._ops.OpOverloadPacket)]
    assert len(in_table) > 15 and all(_MAY_BE_IN_TABLE.search(op.__name__) for op in in_table)
    program = "import sys, torch; from lablib.operators.op import has_arithmetic as has; ops = torch.ops.aten; "
    asked = "print(has(ops.add.Tensor), has(ops.all.default), {table!r} in sys.modules, has(ops.mm.default))"
    told = subprocess.run(
        [sys.executable, "-c", program + asked.format(table=_TABLE)], capture_output=True, text=True, check=True
    )
    assert told.stdout.split() == ["False", "False", "False", "True"]


def test_an_operator_of_ones_own_in_torchs_table_has_arithmetic():
    with torch.library._scoped_library("lablib_test", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        register_flop_formula(torch.ops.lablib_test.twice)(lambda x_shape, out_shape=None, **_: 7)
        try:
            x = torch.ones(3)
            assert op_cost(torch.ops.lablib_test.twice.default, (x,), {}, x, DEVICES["A100-80GB-SXM"]).flops == 7
        finally:
            del flop_registry[torch.ops.lablib_test.twice]
