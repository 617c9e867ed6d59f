"""What is measured of a device: small programs, each a kind of work at one size.

A case is plain data, so that it can be sent to another process. `program_of` makes what is timed; `priced_ops` runs the
same program on meta tensors and keeps what it dispatches, so that the cost model can say what the simulator would
charge for it: the prediction and the measurement are of one program.

    dispatch      one operation of a few numbers, again and again: what starting it takes, and no more
    program       small operations as programs have them: a chain with views, a layer forward and backward
    memory        copies and additions from a few kilobytes to far beyond the cache, into old memory and into new
    elementwise   what the fit does not look at, and the model prices by its bytes all the same
    matmul        products: square, thin, tall, of little and of much depth, batched; for each dtype
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from lablib.hardware.device import Device
from lablib.operators.op import is_free, op_time_s
from lablib.torch_compat import TorchDispatchMode, tree_map_only

PricedOp = tuple[Any, tuple, dict, Any]  # operator, arguments, keyword arguments, result
CHAIN = 10  # operations of a chain


@dataclass(frozen=True, slots=True)
class BenchmarkCase:
    """One thing to time.

    Attributes:
        part: "dispatch", "program", "memory", "elementwise" or "matmul".
        kind: a key of `PROGRAMS`.
        shape: of its operands: elements, or (rows, depth, columns), with the batch first where there is one.
        dtype: as the rows of `Device.peak_flops_per_s` are called.
    """

    part: str
    kind: str
    shape: tuple[int, ...]
    dtype: str = "float32"

    def __str__(self) -> str:
        return f"{self.kind} {' x '.join(map(str, self.shape))} {self.dtype}"


def program_of(case: BenchmarkCase, device: torch.device) -> Callable[[], Any]:
    """The program of a case, its operands made on `device`."""
    return PROGRAMS[case.kind](case, device)


def priced_ops(case: BenchmarkCase) -> list[PricedOp]:
    """Every operator that one run of the case dispatches and the cost model prices, on meta tensors."""
    program, recorder = program_of(case, torch.device("meta")), _Recorder()
    with precision_of(case), recorder:
        program()
    return recorder.ops


def predicted_s(ops: list[PricedOp], device: Device) -> float:
    """What the simulator charges for these operators."""
    return sum(op_time_s(*op, device) for op in ops)


@contextmanager
def precision_of(case: BenchmarkCase) -> Iterator[None]:
    """float32 products run as tfloat32 where the case says so."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if case.dtype == "tfloat32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class _Recorder(TorchDispatchMode):
    """Keeps the priced operators."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[PricedOp] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the default imports the compiler, which takes a second

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if not is_free(func):
            # Copies: autograd clones a gradient that somebody else holds, which would be one operator more.
            self.ops.append((func, *tree_map_only(torch.Tensor, _shape_of, (args, kwargs, out))))
        return out


def _shape_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that is priced alike."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _tensor(shape: tuple[int, ...], case: BenchmarkCase, device: torch.device) -> torch.Tensor:
    name = "float32" if case.dtype == "tfloat32" else case.dtype
    return torch.rand(shape, device=device).to(getattr(torch, name))


def _on(function: Callable[..., Any], operands: int = 1) -> Callable[[BenchmarkCase, torch.device], Callable[[], Any]]:
    """The program that calls `function` on tensors of the case's shape."""

    def make(case: BenchmarkCase, device: torch.device) -> Callable[[], Any]:
        tensors = [_tensor(case.shape, case, device) for _ in range(operands)]
        return lambda: function(*tensors)

    return make


def _chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    for _ in range(CHAIN // 2):
        x = x.view(-1).mul(y)  # views as programs have them: the model takes them for free
        x = x.add(y)
    return x


def _layer_norm(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:])


def _matmul(case: BenchmarkCase, device: torch.device) -> Callable[[], Any]:
    *batch, rows, depth, columns = case.shape
    a = _tensor((*batch, rows, depth), case, device)
    b = _tensor((*batch, depth, columns), case, device)
    return (lambda: torch.bmm(a, b)) if batch else (lambda: torch.mm(a, b))


def _layer(case: BenchmarkCase, device: torch.device) -> Callable[[], Any]:
    """Forward and backward of a normalization, a linear layer and an activation."""
    x = _tensor(case.shape, case, device)
    width = case.shape[-1]
    weights = [_tensor((width, width), case, device).requires_grad_(), _tensor((width,), case, device).requires_grad_()]

    def forward_and_backward() -> None:
        for weight in weights:
            weight.grad = None
        F.gelu(F.linear(F.layer_norm(x, (width,), weights[1]), weights[0], weights[1])).sum().backward()

    return forward_and_backward


def _backward(case: BenchmarkCase, device: torch.device) -> Callable[[], Any]:
    x = _tensor(case.shape, case, device)
    w = _tensor(case.shape[-1:] * 2, case, device).requires_grad_()

    def forward_and_backward() -> None:
        w.grad = None
        (x @ w).tanh().sum().backward()

    return forward_and_backward


PROGRAMS: dict[str, Callable[[BenchmarkCase, torch.device], Callable[[], Any]]] = {
    "view": _on(lambda x: x.view(-1)),
    "add": _on(torch.add, operands=2),
    "chain": _on(_chain, operands=2),
    "backward": _backward,
    "layer": _layer,
    "copy": _on(lambda x, y: x.copy_(y), operands=2),
    "add in place": _on(lambda x, y: x.add_(y), operands=2),
    "add into": _on(lambda x, y, z: torch.add(x, y, out=z), operands=3),
    "exp": _on(torch.exp),
    "gelu": _on(F.gelu),
    "softmax": _on(lambda x: torch.softmax(x, -1)),
    "layer_norm": _on(_layer_norm),
    "sum": _on(torch.sum),
    "matmul": _matmul,
}
