"""Compare recomputation, offload, compression and smaller micro-batches: seconds and bytes by device.

A chain of n equal layers; a layer takes f seconds forward and g backward, and keeps a bytes for backward; its input has
b bytes. A checkpointed layer repeats r seconds of its forward (r < f: torch stops once all saved tensors are
recomputed, so the last product is not repeated).

    way                    bytes of activations at the peak      seconds of a step
    keep all               n a                                   n (f + g)
    full recomputation     (n - 1) b + a                         n (f + g + r)
    every sqrt(n)          (n / k - 1) b + k a, k = sqrt(n)      the same, as far as k divides n
    first half             n/2 b + n/2 a                         n (f + g) + n/2 r
    selective (products)   (n - 1) p + a                         n (f + g + r_p)        p: input, products' results
    offload                2 a                                   n (f + g) + max(0, (n-1) (c_a - f)) + the same with g
    offload checkpoints    2 b + a                               n (f + g + r) + max(0, (n-1) (c_b - f)) + .. (g + r)
    8 bits                 n a (1 + 8 / 256) / w                 n (f + g) + 2 n passes over a and its codes
    micro-batch / 2        n a'                                  2 n (f' + g')          f', g', a' of half the batch

c = alpha + S / beta is a copy over the host link (offload.py), w the bytes of a number. Which is best depends on the
device: recomputation costs FLOPs, offload the link, compression memory traffic, small micro-batches efficiency.

Cost of this comparison: `price_layers` runs the layer on shapes only, for two batches, three forwards and a backward
each, for all devices at once (0.1 s for a block of a GPT); `ways_to_fit` is arithmetic on its result.
Shapes: of the layer and its input, on the device "meta".
Source: the files of this folder; prices of operators from lablib/cost.
Simplified: only activations of the layers, without temporaries, parameters or the head; compression as one kernel.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lablib.cost.memory import memory_bound_time_s
from lablib.hardware import Device, Link
from lablib.memory.checkpointing import KEPT_OPERATORS, checkpoint_every, checkpoint_first, peak_bytes, recomputed
from lablib.memory.offload import exposed_s
from lablib.memory.saved_tensors import activation_bytes, saved_tensors
from lablib.operators.fused_attention import FusedAttention
from lablib.operators.op import OpCost, is_free
from lablib.operators.op_bytes import tensors_in
from lablib.operators.pricer import Pricer
from lablib.signature import checked
from lablib.torch_compat import TorchDispatchMode

GROUP = 256  # numbers that share a scale, in 8 bits


@dataclass(frozen=True, slots=True)
class LayerWork:
    """One layer and one micro-batch: seconds, FLOPs, and bytes kept for backward."""

    forward_s: float  # forward_s, backward_s: of the plain layer
    backward_s: float
    again_s: float  # again_s, again_flops: recomputation with a checkpoint of the whole layer
    again_flops: float
    selective_s: float  # recomputation if the results of products and attention are kept
    flops: float  # of forward and backward (attention recomputes its scores there: 2.5 times its forward)
    kept_bytes: float  # kept by the plain layer, its input included
    selective_bytes: float  # its input and the results of products and attention
    input_bytes: float  # its input


@dataclass(frozen=True, slots=True)
class PricedLayer:
    """A layer on a device: its cost for a batch and for half of it; `number_bytes` is the size of one number."""

    device: Device
    whole: LayerWork
    half: LayerWork
    number_bytes: int


@dataclass(frozen=True, slots=True)
class Way:
    """A way to save memory: bytes of activations at the peak, seconds and FLOPs of forward and backward."""

    name: str
    memory_bytes: float
    time_s: float
    flops: float


@checked
def price_layers(layer: nn.Module, x: Tensor, devices: Sequence[Device]) -> list[PricedLayer]:
    """A layer on each of the devices.

    Arguments:
        layer: with parameters on "meta"; maps x to a tensor of its shape.
        x: its input on "meta", batch first; the batch is even.
    """
    if len(x) % 2:
        raise ValueError(f"the micro-batch must be even, to be halved: got {len(x)}; try {len(x) + 1}.")
    whole, half = (layer_costs(layer, batch, devices) for batch in (x, x[: len(x) // 2]))
    return [PricedLayer(*each, x.element_size()) for each in zip(devices, whole, half, strict=True)]


@checked
def layer_costs(layer: nn.Module, x: Tensor, devices: Sequence[Device]) -> list[LayerWork]:
    """Costs of a layer on each of the devices; layer and x as for `price_layers`, the batch of any size."""
    if not x.is_meta:
        raise ValueError(f'shapes are priced, not values: got x on {x.device}; make layer and x on device="meta".')
    x = torch.empty_like(x, requires_grad=True)
    with FusedAttention():
        kept_bytes = activation_bytes(saved_tensors(layer(x), layer.parameters()))
    recorded = _record(layer, x, devices)
    products = sum(one.size_bytes for one in recorded if one.is_product and one.part is _Part.FORWARD)
    sizes = {"kept_bytes": kept_bytes, "selective_bytes": x.nbytes + products, "input_bytes": x.nbytes}
    return [_layer_cost(recorded, number, sizes) for number in range(len(devices))]


@checked
def ways_to_fit(priced: PricedLayer, num_layers: int, host_link: Link) -> list[Way]:
    """Every way of the table above for a chain of `num_layers` such layers, "keep all" first.

    Arguments: priced: of `price_layers`. host_link: between device and host.
    """
    cost, half, n = priced.whole, priced.half, num_layers
    plain_s, flops = n * (cost.forward_s + cost.backward_s), n * cost.flops
    sizes = [cost.kept_bytes] * n, [cost.input_bytes] * n
    plans = {
        "full recomputation": checkpoint_every(n),
        "every sqrt(n)": checkpoint_every(n, max(1, round(sqrt(n)))),
        "first half": checkpoint_first(n, n // 2),
    }
    ways = [Way("keep all", n * cost.kept_bytes, plain_s, flops)]
    for name, plan in plans.items():
        again_s, again = recomputed(plan, [cost.again_s] * n), recomputed(plan, [cost.again_flops] * n)
        ways.append(Way(name, peak_bytes(plan, *sizes), plain_s + again_s, flops + again))
    selective = (n - 1) * cost.selective_bytes + max(cost.kept_bytes, cost.selective_bytes)
    ways.append(Way("selective", selective, plain_s + n * cost.selective_s, flops))
    ways += _offloaded(cost, n, plain_s, flops, host_link)
    numbers = cost.kept_bytes / priced.number_bytes
    pass_s = memory_bound_time_s(cost.kept_bytes + numbers, priced.device)  # read and write, both ways
    ways.append(Way("8 bits", n * numbers * (1 + 8 / GROUP), plain_s + 2 * n * float(pass_s), flops))
    ways.append(Way("micro-batch / 2", n * half.kept_bytes, 2 * n * (half.forward_s + half.backward_s), flops))
    return ways


def _offloaded(cost: LayerWork, n: int, plain_s: float, flops: float, link: Link) -> Sequence[Way]:
    """Copies of one layer overlap with the computation of the next."""

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


class _Part(Enum):
    """Of a checkpointed step."""

    FORWARD = auto()
    AGAIN = auto()
    BACKWARD = auto()


@dataclass(frozen=True, slots=True)
class _Operator:
    """One operator of a step: its price on each device, and whether selective checkpoints keep its result."""

    part: _Part
    is_product: bool
    size_bytes: int
    costs: Sequence[OpCost]


def _record(layer: nn.Module, x: Tensor, devices: Sequence[Device]) -> Sequence[_Operator]:
    """A step of a checkpointed layer: backward of the plain layer, with forward repeated inside."""
    recorder, parts = _Recorder(devices), iter((_Part.FORWARD, _Part.AGAIN))

    def run(x: Tensor) -> Tensor:
        # Fused here, not outside: the engine runs backward without the caller's function modes.
        with recorder.during(next(parts)), FusedAttention():
            return layer(x)

    with recorder:
        y = checkpoint(run, x, use_reentrant=False)
        torch.autograd.grad(y, [x, *layer.parameters()], torch.empty_like(y))
    return recorder.operators


def _layer_cost(recorded: Sequence[_Operator], number: int, sizes: dict[str, int]) -> LayerWork:

    def total(operators: Sequence[_Operator]) -> tuple[float, float]:
        costs = [one.costs[number] for one in operators]
        # Launches overlap with the kernels before.
        return sum((cost.time_s - cost.launch_s for cost in costs), 0.0), sum((cost.flops for cost in costs), 0.0)

    forward_s, _ = total([one for one in recorded if one.part is _Part.FORWARD])
    step_s, flops = total([one for one in recorded if one.part is not _Part.AGAIN])
    full_s, full_flops = total(recorded)
    # A selective checkpoint runs the same operators again except for the products.
    selective_s, _ = total([one for one in recorded if one.part is not _Part.AGAIN or not one.is_product])
    return LayerWork(
        forward_s=forward_s,
        backward_s=step_s - forward_s,
        again_s=full_s - step_s,
        again_flops=full_flops - flops,
        selective_s=selective_s - step_s,
        flops=flops,
        **{name: float(size) for name, size in sizes.items()},
    )


class _Recorder(TorchDispatchMode):
    """Record the operators that start kernels, in order, with their prices on each of the devices."""

    def __init__(self, devices: Sequence[Device]):
        super().__init__()
        self._pricers = [Pricer(device) for device in devices]
        self._part = _Part.BACKWARD
        self.operators: list[_Operator] = []

    @contextmanager
    def during(self, part: _Part) -> Iterator[None]:
        """Operators inside belong to this part; outside they belong to backward."""
        self._part = part
        try:
            yield
        finally:  # torch stops a recomputed forward by an exception once all saved tensors are available
            self._part = _Part.BACKWARD

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if not is_free(func):
            costs = [pricer.cost(func, args, kwargs, out) for pricer in self._pricers]
            size_bytes = sum(tensor.nbytes for tensor in tensors_in((out,)))
            self.operators.append(_Operator(self._part, func in KEPT_OPERATORS, size_bytes, costs))
        return out
