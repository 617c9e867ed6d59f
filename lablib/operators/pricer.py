"""Cache of operator prices, for the clock of every simulated rank.

A training step repeats the same operators on the same shapes; each price is computed once. The key is the
operator and, of each tensor in its arguments and results, shape, dtype and (unless it lies in one piece) strides; for
products also the plain arguments (`is_causal`, a convolution's stride) and the precision of float32.

Cost: one look-up, 1 to 4 microseconds; measure it with benchmarks/pricing_speed.py.
Simplified: memory is bounded by dropping the oldest price, not the least used.
"""

from typing import Any

import torch

from lablib.hardware.device import Device
from lablib.operators.op import OpCost, has_arithmetic, is_convolution, op_cost
from lablib.operators.op_bytes import num_bytes
from lablib.operators.peaks import convolutions_use_tf32, products_use_tf32
from lablib.signature import check_types

_STRIDED = torch.strided


class Pricer:
    """Prices operators on one device and caches up to `capacity` prices. Keeps no reference to tensors."""

    def __init__(self, device: Device, capacity: int = 16384):
        check_types("Pricer", (("device", device, Device), ("capacity", capacity, int)))
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1: got {capacity}")
        self.device = device
        self.capacity = capacity
        self._costs: dict[tuple, OpCost] = {}
        self._is_product: dict[int, tuple[bool, Any]] = {}

    def __len__(self) -> int:
        return len(self._costs)

    def cost(self, op: Any, args: tuple, kwargs: dict, out: Any) -> OpCost:
        """`op_cost(op, args, kwargs, out, device)`, bit for bit."""
        number = id(op)  # hashing an operator runs Python code
        if number not in self._is_product:
            self._is_product[number] = has_arithmetic(op), op  # kept, so that no other operator gets its id
        is_product = self._is_product[number][0]
        parts: list = [number]
        if is_product:
            parts.append(convolutions_use_tf32() if is_convolution(op) else products_use_tf32())
        _describe(args, parts, is_product)
        if kwargs:
            for name, value in kwargs.items():
                parts.append(name)
                _describe((value,), parts, is_product)
        _describe((out,), parts, False)
        key = tuple(parts)
        cost = self._costs.get(key)
        if cost is None:
            cost = op_cost(op, args, kwargs, out, self.device)
            if len(self._costs) >= self.capacity:
                del self._costs[next(iter(self._costs))]
            self._costs[key] = cost
        return cost


def _describe(values: Any, parts: list, plain: bool) -> None:
    """Append the parts of a price's key: of tensors their layout; of other values, themselves, if `plain`."""
    append = parts.append
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.layout is not _STRIDED:
                append(num_bytes(value))
            elif not value.is_contiguous():
                append(value.stride())
            append(value.shape)
            append(value.dtype)
        elif isinstance(value, (list, tuple)):
            append(len(value))
            _describe(value, parts, plain)
        elif plain or value is None or type(value) is str:  # a text chooses the function: gelu's "tanh"
            append(value)
        else:
            append(0)
