"""Ranges of plausible hardware figures, to catch a wrong unit.

A user may write a peak of 989, meaning TFLOP/s; the cost model would read 989 FLOP/s without an error. The ranges are
wide, from a microcontroller to a rack beyond any product: they catch a figure given in tera, giga or microseconds, not
one that is off by two. Zero where a record allows it means "none", infinity is an idealization.

A bandwidth a thousand times off may still be plausible for another machine, but not next to this device's peak. The
16-bit FLOPs that an accelerator (1 TFLOP/s or more) could compute per byte that comes in lie within

    memory           5 to 5,000          an A100 has 156
    inside a node    50 to 500,000       an A100 has 1,040, over PCIe 10,000
    outside          500 to 1,000,000    an A100 has 12,500, over 25 Gb/s Ethernet 100,000

and any device can do half a FLOP or more (except in float64) per byte from its memory. An accelerator reads all of its
memory in 1 ms to 10 s (an A100 in 40 ms). A file with such a figure on purpose says `unusual = true`.
"""

from collections.abc import Mapping
from math import inf
from typing import Any

from lablib.hardware.cluster import Cluster
from lablib.hardware.device import Device
from lablib.hardware.link import Link
from lablib.hardware.topology import Dragonfly, FatTree, Torus
from lablib.text.units import format_quantity

# Minimum, maximum and unit.
_PLAUSIBLE: dict[tuple[type, str], tuple[float, float, str]] = {
    (Device, "peak_flops_per_s"): (1e8, 1e17, "FLOP/s"),
    (Device, "memory_bytes"): (1e7, 1e14, "B"),
    (Device, "memory_bandwidth_bytes_per_s"): (1e8, 1e14, "B/s"),
    (Device, "cache_bytes"): (1e4, 1e11, "B"),
    (Device, "cache_bandwidth_bytes_per_s"): (1e8, 1e15, "B/s"),
    (Device, "kernel_overhead_s"): (1e-9, 1e-2, "s"),
    (Device, "launch_s"): (1e-9, 1e-2, "s"),
    (Device, "power_w"): (1.0, 1e5, "W"),
    (Device, "matmul_half_depth"): (0.0, 1e6, ""),
    (Device, "flops_per_joule"): (1e6, 1e15, "FLOP/J"),
    (Device, "flops_per_joule_by_dtype"): (1e6, 1e15, "FLOP/J"),
    (Link, "bandwidth_bytes_per_s"): (1e6, 1e13, "B/s"),
    (Link, "latency_s"): (1e-9, 1e-1, "s"),
    (Link, "nvls_latency_s"): (1e-9, 1e-1, "s"),
    (Cluster, "collective_overhead_s"): (1e-9, 1.0, "s"),
    (FatTree, "oversubscription"): (1.0, 1e3, ""),
    **{(kind, "switch_latency_s"): (0.0, 1e-2, "s") for kind in (FatTree, Dragonfly, Torus)},
}
_EXAMPLES = {
    "FLOP/s": "989e12 for 989 TFLOP/s",
    "B": "80e9 for 80 GB",
    "B/s": "25e9 for 25 GB/s",
    "s": "2e-6 for 2 us",
    "W": "700 for 700 W",
    "FLOP/J": "1.1e12 for 1.1 TFLOP/J",
}

_MAY_BE_ENDLESS = ("FLOP/s", "B", "B/s", "W", "FLOP/J")  # not seconds: an infinite operation would never end


def check_plausible(record: Any, file: str, where: str) -> None:
    """Raise ValueError for a figure of a cluster, device or link outside its range, with the value as read."""
    for (kind, name), (low, high, unit) in _PLAUSIBLE.items():
        if not isinstance(record, kind):
            continue
        value = getattr(record, name)
        for key, figure in value.items() if isinstance(value, Mapping) else (("", value),):
            is_ideal = figure == 0 or (figure == inf and unit in _MAY_BE_ENDLESS)
            if figure is None or is_ideal or low <= figure <= high:
                continue
            path = ".".join(part for part in (where, name, key) if part)
            if unit not in _EXAMPLES:
                raise ValueError(f"{file}: {path} must be {low:g} to {high:g}: got {figure:g}")
            raise ValueError(
                f"{file}: {path} = {figure:g} reads as {format_quantity(figure, unit)}, outside "
                f"{format_quantity(low, unit)} to "
                f"{format_quantity(high, unit)}: probably a unit error; give it in {unit}, as in {_EXAMPLES[unit]}"
            )


_FLOPS_A_BYTE = {"memory": (5.0, 5e3), "intra": (50.0, 3e5), "inter": (500.0, 1e6)}
_ACCELERATOR_FLOPS_PER_S = 1e12
_MIN_FLOPS_A_BYTE = 0.5


def unlikely_together(cluster: Cluster) -> str:
    """The bandwidth that does not match the device's peak and is probably in another unit; "" if all match."""
    device = cluster.device
    peak = max(device.peak("float16"), device.peak("bfloat16"))
    bandwidth = device.memory_bandwidth_bytes_per_s
    peaks = {dtype: flops for dtype, flops in device.peak_flops_per_s.items() if dtype != "float64"}
    slowest = min(peaks, key=peaks.__getitem__)
    if peaks[slowest] < _MIN_FLOPS_A_BYTE * bandwidth < inf:
        return (
            f"device.peak_flops_per_s.{slowest} = {peaks[slowest]:g} reads as "
            f"{format_quantity(peaks[slowest], 'FLOP/s')}, for a "
            f"memory of {format_quantity(bandwidth, 'B/s')}: probably a unit error; give it in FLOP/s, as in "
            f"{_EXAMPLES['FLOP/s']}, or say `unusual = true` if it is meant"
        )
    if peak < _ACCELERATOR_FLOPS_PER_S:
        return ""
    return _unlikely_bandwidth(cluster, peak) or _unlikely_memory(device)


def _unlikely_memory(device: Device) -> str:
    bandwidth, size = device.memory_bandwidth_bytes_per_s, device.memory_bytes
    if inf in (bandwidth, size) or 1e-3 <= size / bandwidth <= 10:
        return ""
    return (
        f"device.memory_bytes = {size:g} reads as {format_quantity(size, 'B')}, for a memory of "
        f"{format_quantity(bandwidth, 'B/s')}: read "
        f"in "
        f"{format_quantity(size / bandwidth, 's')}, outside 1 ms to 10 s: probably a unit error; give it in B, as in "
        f"{_EXAMPLES['B']}, or say `unusual = true` if it is meant"
    )


def _unlikely_bandwidth(cluster: Cluster, peak: float) -> str:
    device = cluster.device
    bandwidths = {
        "memory": ("device.memory_bandwidth_bytes_per_s", device.memory_bandwidth_bytes_per_s),
        "intra": ("intra.bandwidth_bytes_per_s", cluster.intra.bandwidth_bytes_per_s),
        "inter": ("inter.bandwidth_bytes_per_s", cluster.inter.bandwidth_bytes_per_s),
    }
    for part, (path, bandwidth) in bandwidths.items():
        low, high = _FLOPS_A_BYTE[part]
        if inf in (peak, bandwidth) or low <= peak / bandwidth <= high:
            continue
        return (
            f"{path} = {bandwidth:g} reads as {format_quantity(bandwidth, 'B/s')}, for a device of "
            f"{format_quantity(peak, 'FLOP/s')}: {peak / bandwidth:,.3g} FLOPs a byte, outside {low:g} to {high:,g}: "
            f"probably a unit error; give it in B/s, as in {_EXAMPLES['B/s']}, or say `unusual = true` if it is meant"
        )
    return ""
