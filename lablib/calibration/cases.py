"""Benchmark programs of a device, each one kind of work at one size.

A case is plain data, so that it can be sent to another process. `program_of` makes the timed program; `priced_ops` runs
the same program on meta tensors and keeps its dispatched operators, which the cost model prices as the simulator would:
prediction and measurement are of the same program.

    dispatch      one operation of a few numbers, repeated: only its launch
    program       small operations as in real programs: a layer, and a model of modules, forward and backward
    memory        copies and additions from a few kilobytes to far beyond the cache, into old memory and into new
    elementwise   functions, normalizations, attention: on a CPU their arithmetic takes longer than their bytes
    matmul        products: square, thin, tall, of little and of much depth, batched; for each dtype

On a CPU the calls of a case take turns on many operands, and their results are kept for as many calls: a program's
weights and activations were last used a step ago, and are not in the core's cache. One pair of operands, used again and
again, makes a product of 1 MB 10 to 20% faster, and an addition twice as fast. Python's code and data leave the cache,
too: a small operation between large ones takes half as long again, so the programs copy 1 MB in between ("cold").
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
import torch.nn.functional as F

from lablib.hardware.device import Device
from lablib.operators.mode import OperatorMode
from lablib.operators.op import is_free, op_time_s
from lablib.torch_compat import flash_attention_for_cpu, flash_attention_for_cpu_backward, tree_map_only

PricedOp = tuple[Any, tuple, dict, Any]  # operator, arguments, keyword arguments, result
CHAIN = 10  # operations of a chain
_COLD_BYTES = 32e6  # operands that take turns: many times a core's private cache (L2, 1 or 2 MB)
_MOST_TURNS = 64
_EVICTED = 2**18  # float32 numbers: 1 MB, read and written


@dataclass(frozen=True, slots=True)
class BenchmarkCase:
    """One benchmark."""

    part: str  # "dispatch", "program", "memory", "elementwise" or "matmul"
    kind: str  # a key of `PROGRAMS`
    shape: tuple[int, ...]  # of its operands: elements, or (rows, depth, columns), with the batch first if there is one
    dtype: str = "float32"  # a key of `Device.peak_flops_per_s`

    def __str__(self) -> str:
        return f"{self.kind} {' x '.join(map(str, self.shape))} {self.dtype}"


def program_of(case: BenchmarkCase, device: torch.device) -> Callable[[], Any]:
    """The program of a case, with operands on `device`."""
    return PROGRAMS[case.kind](case, device)


def priced_ops(case: BenchmarkCase) -> list[PricedOp]:
    """Every operator that one run of the case dispatches and the cost model prices, on meta tensors."""
    program, recorder = program_of(case, torch.device("meta")), _Recorder()
    with precision_of(case), recorder:
        program()
    return recorder.ops


def predicted_s(ops: list[PricedOp], device: Device) -> float:
    return sum(op_time_s(*op, device) for op in ops)


@contextmanager
def precision_of(case: BenchmarkCase) -> Iterator[None]:
    """float32 products run as tfloat32 if the case says so."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if case.dtype == "tfloat32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class _Recorder(OperatorMode):
    """Keeps the priced operators."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[PricedOp] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if not is_free(func):
            # Copies: autograd clones a gradient with another reference, which would add an operator.
            self.ops.append((func, *tree_map_only(torch.Tensor, _shape_of, (args, kwargs, out))))
        return out


def _shape_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with the same price."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _tensor(shape: tuple[int, ...], case: BenchmarkCase, device: torch.device) -> torch.Tensor:
    name = "float32" if case.dtype == "tfloat32" else case.dtype
    return torch.rand(shape, device=device).to(getattr(torch, name))


def _in_turns(
    function: Callable[..., Any], operands: Callable[[], Sequence[torch.Tensor]], device: torch.device
) -> Callable[[], Any]:
    """The program that calls `function` on one set of operands after the other, and keeps as many results."""
    first = operands()
    if device.type != "cpu":  # meta: for pricing; on a GPU operands are not cold
        return lambda: function(*first)
    turns = max(1, min(_MOST_TURNS, int(_COLD_BYTES / sum(x.nbytes for x in first))))
    sets, kept = cycle([first, *(operands() for _ in range(turns - 1))]), deque[Any](maxlen=turns)
    for _ in range(2 * turns):  # until results reuse older memory: new pages are the system's work, and rare
        kept.append(function(*next(sets)))
    return lambda: kept.append(function(*next(sets)))


def _on(function: Callable[..., Any], operands: int = 1) -> Callable[[BenchmarkCase, torch.device], Callable[[], Any]]:
    """The program that calls `function` on tensors of the case's shape."""

    def make(case: BenchmarkCase, device: torch.device) -> Callable[[], Any]:
        return _in_turns(function, lambda: [_tensor(case.shape, case, device) for _ in range(operands)], device)

    return make


def _layer_norm_backward(case: BenchmarkCase, device: torch.device) -> Callable[[], Any]:
    shape, width = case.shape, case.shape[-1:]
    mean, weight = _tensor((*shape[:-1], 1), case, device), _tensor(width, case, device)

    def backward(grad: torch.Tensor, x: torch.Tensor) -> Any:
        return torch.ops.aten.native_layer_norm_backward(grad, x, width, mean, mean, weight, weight, [True] * 3)

    return _in_turns(backward, lambda: [_tensor(shape, case, device) for _ in range(2)], device)


def _attention_backward(case: BenchmarkCase, device: torch.device) -> Callable[[], Any]:
    def operands() -> list[torch.Tensor]:
        q, k, v = (_tensor(case.shape, case, device) for _ in range(3))
        if device.type == "meta":
            return [q, q, k, v, torch.empty_like(q), torch.empty(q.shape[:3], device=device)]
        return [q, q, k, v, *flash_attention_for_cpu(q, k, v, 0.0, True)]

    return _in_turns(lambda *given: flash_attention_for_cpu_backward(*given, 0.0, True), operands, device)


def _matmul(case: BenchmarkCase, device: torch.device) -> Callable[[], Any]:
    *batch, rows, depth, columns = case.shape
    shapes = (*batch, rows, depth), (*batch, depth, columns)
    return _in_turns(torch.bmm if batch else torch.mm, lambda: [_tensor(s, case, device) for s in shapes], device)


def _chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    for _ in range(CHAIN // 2):
        x = x.view(-1).mul(y)  # views as in real programs: the model prices them at 0
        x = x.add(y)
    return x


def _backward(case: BenchmarkCase, device: torch.device) -> Callable[[], Any]:
    x = _tensor(case.shape, case, device)
    w = _tensor(case.shape[-1:] * 2, case, device).requires_grad_()

    def forward_and_backward() -> None:
        w.grad = None
        (x @ w).tanh().sum().backward()

    return forward_and_backward


def _layer(case: BenchmarkCase, device: torch.device) -> Callable[[], Any]:
    """Forward and backward of a normalization, a linear layer and an activation."""
    x = _tensor(case.shape, case, device)
    width = case.shape[-1]
    weights = [_tensor((width, width), case, device).requires_grad_(), _tensor((width,), case, device).requires_grad_()]
    between = _eviction(case, device)

    def forward_and_backward() -> None:
        for weight in weights:
            weight.grad = None
        between()
        out = F.gelu(F.linear(F.layer_norm(x, (width,), weights[1]), weights[0], weights[1])).sum()
        between()
        out.backward()

    return forward_and_backward


def _eviction(case: BenchmarkCase, device: torch.device) -> Callable[[], None]:
    """A copy that fills a core's private cache, for a cold case: it evicts Python's code and data."""
    if not case.kind.startswith("cold"):
        return lambda: None
    copy = _in_turns(lambda x, y: x.copy_(y), lambda: [torch.rand(_EVICTED, device=device) for _ in range(2)], device)

    def evict() -> None:  # no value: it is a gradient's hook, too
        copy()

    return evict


class _Block(torch.nn.Module):
    """Nested module calls as in a transformer's layer, and a residual."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up, self.down = torch.nn.Linear(width, width), torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def _model(case: BenchmarkCase, device: torch.device) -> Callable[[], Any]:
    """Forward and backward of a model of modules, [layers, rows, width]."""
    layers, rows, width = case.shape
    model = torch.nn.Sequential(*(_Block(width) for _ in range(layers))).to(device)
    x = _tensor((rows, width), case, device)
    between = _eviction(case, device)

    def forward_and_backward() -> None:
        model.zero_grad()
        out = x
        for block in model:
            between()
            out = block(out)
            out.register_hook(lambda grad: between())
        out.sum().backward()

    return forward_and_backward


PROGRAMS: dict[str, Callable[[BenchmarkCase, torch.device], Callable[[], Any]]] = {
    "view": _on(lambda x: x.view(-1)),
    "add": _on(torch.add, operands=2),
    "chain": _on(_chain, operands=2),
    "backward": _backward,
    "layer": _layer,
    "cold layer": _layer,
    "cold model": _model,
    "copy": _on(lambda x, y: x.copy_(y), operands=2),
    "add in place": _on(lambda x, y: x.add_(y), operands=2),
    "add into": _on(lambda x, y, z: torch.add(x, y, out=z), operands=3),
    "exp": _on(torch.exp),
    "tanh": _on(torch.tanh),
    "gelu": _on(F.gelu),
    "gelu backward": _on(torch.ops.aten.gelu_backward, operands=2),
    "gelu tanh": _on(lambda x: F.gelu(x, approximate="tanh")),
    "gelu tanh backward": _on(lambda grad, x: torch.ops.aten.gelu_backward(grad, x, approximate="tanh"), operands=2),
    "softmax": _on(lambda x: torch.softmax(x, -1)),
    "log_softmax": _on(lambda x: torch.log_softmax(x, -1)),
    "layer_norm": _on(lambda x: F.layer_norm(x, x.shape[-1:])),
    "layer_norm backward": _layer_norm_backward,
    "sum": _on(torch.sum),
    "attention": _on(lambda *qkv: flash_attention_for_cpu(*qkv, 0.0, True), operands=3),  # of [B, H, T, d]
    "attention backward": _attention_backward,
    "matmul": _matmul,
}
