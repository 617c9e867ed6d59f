"""Measured time and memory of a row's step: one number each, from any published unit.

The step's time is taken from the first of these that the row has:

    S1  iteration_s                unchanged
    S2  tokens_per_s               tokens of a step / it; it has more digits than the figure for one GPU
    S3  tokens_per_s_per_gpu       tokens of a step / (it x GPUs)
    S4  hw_tflops_per_gpu          hardware FLOPs / (it x GPUs): all computed FLOPs, with recomputation
    S5  model_tflops_per_gpu       model FLOPs / (it x GPUs): each FLOP of the model once; if the row says that its
                                   source leaves out the masked half of attention's square (attention_flops: causal),
                                   without that
    S6  hfu, pct_peak              hardware FLOPs / (it x peak x GPUs), the dense peak of the row's precision
    S7  mfu                        model FLOPs / (it x peak x GPUs)

FLOPs follow models/transformer_flops.py, with attention's whole square and the vocabulary as stated by the row: for
plain GPTs 72 B s l h^2 (1 + s/6h + V/12lh) of the model, and 96 B s l h^2 (1 + s/6h + V/16lh) of the hardware under
full recomputation (Narayanan et al., SC21, arXiv 2104.04473, section 5.1). With selective recomputation all sources
here count the model's FLOPs only.

Memory: memory_gib_per_gpu in units of 2^30 bytes. memory_gb_per_gpu the same: the tools that print it divide by 2^30
and write GB. They measure different things, so each is compared with another part of a prediction:

    Y1  memory_gb_per_gpu                   nvidia-smi: the allocator's cache, the driver and the library included
    Y2  memory_gib_per_gpu of torchtitan    reserved by the allocator, its cache included
    Y3  memory_gib_per_gpu of others        allocated at the peak
"""

from dataclasses import dataclass

from lablib.hardware import Device
from lablib.models import Transformer
from lablib.models.transformer_flops import step_flops
from lablib.text.units import format_quantity
from lablib.validation.rows import PublishedRow

GIB = 2**30
# A figure outside these shares of the peak is in another unit: no training step was ever measured there.
MIN_SHARE, MAX_SHARE = 1e-3, 1.0


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One row's figures: seconds of a step (None: only memory), bytes on the fullest GPU (None: only time), the field
    of the time, and the attribute of a prediction to compare the memory with (rules Y1 to Y3)."""

    step_time_s: float | None
    memory_bytes: float | None
    field: str = ""
    memory_kind: str = "peak_memory_bytes"


def hardware_flops(model: Transformer, batch: int, seq_len: int, recompute: str) -> float:
    """FLOPs computed in one step of `batch` sequences: with full recomputation the layers' forward twice."""
    repeated = "full" if recompute == "full" else "none"
    return float(step_flops(model, batch * seq_len, seq_len, recompute=repeated))


def model_flops(model: Transformer, batch: int, seq_len: int) -> float:
    """FLOPs of the model for one step of `batch` sequences: forward, and twice that backward."""
    return hardware_flops(model, batch, seq_len, "none")


def measured_of(
    row: PublishedRow, model: Transformer, device: Device, batch: int, precision: str, recompute: str
) -> MeasuredStep:
    """The figures of a row, by the rules above.

    Arguments:
        row: the row, with sequence length and GPUs.
        model: its sizes, the vocabulary as stated.
        device: the device; shares refer to its peak.
        batch: sequences in a step, all ranks.
        precision: of the products, a name of the device's peaks.
        recompute: "none", "selective" or "full".

    Raises ValueError: a figure above the peak, or nearly 0 of it: probably another unit.
    """
    memory = row.measured.get("memory_gib_per_gpu", row.measured.get("memory_gb_per_gpu"))
    memory_bytes = None if memory is None else memory * GIB
    if memory_bytes and memory_bytes > 1.1 * device.memory_bytes:
        raise ValueError(
            f"{memory:g} GiB per GPU are more than the {format_quantity(device.memory_bytes, 'B')} of {device.name}: "
            "probably another unit; give GiB"
        )
    field, step_time_s = _step_time_s(row, model, device, batch, precision, recompute)
    if step_time_s is not None:
        _check_share(row, field, model_flops(model, batch, row.model["seq"]), step_time_s, device, precision)
    return MeasuredStep(step_time_s, memory_bytes, field, _memory_kind(row))


def _memory_kind(row: PublishedRow) -> str:
    """Rules Y1 to Y3."""
    if "memory_gib_per_gpu" not in row.measured:
        return "device_bytes"
    return "reserved_bytes" if "torchtitan" in row.source.get("title", "").lower() else "peak_memory_bytes"


def _step_time_s(
    row: PublishedRow, model: Transformer, device: Device, batch: int, precision: str, recompute: str
) -> tuple[str, float | None]:
    gpus, seq_len = row.hardware["gpus"], row.model["seq"]
    peak, tokens = device.peak(precision), batch * seq_len
    useful, computed = model_flops(model, batch, seq_len), hardware_flops(model, batch, seq_len, recompute)
    if row.text("attention_flops").startswith("causal"):
        useful = float(step_flops(model, batch * seq_len, seq_len, causal=True))
    # field -> the step's work in the field's unit per second, on all GPUs together
    work = {
        "iteration_s": None,
        "tokens_per_s": tokens,
        "tokens_per_s_per_gpu": tokens / gpus,
        "hw_tflops_per_gpu": computed / gpus / 1e12,
        "model_tflops_per_gpu": useful / gpus / 1e12,
        "hfu": computed / gpus / peak,
        "pct_peak": computed / gpus / peak,
        "mfu": useful / gpus / peak,
    }
    for field, amount in work.items():
        if field in row.measured:
            value = row.measured[field]
            return field, value if amount is None else amount / value
    return "", None


def _check_share(
    row: PublishedRow, field: str, flops: float, step_time_s: float, device: Device, precision: str
) -> None:
    # A dtype without a unit on the device is emulated in 16 bits, not in float32.
    peak = max(device.peak(precision), device.peak("float16"))
    share = flops / step_time_s / row.hardware["gpus"] / peak
    if not MIN_SHARE <= share <= MAX_SHARE:
        raise ValueError(
            f"measured.{field} = {row.measured[field]:g} means {share:.3g} of the peak of {device.name}, outside "
            f"{MIN_SHARE:g} to {MAX_SHARE:g}: probably another unit"
        )
