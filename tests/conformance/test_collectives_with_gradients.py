# pyright: reportPrivateImportUsage=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportOptionalMemberAccess=false
"""Collectives that autograd goes through: the gradient is that of the same computation on one device.

functional collectives    torch.distributed._functional_collectives
autograd collectives      torch.distributed.nn.functional
"""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn.functional as dnn
from torch import Tensor

from lablib import launch

RANKS = 4
# Both names of a call are in use: torch 2.13 says so of the older one, which torch 2.11 has alone.
pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated.*:FutureWarning")


def inputs() -> list[Tensor]:
    generator = torch.Generator().manual_seed(4)
    return [torch.randn(RANKS * 2, 3, dtype=torch.float64, generator=generator) for _ in range(RANKS)]


def weights() -> list[Tensor]:
    """What rank r's loss multiplies its output by: different on every rank, so that a mixed-up gradient shows."""
    return [torch.full((), float(r + 1), dtype=torch.float64) for r in range(RANKS)]


def wait(x: Any) -> Tensor:
    return x.wait() if isinstance(x, funcol.AsyncCollectiveTensor) else x


# Each: what a rank computes, and what all of them compute from the list of inputs on one device.
Local = Callable[[Tensor], Tensor]
Whole = Callable[[list[Tensor]], list[Any]]


def cut(x: Tensor, rank: int) -> Tensor:
    return x.chunk(RANKS)[rank]


CASES: dict[str, tuple[Local, Whole]] = {
    "nn.all_reduce": (lambda x: dnn.all_reduce(x), lambda xs: [sum(xs)] * RANKS),
    "nn.all_gather": (lambda x: torch.cat(dnn.all_gather(x)), lambda xs: [torch.cat(xs)] * RANKS),
    "nn.broadcast": (lambda x: dnn.broadcast(x, 1), lambda xs: [xs[1]] * RANKS),
    "nn.gather": (
        lambda x: torch.cat(list(dnn.gather(x, 1))),
        lambda xs: [torch.cat(xs) if r == 1 else torch.zeros_like(torch.cat(xs)) for r in range(RANKS)],
    ),
    "nn.scatter": (lambda x: dnn.scatter(list(x.chunk(RANKS)), 1), lambda xs: [cut(xs[1], r) for r in range(RANKS)]),
    "nn.reduce": (  # what it leaves on other ranks is nobody's business
        lambda x: dnn.reduce(x, 1) * (dist.get_rank() == 1),
        lambda xs: [sum(xs) if r == 1 else torch.zeros_like(xs[r]) for r in range(RANKS)],
    ),
    "nn.all_reduce and others in one graph": (
        lambda x: dnn.all_reduce(x * dnn.broadcast(x.sin(), 2)) * torch.cat(dnn.all_gather(x)).mean() + x,
        lambda xs: [sum(x * xs[2].sin() for x in xs) * torch.cat(xs).mean() + x for x in xs],
    ),
    "nn.all_reduce of a result": (
        lambda x: dnn.all_reduce(dnn.all_reduce(x).sin() * x) * dnn.all_reduce(x.exp()),
        lambda xs: [sum(sum(xs).sin() * x for x in xs) * sum(x.exp() for x in xs)] * RANKS,
    ),
    "nn.reduce_scatter": (
        lambda x: dnn.reduce_scatter(torch.empty(2, 3, dtype=x.dtype), list(x.chunk(RANKS))),
        lambda xs: [cut(sum(xs), r) for r in range(RANKS)],
    ),
    "nn.all_to_all": (
        lambda x: torch.cat(
            dnn.all_to_all([torch.empty(2, 3, dtype=x.dtype) for _ in range(RANKS)], list(x.chunk(RANKS)))
        ),
        lambda xs: [torch.cat([cut(x, r) for x in xs]) for r in range(RANKS)],
    ),
    "nn.all_to_all_single": (
        lambda x: dnn.all_to_all_single(torch.empty_like(x), x),
        lambda xs: [torch.cat([cut(x, r) for x in xs]) for r in range(RANKS)],
    ),
    "funcol.all_to_all_single_autograd": (
        lambda x: wait(funcol.all_to_all_single_autograd(x, None, None, dist.group.WORLD)),
        lambda xs: [torch.cat([cut(x, r) for x in xs]) for r in range(RANKS)],
    ),
    "funcol.all_gather_tensor_autograd": (
        lambda x: wait(funcol.all_gather_tensor_autograd(x, 0, dist.group.WORLD)),
        lambda xs: [torch.cat(xs)] * RANKS,
    ),
    "funcol.reduce_scatter_tensor_autograd": (
        lambda x: wait(funcol.reduce_scatter_tensor_autograd(x, "sum", 0, dist.group.WORLD)),
        lambda xs: [cut(sum(xs), r) for r in range(RANKS)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_of_a_collective_is_that_of_one_device(name: str):
    """Loss: the sum over ranks of weight_r x |output_r|^2. Each rank calls backward on its own term."""
    local, whole = CASES[name]

    def program() -> tuple[Tensor, Tensor]:
        rank = dist.get_rank()
        x = inputs()[rank].requires_grad_()
        y = local(x)
        (weights()[rank] * y.square().sum()).backward()
        return y.detach(), torch.zeros_like(x) if x.grad is None else x.grad  # a broadcast uses the root's input only

    xs = [x.requires_grad_() for x in inputs()]
    ys = whole(xs)
    torch.stack([w * y.square().sum() for w, y in zip(weights(), ys, strict=True)]).sum().backward()
    for (y, grad), expected, x in zip(launch(program, ranks=RANKS).values, ys, xs, strict=True):
        torch.testing.assert_close(y, expected.detach(), rtol=1e-12, atol=1e-12)
        wanted = torch.zeros_like(x) if x.grad is None else x.grad
        torch.testing.assert_close(grad, wanted, rtol=1e-12, atol=1e-12)


IMPORTED = """
import torch.distributed as dist
import torch.distributed.nn.functional as dnn

def of_all(x, group=dist.group.WORLD):
    return dist.all_reduce(x, group=group)

class Sum:
    group = dist.group.WORLD
"""


def test_a_module_that_a_rank_imports_first_keeps_nobodys_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`group=group.WORLD` is a default, read once, in the turn of whoever imports first: a false deadlock for the rest.

    torch.distributed.nn.functional is full of such defaults; a module of the program's own may be as well.
    """
    (tmp_path / "imported_by_a_rank.py").write_text(IMPORTED)
    monkeypatch.syspath_prepend(str(tmp_path))
    functional = importlib.import_module("torch.distributed.nn.functional")
    monkeypatch.setattr(torch.distributed.nn, "functional", functional)  # what the package has afterwards, too
    monkeypatch.delitem(sys.modules, "torch.distributed.nn.functional")

    def program() -> tuple[list[float], bool]:
        from imported_by_a_rank import Sum, dnn, of_all  # pyright: ignore[reportMissingImports]

        x = torch.full((2,), float(dist.get_rank()), requires_grad=True)
        (dnn.all_reduce(x) * x).sum().backward()
        of_all(x.grad)
        dist.barrier(Sum.group)
        return x.grad.tolist(), dist.group.WORLD is not None

    for _ in range(2):  # and the next launch finds no group of the last one
        assert launch(program, ranks=3).values == [([18.0, 18.0], True)] * 3
