"""Time of an operation limited by memory: bytes moved, over the bandwidth that kernels reach.

    time = bytes / (bandwidth * efficiency)        or, if all of them fit in the last-level cache,
    time = bytes / cache bandwidth                 if that is faster

Small results are still in the cache when the next operation reads them. Products and attention read from memory: their
weights were last used a step ago. Bytes that torch's operators move: lablib/operators/op_bytes.py.

Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009.
Simplified: every access is streamed (a gathered row costs the same as a contiguous one); size alone decides whether
data is in the cache, not the operations before.
"""

from lablib.cost.arrays import Numbers, minimum
from lablib.hardware.device import Device


def stream_time_s(size_bytes: Numbers, device: Device) -> Numbers:
    """Seconds to move so many bytes from and to memory (a number or an array), without cache."""
    return size_bytes / (device.memory_bandwidth_bytes_per_s * device.memory_efficiency)


def memory_bound_time_s(size_bytes: Numbers, device: Device) -> Numbers:
    """Seconds of a kernel that moves so many bytes (reads and writes together; a number or an array), no launch."""
    streamed_s = stream_time_s(size_bytes, device)
    if not device.cache_bytes:
        return streamed_s
    cached_s = minimum(streamed_s, size_bytes / device.cache_bandwidth_bytes_per_s)
    fits = size_bytes <= device.cache_bytes
    return streamed_s + fits * (cached_s - streamed_s)
