"""Efficiency of GPU operators limited by memory, by kind of operator, as measured on an H200.

    time = max( bytes / share, elements * bytes per element ) / streaming rate + extra

A plain element-wise kernel moves its bytes at the streaming rate of the device (memory.py). Other kinds do not: a mask
of one byte per element breaks wide loads; a sum over rows ends in a second stage; a softmax is limited by its
exponentials, so that 2 and 4 bytes per element take equally long; a transposed copy writes in pieces; the gradient of
an embedding sorts its indices. `RATES` holds one row per kind, the median over its measured sizes and dtypes.

Other GPUs: `share` and `bytes_per_element` are relative to the streaming rate, so they scale with the bandwidth;
`extra_s` is constant. Devices that are not GPUs (`Device.is_gpu`) use `element_s` instead (elements.py).

Source: tests/operators/measured/h200.jsonl, CUDA events around one call, L2 flushed before; the first line has the
device, versions and date. tests/operators/test_efficiency.py compares every kind with it.
Simplified: one figure for all sizes; short rows (768 numbers) and long rows (12,288) differ by up to 1.5.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from lablib.cost.arrays import Numbers, maximum
from lablib.cost.memory import memory_bound_time_s
from lablib.hardware.device import Device


@dataclass(frozen=True, slots=True)
class Rate:
    """The rate of one kind of operator."""

    share: float = 1.0  # share of the streaming rate that its bytes reach, in (0, 1]
    bytes_per_element: float = 0.0  # minimum time of an element, in streamed bytes
    extra_s: float = 0.0  # seconds beyond its bytes, per call: further stages, sorting


RATES: Mapping[str, Rate] = MappingProxyType(
    {
        "mask": Rate(share=0.70),  # an operand or result of booleans: masked_fill, comparisons, dropout
        "widening": Rate(share=0.52),  # a cast to a wider dtype
        "transposed copy": Rate(bytes_per_element=26),  # the innermost dimension changes
        "sum": Rate(extra_s=5e-6),  # over the innermost dimension, or over all
        "sum over rows": Rate(extra_s=13e-6),  # the innermost dimension stays
        "gelu": Rate(bytes_per_element=5.1),
        "gelu_backward": Rate(bytes_per_element=7.0),
        "_softmax": Rate(bytes_per_element=8.4),
        "_softmax_backward_data": Rate(share=0.49),
        "_log_softmax": Rate(bytes_per_element=6.5),
        "_log_softmax_backward_data": Rate(share=0.88),
        "native_layer_norm": Rate(share=0.55),
        "native_layer_norm_backward": Rate(share=0.42),
        "_fused_rms_norm": Rate(share=0.75),
        "_fused_rms_norm_backward": Rate(share=0.42),
        "embedding_dense_backward": Rate(share=0.30, extra_s=200e-6),  # more than 3,072 indices are sorted
    }
)
STREAMING = Rate()
MOST_UNSORTED = 3072  # indices of an embedding up to which torch sums the gradient without sorting them


def operator_time_s(kind: str, size_bytes: Numbers, elements: Numbers, device: Device) -> Numbers:
    """Seconds of an operator without its launch. A kind without a row, and any device but a GPU, streams its bytes.

    `kind`: a key of `RATES`, or another name; `elements`: of its largest operand or result.
    """
    rate = RATES.get(kind, STREAMING) if device.is_gpu else STREAMING
    if rate is STREAMING:
        return memory_bound_time_s(size_bytes, device)
    slowdown = maximum(1 / rate.share, elements * rate.bytes_per_element / maximum(size_bytes, 1))
    return memory_bound_time_s(size_bytes, device) * slowdown + rate.extra_s
