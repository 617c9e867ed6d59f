"""Fitted constants of the planner with their physical bounds, and a planner with other values.

    matmul_share          0.70 to 0.95    a training step's products relative to the same product repeated
    memory_share          0.80 to 1.00    of the catalogue's streaming rate (0.85 of the bandwidth)
    intra_share           0.75 to 0.88    NCCL over NVLink: 0.81 to 0.84 measured
    inter_share           0.70 to 0.95    NCCL over network cards
    generation_share      0.35 to 0.75    FlashAttention one generation behind its device: 0.47 to 0.5 published
    dispatch_s            10 to 30 us     an eager operator on the host, with autograd and Python
    FLOPs per joule       A100 0.50 to 0.75 T (its peak at 400 W is 0.78), H100 0.70 to 1.10 T (1.41), B200 0.85 to
                          1.40 T (2.25); a Hopper GPU under a lower limit keeps its ratio to the H100

All other numbers in the planner are published figures, counts of the software's operations, or marked estimates.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from lablib.hardware import DEVICES, Cluster
from lablib.plan.derating import Derating
from lablib.plan.predict import predict
from lablib.plan.prediction import Prediction
from lablib.validation.cross_validate import Constant
from lablib.validation.score import Predictor

BOUNDS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "matmul_share": (0.70, 0.95),
        "memory_share": (0.80, 1.00),
        "intra_share": (0.75, 0.88),
        "inter_share": (0.70, 0.95),
        "generation_share": (0.35, 0.75),
        "dispatch_s": (10e-6, 30e-6),
    }
)
# A device of each generation: bounds of the generation's FLOPs per joule.
PER_JOULE: Mapping[str, tuple[float, float]] = MappingProxyType(
    {"A100-80GB-SXM": (0.50e12, 0.75e12), "H100-80GB-SXM": (0.70e12, 1.10e12), "B200-SXM": (0.85e12, 1.40e12)}
)


def constants() -> dict[str, Constant]:
    """The constants with their present values."""
    now = Derating()
    shares = {name: Constant(getattr(now, name), low, high) for name, (low, high) in BOUNDS.items()}
    return shares | {name: Constant(_per_joule(name), low, high) for name, (low, high) in PER_JOULE.items()}


def planner_with(values: Mapping[str, float]) -> Predictor:
    """The planner with these values."""
    derating = replace(Derating(), **{name: value for name, value in values.items() if name in BOUNDS})
    # attention_generation identifies the generation of a device.
    scale = {
        DEVICES[name].attention_generation: value / _per_joule(name)
        for name, value in values.items()
        if name in PER_JOULE
    }
    return partial(_predict, derating, scale)


def _per_joule(name: str) -> float:
    figure = DEVICES[name].flops_per_joule
    assert figure is not None
    return figure


def _predict(derating: Derating, scale: Mapping[int, float], *, cluster: Cluster, **arguments: Any) -> Prediction:
    device = cluster.device
    factor = scale.get(device.attention_generation, 1.0)
    if device.flops_per_joule and factor != 1.0:
        others = {dtype: factor * figure for dtype, figure in device.flops_per_joule_by_dtype.items()}
        scaled = replace(device, flops_per_joule=factor * device.flops_per_joule, flops_per_joule_by_dtype=others)
        cluster = cluster.replace(device=scaled)
    return predict(cluster=cluster, derating=derating, **arguments)
