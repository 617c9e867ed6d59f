"""Speedup of a matrix product in fewer bits, by its size.

A product of [n, n] with [n, n] has 2 n^3 FLOPs, moves 3 n^2 numbers and is one kernel:

    time(n, format) = max( launch, max( 2 n^3 / rate(format), 3 n^2 bytes(format) / bandwidth ) + gap )
    speedup         = time(n, baseline) / time(n, format)

    small n      the host's launches take longer: 1 in any format
    large n      the ratio of the rates: at most the ratio of the peaks

So "1.5 to 3 times" is not a property of a format: a V100's tensor cores multiply FP16 8 times as fast as its other
cores multiply FP32; if FP32 products may use TF32 (A100 and later), 16 bits are twice as fast, and a whole step gains
less.

Source: the cost model of `lablib.cost.matmul` and its sources; the peaks of `lablib.hardware`.
Simplified: square products, many one after another, so that launches overlap with products before; see savings.py for
whole steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lablib.cost.matmul import matmul_time_s
from lablib.hardware import Device
from lablib.precision.best_format import PEAK_NAMES
from lablib.precision.formats import FP32, Format
from lablib.signature import Count, checked


@dataclass(frozen=True, slots=True)
class ProductSpeed:
    """A product of [size, size] with [size, size] on a device."""

    device: str
    format: str
    size: int
    time_s: float  # in the format
    speedup: float  # over the baseline


@checked
def product_speeds(
    device: Device, format: Format, sizes: Sequence[Count], baseline: Format = FP32
) -> list[ProductSpeed]:
    """Square products of these sizes in a format, relative to another one. ValueError: the device lacks a format."""
    speeds = []
    for size in sizes:
        time_s, baseline_s = (product_time_s(device, one, size) for one in (format, baseline))
        speeds.append(ProductSpeed(device.name, format.name, size, time_s, baseline_s / time_s))
    return speeds


@checked
def product_time_s(device: Device, format: Format, size: int) -> float:
    """Seconds of one of many products [size, size] x [size, size]. ValueError: the device lacks the format."""
    check_multiplies(device, format)
    product_s = float(matmul_time_s(size, size, size, PEAK_NAMES[format.name], device))
    return max(device.launch_s, product_s + device.queued_s)


def check_multiplies(device: Device, format: Format) -> None:
    """Raise ValueError if the device does not multiply this format; the message lists those that it does."""
    if PEAK_NAMES.get(format.name, "") not in device.peak_flops_per_s:
        has = [other for other, peak in PEAK_NAMES.items() if peak in device.peak_flops_per_s]
        raise ValueError(f"{device.name} does not multiply {format}: choose one of {', '.join(has)}.")
