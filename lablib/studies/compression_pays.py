"""Break-even bandwidth of gradient compression: seconds saved on the wires against seconds of packing.

Bytes saved are not seconds saved. Communication behind compute costs nothing, and packing and unpacking take time of
the device that nothing hides:

    t_wire    = bytes sent / bandwidth                       S bytes of message: 2 (n-1)/n S, or (n-1) S by all-gather
    t_pack    = overhead x bytes moved / memory bandwidth    overhead 1: each is read and written once (a fused kernel)
    exposed   = max(0, t_wire - overlap x compute)
    step      = compute + t_pack + exposed

Without overlap compression pays if the network is slower than

    bandwidth < (bytes sent before - bytes sent after) / t_pack

and with overlap only below the bandwidth at which communication is exposed at all:
2 (n-1)/n S_0 / (overlap x compute). A larger batch computes longer over the same gradients, so this bandwidth falls.
The largest speedup is S_0 / S, without compute.

Cost: three sums. Shapes: none; sizes are numbers.
Source: Agarwal et al., "On the Utility of Gradient Compression in Distributed Training Systems", MLSys 2022, arXiv
2103.00543, section 4 (encoding against the exposed rest); bytes: lablib/plan/gradient_compression.py.
Simplified: no latency; packing neither overlaps nor slows compute down; one bandwidth for every rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from lablib.plan.gradient_compression import GradientCompression, find_compression
from lablib.signature import Count, Fraction, Range, checked

GRAD_BYTES = 4
# Matrices for methods that factor them, as in a layer of a model with some billions of parameters.
SQUARE = {"rows": 4096.0, "columns": 4096.0}
Quantity = Annotated[float, Range(ge=0, le=1e30, example=1.0)]
Rate = Annotated[float, Range(ge=1, le=1e30, example=1e9)]  # bytes per second


@dataclass(frozen=True, slots=True)
class CompressedStep:
    """One step in seconds."""

    compute_s: float  # forward, backward and the optimizer
    pack_s: float  # packing and unpacking
    wire_s: float  # communication, hidden or not
    exposed_s: float  # the part of it that compute does not hide

    @property
    def step_s(self) -> float:
        return self.compute_s + self.pack_s + self.exposed_s


@checked
def compressed_step(
    method: str | GradientCompression,
    numel: Quantity,
    compute_s: Quantity,
    bandwidth_bytes_per_s: Rate,
    *,
    ranks: Count = 64,
    overlap: Fraction = 0.0,
    overhead: Quantity = 1.0,
    memory_bytes_per_s: Rate = 2e12,
) -> CompressedStep:
    """The seconds of one data-parallel step with gradients sent by this method.

    Arguments:
        method: "none", "int8", "powersgd", ... or a record (lablib/plan/gradient_compression.py).
        numel: float32 gradients.
        compute_s: compute of a step.
        bandwidth_bytes_per_s: out of each rank.
        overlap: share of compute that can hide communication.
        overhead: passes over the bytes to pack them, relative to a fused kernel's one.

    Raises ValueError: an unknown method.
    """
    record = find_compression(method)
    moved_bytes = record.moved_bytes(numel, ranks=ranks, grad_bytes=GRAD_BYTES, **SQUARE)
    message_bytes = record.wire_bytes(numel, grad_bytes=GRAD_BYTES, **SQUARE)
    wire_s = float(record.sent_bytes(message_bytes, ranks)) / bandwidth_bytes_per_s
    exposed_s = max(0.0, wire_s - overlap * compute_s)
    return CompressedStep(compute_s, overhead * moved_bytes / memory_bytes_per_s, wire_s, exposed_s)


@checked
def speedup_of_compression(
    method: str | GradientCompression, numel: float, compute_s: float, bandwidth_bytes_per_s: float, **options: float
) -> float:
    """Step time without compression over the time with it: above 1 it pays. Arguments, Raises as `compressed_step`."""
    before, after = (
        compressed_step(each, numel, compute_s, bandwidth_bytes_per_s, **options).step_s  # pyright: ignore
        for each in ("none", method)
    )
    return before / after if after else 1.0


@checked
def break_even_bandwidth(
    method: str | GradientCompression, numel: float, compute_s: float = 0.0, **options: float
) -> float:
    """The bandwidth, in bytes per second, below which the method pays; 0: never, infinity: always.

    The exposed time must shrink by more than the packing time. As bandwidth b grows from zero, at first both messages
    are longer than the compute that hides them, h = overlap x compute; then the smaller one is hidden:

        (W_0 - W) / b = pack    while W / b > h            W_0 / b - h = pack    after that

    Arguments and Raises as in `compressed_step`.
    """
    step = compressed_step(method, numel, compute_s, 1.0, **options)  # pyright: ignore
    before_s, after_s = compressed_step("none", numel, compute_s, 1.0, **options).wire_s, step.wire_s  # pyright: ignore
    hidden_s = options.get("overlap", 0.0) * compute_s
    if before_s <= after_s:
        return 0.0
    if after_s * step.pack_s >= hidden_s * (before_s - after_s):
        return (before_s - after_s) / step.pack_s if step.pack_s else float("inf")
    return before_s / (hidden_s + step.pack_s)


@checked
def speedup_curves(
    method: str | GradientCompression,
    numel: float,
    sequence_s: float,
    batches: Sequence[int],
    bandwidths: Sequence[float],
    **options: float,
) -> dict[str, list[float]]:
    """The speedup at each bandwidth, for each batch per rank; a sequence takes `sequence_s` to compute.

    Other arguments and Raises as in `compressed_step`.
    """
    return {
        f"batch {batch}": [
            speedup_of_compression(method, numel, batch * sequence_s, bandwidth, **options) for bandwidth in bandwidths
        ]
        for batch in batches
    }
