"""Backward in two halves: input gradients now (I), weight gradients later (W).

The backward of a linear layer y = x W^T + b is two independent products:

    I    grad_x = grad_y W          needed by the piece before
    W    grad_W = grad_y^T x        needed only by the optimizer
         grad_b = sum of grad_y

Between F and I a piece is an ordinary autograd graph, except for its linear layers: their backward returns grad_x and
puts (x, grad_y) into a queue. W processes the queue. A `TorchFunctionMode` finds the linear layers by their calls of
`F.linear` in the piece's forward, so the model's code does not change.

No work is done twice. Other parameters (norms, embeddings, convolutions, computed parameters) get their gradients
within I.
Memory from I to W: x and grad_y of each linear layer; the rest is freed in I. In a block of a GPT with F = 4 D that is
16 D numbers per token (x: 7 D, as q, k and v share one; grad_y: 9 D), as much as from F to I: so a micro-batch is held
until its W (`Costs.released_at_input` of 0).
Shapes: x [..., C_in], y [..., C_out], W [C_out, C_in].
Source: Qi, Wan, Huang, Lin, "Zero Bubble Pipeline Parallelism", 2023, arXiv 2401.10241, section 2 and table 1 (bytes:
32 b s h for W, there of 2 bytes each); the queue is the WeightGradStore of its authors' code.
torch.distributed.pipelining does it another way: it cuts the autograd graph where the paths of parameters join the path
of the input. That covers every kind of layer, keeps the whole graph until W, and enters autograd once for each layer in
W.
Simplified: hooks on the weights are not called; autocast and double backward are not supported.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class WeightGradients:
    """The weight gradients of one micro-batch at one piece, deferred until `accumulate`.

    later = WeightGradients()
    with later.of_linear_layers():  # F
        y = piece(x)
    with later.of_linear_layers():  # I: for layers that are computed again (checkpoint)
        y.backward(grad_y)
    later.accumulate()  # W
    """

    def __init__(self) -> None:
        self._queue: list[tuple[Tensor, Tensor | None, Tensor, Tensor]] = []  # weight, bias, x, grad_y

    def __len__(self) -> int:
        return len(self._queue)

    def of_linear_layers(self) -> AbstractContextManager[Any]:
        """In this block linear layers defer their weight gradients."""
        return _PutOff(self)

    def kept(self) -> list[Tensor]:
        """The tensors held for W: x and grad_y of each layer."""
        return [tensor for _, _, x, grad_y in self._queue for tensor in (x, grad_y)]

    def put_off(self, weight: Tensor, bias: Tensor | None, x: Tensor, grad_y: Tensor) -> None:
        """Queue the product of one linear layer."""
        self._queue.append((weight, bias, x, grad_y))

    def accumulate(self) -> None:
        """Add the deferred gradients to `.grad`, and empty the queue."""
        while self._queue:
            weight, bias, x, grad_y = self._queue.pop(0)
            grad_NO, x_NI = grad_y.flatten(0, -2), x.flatten(0, -2)
            if weight.requires_grad:
                _add_grad(weight, grad_NO.T @ x_NI)
            if bias is not None and bias.requires_grad:
                _add_grad(bias, grad_NO.sum(0))


class _PutOff(TorchFunctionMode):
    def __init__(self, later: WeightGradients):
        super().__init__()
        self._later = later

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.linear and torch.is_grad_enabled() and _is_leaf(*args, **kwargs):
            return _Linear.apply(*_named(*args, **kwargs), self._later)
        return func(*args, **kwargs)


def _named(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
    return input, weight, bias


def _is_leaf(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Whether the gradients can be deferred: the parameters are leaves."""
    return input.ndim >= 2 and weight.is_leaf and weight.requires_grad and (bias is None or bias.is_leaf)


class _Linear(torch.autograd.Function):
    """A linear layer with I as its backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, later: WeightGradients) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.params, ctx.later = (weight, bias), later  # not saved tensors, which may come back as copies (checkpoint)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None, None]:
        x, weight = ctx.saved_tensors
        ctx.later.put_off(*ctx.params, x.detach(), grads[0])
        return grads[0] @ weight if ctx.needs_input_grad[0] else None, None, None, None


def _add_grad(param: Tensor, grad: Tensor) -> None:
    if param.grad is None:
        param.grad = grad
    else:
        param.grad += grad
