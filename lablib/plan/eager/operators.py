"""An eager operator, or several one after another: the bytes that each reads and writes, and its launch.

Each is priced on its own, since a small tensor is still in the device's cache when the next operator reads it.

Source: lablib/operators/op_bytes.py (what an operator moves), lablib/operators/kernels.py (what it starts).
"""

from lablib.cost.arrays import Numbers
from lablib.plan.machine import Machine, Pass


def kernel(on: Machine, size_bytes: Numbers, kernels: Numbers = 1) -> Pass:
    """One operator that moves so many bytes."""
    return Pass(memory_s=on.stream_s(size_bytes), kernels=kernels)


def kernels(on: Machine, *sizes_bytes: Numbers) -> Pass:
    """Several, one after another."""
    total = Pass()
    for size_bytes in sizes_bytes:
        total = total.plus(kernel(on, size_bytes))
    return total
