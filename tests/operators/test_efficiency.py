"""The cost model of GPU operators limited by memory, and of attention, against an H200; two whole training steps."""

import json
from collections import defaultdict
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from lablib import launch, phase
from lablib.cost.attention import attention_time_s
from lablib.cost.efficiency import RATES, operator_time_s
from lablib.cost.matmul import matmul_compute_s
from lablib.cost.memory import stream_time_s
from lablib.hardware.devices import DEVICES
from lablib.models.gpt import GPT, GPTConfig, next_token_loss
from lablib.operators.op import is_free, op_cost, operator_kind
from lablib.sim.operators.gpu_kernels import kernels_of

_HEAD, *_ROWS = map(json.loads, (Path(__file__).parent / "measured" / "h200.jsonl").read_text("utf-8").splitlines())
H200 = DEVICES["H200-SXM"]
# A backward row as short as this is autograd's own work on the host.
_HOST_US = 100
_STEPS = {row["tag"]: row for row in _ROWS if row["kind"] == "step"}


class _Priced(TorchDispatchMode):
    """Adds up the prices of the operators that are dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.time_s = 0.0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not is_free(func):
            self.time_s += op_cost(func, args, kwargs or {}, out, H200).time_s
        return out


def _x(shape, dtype, requires_grad=False):
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=requires_grad)


def _backward(y, inputs):
    gradient = _x(y.shape, y.dtype)
    return lambda: torch.autograd.grad(y, inputs, gradient)


_FORWARD = {
    "copy_": lambda x: torch.empty_like(x).copy_(x),
    "mul scalar": lambda x: x * 2.0,
    "gelu": F.gelu,
    "silu": F.silu,
    "exp": torch.exp,
    "dropout": lambda x: torch.native_dropout(x, 0.1, True),
    "sum all": torch.sum,
    "to float32": lambda x: x.to(torch.float32),
    "to bfloat16": lambda x: x.to(torch.bfloat16),
    "masked_fill": lambda x: x.masked_fill(x > 0, 0.0),
    "transpose copy": lambda x: x.t().contiguous(),
    "sum rows (dim 0)": lambda x: x.sum(0),
    "sum columns (dim -1)": lambda x: x.sum(-1),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
}


def _program(row):
    """The measured program, on tensors without data; None: not here."""
    op, dtype = row["op"], getattr(torch, row["dtype"])
    name, _, is_backward = op.partition(" backward")
    if row["kind"] == "gather":
        vocab, width, tokens = row["shape"]
        table, indices = _x((vocab, width), dtype, True), _x(tokens, torch.long)
        return _backward(F.embedding(indices, table), table) if " back" in op else lambda: F.embedding(indices, table)
    x = _x(row["shape"], dtype, " backward" in op)
    columns = row["shape"][-1:]
    if name in ("layer_norm", "rms_norm"):
        parameters = [_x(columns, dtype, True) for _ in range(1 + (name == "layer_norm"))]
        norm = partial(getattr(F, name), x, columns, *parameters)
        return _backward(norm(), (x, *parameters)) if " backward" in op else norm
    if name == "cross_entropy":
        targets = _x(row["shape"][0], torch.long)
        if " backward" in op:
            loss = F.cross_entropy(x, targets)
            return lambda: torch.autograd.grad(loss, x)
        return lambda: F.cross_entropy(x, targets)
    if name not in _FORWARD:
        return None
    if " backward" in op:
        return _backward(_FORWARD[name](x), x)
    return lambda: _FORWARD[name](x)


def _errors() -> dict[str, list[float]]:
    errors = defaultdict(list)
    for row in _ROWS:
        if row["kind"] in ("step", "attention") or (" backward" in row["op"] and row["us"] < _HOST_US):
            continue
        if program := _program(row):
            with _Priced() as priced:
                program()
            errors[row["op"]].append(priced.time_s * 1e6 / row["us"] - 1)
    return errors


with kernels_of(H200):
    ERRORS = _errors()


@pytest.mark.parametrize("op", ERRORS)
def test_each_kind_of_operator_is_priced_within_a_quarter(op):
    assert median(map(abs, ERRORS[op])) <= 0.25, ERRORS[op]


def test_every_kind_of_the_table_is_measured_or_named_as_its_relative():
    assert len(ERRORS) >= 24 and len(RATES) == 16


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_attention_is_priced_within_a_fifth_at_every_length(direction):
    for row in _ROWS:
        if row["kind"] == "attention" and row["op"] == f"cuDNN {direction}":
            batch, heads, length, width = row["shape"]
            sizes = (batch, heads, length, length, width)
            time_s = attention_time_s(*sizes, "bfloat16", H200, causal=True, backward=direction == "backward")
            assert (time_s + H200.kernel_overhead_s) * 1e6 == pytest.approx(row["us"], rel=0.2), row


@given(
    kind=st.sampled_from(sorted(RATES)),
    size_bytes=st.integers(2**28, 2**34),
    share=st.floats(0.5, 8.0),
    width=st.sampled_from([1, 2, 4]),
)
def test_other_gpus_scale_by_bandwidth_and_processors_stream(kind, size_bytes, share, width):
    """Twice the bandwidth, half the time, but for the part without bytes; a CPU has no such rates."""
    elements = size_bytes // width
    faster = replace(H200, memory_bandwidth_bytes_per_s=share * H200.memory_bandwidth_bytes_per_s)
    own_s, faster_s = (operator_time_s(kind, size_bytes, elements, d) - RATES[kind].extra_s for d in (H200, faster))
    assert own_s == pytest.approx(share * faster_s, rel=1e-6)
    assert own_s >= stream_time_s(size_bytes, H200) * (1 - 1e-9)
    cpu = DEVICES["laptop-core"]
    assert operator_time_s(kind, size_bytes, elements, cpu) == stream_time_s(size_bytes, cpu)


@given(rows=st.integers(2, 64), columns=st.integers(2, 64), dtype=st.sampled_from([torch.bfloat16, torch.float32]))
def test_the_kind_of_a_copy_and_of_a_sum_follows_from_operands_and_result(rows, columns, dtype):
    x, aten = _x((rows, columns), dtype), torch.ops.aten
    wide, whole = x.to(torch.float64), x.t().contiguous()
    assert operator_kind(aten._to_copy.default, (x,), wide) == "widening"
    assert operator_kind(aten._to_copy.default, (wide,), x) == "_to_copy"
    assert operator_kind(aten.clone.default, (x.t(),), whole) == "transposed copy"
    assert operator_kind(aten.clone.default, (x,), x.clone()) == "clone"
    repeated = x[:, None].expand(rows, 3, columns)
    assert operator_kind(aten.clone.default, (repeated,), repeated.contiguous()) == "clone"
    assert operator_kind(aten.sum.dim_IntList, (x, [0]), x.sum(0)) == "sum over rows"
    assert operator_kind(aten.sum.dim_IntList, (x.expand(3, rows, columns), [2]), x.sum(1)) == "sum"
    assert operator_kind(aten.gt.Scalar, (x, 0), x > 0) == "mask"


def _train(row) -> None:
    config = GPTConfig(row["layers"], row["d_model"], row["heads"], row["vocab"], row["seq"])
    with phase("setup"):
        model = GPT(config, dtype=torch.bfloat16)
        optimizer = torch.optim.AdamW(model.parameters(), fused=row["fused"] or None)
        tokens = torch.zeros(row["batch"], row["seq"], dtype=torch.long)
        next_token_loss(model(tokens), tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
    next_token_loss(model(tokens), tokens).backward()
    optimizer.step()


@pytest.mark.parametrize("tag", ["small eager", "small eager fused", "big eager"])
def test_a_whole_step_on_an_h200(tag):
    """Time within 3%, and peak memory within 1%."""
    row = _STEPS[tag]
    run = launch(_train, row, ranks=1, cluster="hgx-h200", fidelity="shapes")
    assert run.timeline.without("setup").makespan_s == pytest.approx(row["step_s"], rel=0.03)
    assert run.memory.peak_bytes(0) == pytest.approx(row["peak_bytes"], rel=0.01)


@given(
    m=st.integers(1, 4096), n=st.integers(1, 4096), k=st.integers(1, 4096), share=st.floats(0.1, 1.0, exclude_min=True)
)
def test_the_share_within_a_step_slows_the_arithmetic_of_products_alone(m, n, k, share):
    """Not their bytes, nor attention, nor the operators limited by memory."""
    alone, in_step = replace(H200, step_share=1.0), replace(H200, step_share=share)
    aten = torch.ops.aten

    def seconds(op, args, device):
        return op_cost(op, args, {}, op(*args), device).time_s - device.kernel_overhead_s

    a, b = _x((m, k), torch.bfloat16), _x((k, n), torch.bfloat16)
    compute_s = matmul_compute_s(m, n, k, "bfloat16", alone)
    bytes_s = stream_time_s(2 * (m * k + k * n + m * n), alone)
    assert seconds(aten.mm.default, (a, b), in_step) == pytest.approx(max(compute_s / share, bytes_s))
    assert seconds(aten.mul.Tensor, (a, a), in_step) == seconds(aten.mul.Tensor, (a, a), alone)
    q = _x((1, 2, 128, 64), torch.bfloat16)
    attention = aten._scaled_dot_product_flash_attention_for_cpu.default
    assert seconds(attention, (q, q, q), in_step) == seconds(attention, (q, q, q), alone)
