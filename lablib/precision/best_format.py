"""Choose the number format for training on a device: the fastest that it multiplies and that keeps gradients.

    the device multiplies             train in        because
    BF16 faster than FP32             BF16            FP32's range: gradients do not underflow, no loss scale is needed
    FP16 faster, and no BF16 (V100) FP16 as fast, but the smallest number is 2^-24: with dynamic loss scaling
    neither faster (a CPU)            FP32            half precision would be emulated: slower, and less precise

FP8 and FP4 multiply two and four times as fast as BF16, and need a recipe of scales; a recipe is proposed if the device
has the format and the caller allows it. A format speeds up only products: `speedup` is the ratio of the peaks, an upper
bound.

Source: the peaks of `lablib.hardware` with their sources; Kalamkar et al., 2019, arXiv 1905.12322 (BF16 without loss
scaling); Micikevicius et al., 2017, arXiv 1710.03740 (FP16 with it).
Simplified: by peaks alone; a model's speed depends on its sizes (lablib/cost/matmul.py).
"""

from dataclasses import dataclass
from typing import Annotated

from lablib.hardware import DEVICES, Device
from lablib.precision.formats import BF16, E2M1, E4M3, FP16, FP32, Format
from lablib.process.visible_gpus import visible_gpus
from lablib.signature import OneOf, checked

PEAK_NAMES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "tf32": "tfloat32",
    "e4m3": "float8",
    "e2m1": "float4",
}


@dataclass(frozen=True, slots=True)
class FormatChoice:
    """A number format for training."""

    format: Format  # of the products
    recipe: str  # name of the linear layers' recipe (quantized_linear.py)
    needs_loss_scale: bool  # whether gradients underflow without a loss scale
    speedup: float  # peak of products over FP32's peak
    reason: str  # why, in one sentence


@checked
def best_format(device: Device | None = None, *, num_bits: Annotated[int, OneOf((16, 8, 4))] = 16) -> FormatChoice:
    """The format to train in. ValueError: a GPU that is not in the catalogue.

    Arguments:
        device: None: the GPU of this machine, or its CPU without a GPU.
        num_bits: the fewest bits allowed: 16, 8 or 4. Below 16 a run needs a recipe, and monitoring.
    """
    device = device or find_device()
    if num_bits <= 4 and _speedup(device, E2M1) > _speedup(device, BF16):
        return _choice(
            device,
            E2M1,
            "nvfp4",
            "it multiplies FP4 with a scale for 16 numbers; keep the head, and some layers, wider",
        )
    if num_bits <= 8 and _speedup(device, E4M3) > _speedup(device, BF16):
        has_block_scales = _speedup(device, E2M1) > 0
        return _choice(
            device,
            E4M3,
            "mxfp8" if has_block_scales else "fp8_current",
            "it multiplies FP8; scales keep values within E4M3's range",
        )
    if _speedup(device, BF16) > 1:
        return _choice(device, BF16, "bf16", "BF16 has the range of FP32, so that no loss scale is needed")
    if _speedup(device, FP16) > 1:
        why = "it has no BF16; FP16 is as fast, and its gradients need a loss scale"
        return _choice(device, FP16, "fp16", why, True)
    return _choice(device, FP32, "fp32", "no narrower format is faster on it")


@checked
def find_device() -> Device:
    """This machine's GPU in the catalogue (ValueError: it is not there); a CPU core without a GPU."""
    gpus = visible_gpus()
    if not gpus:
        return DEVICES["laptop-core"]
    name, memory_bytes = gpus[0].name, gpus[0].memory_bytes
    # "NVIDIA H100 80GB HBM3" is H100-80GB-SXM; of several, the one with the nearest memory size.
    alike = [device for device in DEVICES.values() if device.name.split("-")[0] in name.split()]
    alike = alike or [device for device in DEVICES.values() if device.name.split("-")[0] in name]
    if not alike:
        raise ValueError(f"{name!r} is not in the catalogue: give a device, one of {', '.join(DEVICES)} or your own.")
    return min(alike, key=lambda device: abs(device.memory_bytes - memory_bytes))


def _speedup(device: Device, format: Format) -> float:
    """Ratio of the peaks of products in a format and in FP32; 0 if the device lacks the format."""
    peaks = device.peak_flops_per_s
    return peaks.get(PEAK_NAMES[format.name], 0.0) / peaks["float32"]


def _choice(device: Device, format: Format, recipe: str, why: str, needs_loss_scale: bool = False) -> FormatChoice:
    speedup = _speedup(device, format)
    faster = f"; its products are at most {speedup:.3g} times as fast as in FP32" if speedup > 1 else ""
    reason = f"{device.name}: {why}{faster}."
    return FormatChoice(format, recipe, needs_loss_scale, speedup, reason)
