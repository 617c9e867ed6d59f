"""Recompute, offload, compress, or a smaller micro-batch: what each costs in seconds, and leaves in bytes, by device.

A chain of n equal layers; a layer takes f seconds forward and g backward, keeps a bytes for backward, its input alone
is b bytes. Of its forward r seconds run again when it is checkpointed (r < f: torch stops when all that backward needs
is there again, so the last product is not repeated).

    way                    bytes of activations at the peak      seconds of a step
    keep all               n a                                   n (f + g)
    full recomputation     (n - 1) b + a                         n (f + g + r)
    every sqrt(n)          (ceil(n / k) - 1) b + k a             the same
    first half             n/2 b + n/2 a                         n (f + g) + n/2 r
    selective (products)   (n - 1) p + a                         n (f + g + r_p)        p: input, products' results
    offload                2 a                                   n (f + g) + max(0, (n-1) (c_a - f)) + the same with g
    offload checkpoints    2 b + a                               n (f + g + r) + max(0, (n-1) (c_b - f)) + .. (g + r)
    8 bits                 n a (1 + 8 / 256) / w                 n (f + g) + 2 n passes over a and its codes
    micro-batch / 2        n a'                                  2 n (f' + g')          f', g', a' of half the batch

c = alpha + S / beta is a copy over the host link (offload.py), w the bytes of a number. Which is best depends on the
device: recomputation costs FLOPs, offload the link, compression memory traffic, small micro-batches efficiency.

Cost of asking: three passes over one layer's shapes; nothing is computed.
Shapes: those of the layer and its input, on the device "meta".
Source: the files of this folder; prices of operators from lablib/cost.
Simplified: activations of the layers alone, without temporaries, parameters or the head; compression as one kernel.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from lablib.cost.fused_attention import FusedAttention
from lablib.cost.memory import memory_bound_time_s, tensors_in
from lablib.cost.op import is_free
from lablib.cost.pricer import Pricer
from lablib.hardware import Device, Link
from lablib.memory.checkpointing import (
    KEPT_OPERATORS,
    checkpoint_every,
    checkpoint_first,
    checkpoint_operators,
    checkpoint_sqrt,
    peak_bytes,
    recomputed,
)
from lablib.memory.offload import exposed_s
from lablib.memory.saved_tensors import activation_bytes, saved_tensors
from lablib.signature import checked

GROUP = 256  # numbers that share a scale, in 8 bits


@dataclass(frozen=True, slots=True)
class LayerCost:
    """One layer and one micro-batch: seconds, FLOPs, and bytes kept for backward.

    Attributes:
        forward_s, backward_s: of the plain layer.
        again_s, again_flops: what a checkpoint of the whole layer runs a second time.
        selective_s: the same where products and attention keep their results.
        flops: of forward and backward (attention makes its scores again there: 2.5 times its forward).
        kept_bytes: kept by the plain layer, its input included.
        selective_bytes: its input and the results of products and attention.
        input_bytes: its input.
    """

    forward_s: float
    backward_s: float
    again_s: float
    again_flops: float
    selective_s: float
    flops: float
    kept_bytes: float
    selective_bytes: float
    input_bytes: float


@dataclass(frozen=True, slots=True)
class Way:
    """A way to keep less: bytes of activations at the peak, seconds and FLOPs of forward and backward."""

    name: str
    memory_bytes: float
    time_s: float
    flops: float


@checked
def layer_cost(layer: nn.Module, x: Tensor, device: Device) -> LayerCost:
    """What a layer costs on a device.

    Arguments:
        layer: with parameters on "meta"; maps x to a tensor of its shape.
        x: its input on "meta", batch first.
    """
    if not x.is_meta:
        raise ValueError(f'shapes are priced, not values: got x on {x.device}; make layer and x on device="meta".')
    x = x.detach().requires_grad_()
    forward, step, full, selective = (_Prices(device) for _ in range(4))

    def run(x: Tensor) -> Tensor:
        with FusedAttention():  # inside what a checkpoint runs again: within backward the mode outside rests
            return layer(x)

    with forward:
        y = run(x)
    kept = activation_bytes(saved_tensors(y, layer.parameters()))
    del y
    parameters = list(layer.parameters())
    _step(run, x, parameters, step)
    _step(lambda x: checkpoint(run, x, use_reentrant=False), x, parameters, full)
    _step(lambda x: checkpoint_operators(run, x), x, parameters, selective)
    return LayerCost(
        forward_s=forward.time_s,
        backward_s=step.time_s - forward.time_s,
        again_s=full.time_s - step.time_s,
        again_flops=full.flops - step.flops,
        selective_s=selective.time_s - step.time_s,
        flops=step.flops,
        kept_bytes=float(kept),
        selective_bytes=float(x.nbytes + forward.product_bytes),
        input_bytes=float(x.nbytes),
    )


@checked
def ways_to_fit(layer: nn.Module, x: Tensor, num_layers: int, device: Device, host_link: Link) -> list[Way]:
    """Every way of the head for a chain of `num_layers` such layers, "keep all" first.

    Arguments: layer, x, device: as for `layer_cost`; the batch of x is even. host_link: between device and host.
    """
    if len(x) % 2:
        raise ValueError(f"the micro-batch must be even, to be halved: got {len(x)}; try {len(x) + 1}.")
    smaller = torch.empty_like(x[: len(x) // 2])
    cost, half, n = layer_cost(layer, x, device), layer_cost(layer, smaller, device), num_layers
    plain_s, flops = n * (cost.forward_s + cost.backward_s), n * cost.flops
    sizes = [cost.kept_bytes] * n, [cost.input_bytes] * n
    plans = {
        "full recomputation": checkpoint_every(n),
        "every sqrt(n)": checkpoint_sqrt(n, cost.kept_bytes, cost.input_bytes),
        "first half": checkpoint_first(n, n // 2),
    }
    ways = [Way("keep all", n * cost.kept_bytes, plain_s, flops)]
    for name, plan in plans.items():
        again_s, again = recomputed(plan, [cost.again_s] * n), recomputed(plan, [cost.again_flops] * n)
        ways.append(Way(name, peak_bytes(plan, *sizes), plain_s + again_s, flops + again))
    selective = (n - 1) * cost.selective_bytes + max(cost.kept_bytes, cost.selective_bytes)
    ways.append(Way("selective", selective, plain_s + n * cost.selective_s, flops))
    ways += _offloaded(cost, n, plain_s, flops, host_link)
    numbers = cost.kept_bytes / x.element_size()
    pass_s = memory_bound_time_s(cost.kept_bytes + numbers, device)  # read one, write the other, and back
    ways.append(Way("8 bits", n * numbers * (1 + 8 / GROUP), plain_s + 2 * n * float(pass_s), flops))
    ways.append(Way("micro-batch / 2", n * half.kept_bytes, 2 * n * (half.forward_s + half.backward_s), flops))
    return ways


def _offloaded(cost: LayerCost, n: int, plain_s: float, flops: float, link: Link) -> Sequence[Way]:
    """One layer's copies are under way while the next computes."""

    def copy_s(size_bytes: float) -> float:
        return link.latency_s + size_bytes / link.bandwidth_bytes_per_s

    all_s = exposed_s(n, 1, copy_s(cost.kept_bytes), cost.forward_s, cost.backward_s)
    backward_s = cost.backward_s + cost.again_s
    inputs_s = exposed_s(n, 1, copy_s(cost.input_bytes), cost.forward_s, backward_s)
    return (
        Way("offload", min(n, 2) * cost.kept_bytes, plain_s + all_s, flops),
        Way(
            "offload checkpoints",
            min(n, 2) * cost.input_bytes + cost.kept_bytes,
            plain_s + n * cost.again_s + inputs_s,
            flops + n * cost.again_flops,
        ),
    )


def _step(run: Callable[[Tensor], Tensor], x: Tensor, parameters: Sequence[Tensor], prices: "_Prices") -> None:
    """Forward and backward of a layer, priced."""
    with prices:
        y = run(x)
        torch.autograd.grad(y, [x, *parameters], torch.empty_like(y))


class _Prices(TorchDispatchMode):
    """Adds up what operators would take on a device."""

    def __init__(self, device: Device):
        super().__init__()
        self._pricer = Pricer(device)
        self.time_s = self.flops = 0.0
        self.product_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if not is_free(func):
            cost = self._pricer.cost(func, args, kwargs, out)
            self.time_s, self.flops = self.time_s + cost.time_s, self.flops + cost.flops
        if func in KEPT_OPERATORS:
            self.product_bytes += sum(tensor.nbytes for tensor in tensors_in((out,)))
        return out
