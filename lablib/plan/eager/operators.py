"""Eager operators: bytes that each reads and writes, and its launch.

Each is priced separately, since a small tensor is still in the device's cache when the next operator reads it.

Source: lablib/operators/op_bytes.py (bytes moved), lablib/operators/kernels.py (kernels started).
"""

from lablib.cost.arrays import Numbers
from lablib.plan.machine import Machine, PassTime


def kernel(
    machine: Machine, size_bytes: Numbers, kernels: Numbers = 1, kind: str = "", elements: Numbers = 0
) -> PassTime:
    """One operator that moves `size_bytes`; `kind` and `elements` as in lablib/cost/efficiency.py."""
    return PassTime(memory_s=machine.stream_s(size_bytes, kind, elements), kernels=kernels)


def kernels(machine: Machine, *sizes_bytes: Numbers) -> PassTime:
    """Several streaming operators, one after another."""
    total = PassTime()
    for size_bytes in sizes_bytes:
        total = total.plus(kernel(machine, size_bytes))
    return total


def gelu(machine: Machine, size_bytes: Numbers) -> tuple[PassTime, PassTime]:
    """Forward and backward over a tensor of `size_bytes`."""
    numbers = size_bytes / machine.width
    return kernel(machine, 2 * size_bytes, 1, "gelu", numbers), kernel(
        machine, 3 * size_bytes, 1, "gelu_backward", numbers
    )


def reduction(machine: Machine, size_bytes: Numbers) -> PassTime:
    """A sum, a mean or the largest, of every row or of all."""
    return kernel(machine, size_bytes, 1, "sum")


def sum_over_rows(machine: Machine, size_bytes: Numbers) -> PassTime:
    """The gradient of a bias."""
    return kernel(machine, size_bytes, 1, "sum over rows")
