"""One accelerator as the cost model sees it: how fast it multiplies and reads, and what a kernel costs to start."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Device:
    """A GPU, or the share of a CPU that one process gets.

    Attributes:
        name: e.g. "H100-80GB-SXM".
        peak_flops_per_s: dense peak for matrix products by dtype name ("float64", "float32", "tfloat32", "float16",
            "bfloat16", "float8"), without sparsity. A dtype that is missing falls back on "float32".
        matmul_efficiency: share of the peak that large matrix products reach in practice, in (0, 1].
        memory_bytes: capacity.
        memory_bandwidth_bytes_per_s: peak of reads and writes together.
        kernel_overhead_s: time every operation takes at least, whatever its size.
        source: where the figures come from.
    """

    name: str
    peak_flops_per_s: Mapping[str, float] = field(hash=False)
    memory_bytes: float
    memory_bandwidth_bytes_per_s: float
    matmul_efficiency: float = 1.0
    kernel_overhead_s: float = 0.0
    source: str = ""

    def __post_init__(self) -> None:
        if "float32" not in self.peak_flops_per_s:
            raise ValueError(f"a device needs a float32 peak: {self.name} has {sorted(self.peak_flops_per_s)}; add one")
        if not 0 < self.matmul_efficiency <= 1:
            raise ValueError(f"matmul_efficiency is a share in (0, 1]: got {self.matmul_efficiency} for {self.name}")
        positive = {f"peak_flops_per_s[{dtype!r}]": peak for dtype, peak in self.peak_flops_per_s.items()}
        positive["memory_bytes"] = self.memory_bytes
        positive["memory_bandwidth_bytes_per_s"] = self.memory_bandwidth_bytes_per_s
        for figure, value in positive.items():
            if not value > 0:
                raise ValueError(f"{figure} must be positive: got {value} for {self.name}")
        if not self.kernel_overhead_s >= 0:
            raise ValueError(f"kernel_overhead_s must be 0 or more: got {self.kernel_overhead_s} for {self.name}")

    def peak(self, dtype: str) -> float:
        """Dense peak in FLOP/s for a dtype name such as "bfloat16"; float32's where the device has no unit for it."""
        return self.peak_flops_per_s.get(dtype, self.peak_flops_per_s["float32"])


# A device that computes in no time: what is left of a run is communication alone.
FREE = Device(
    name="free",
    peak_flops_per_s={"float32": float("inf")},
    memory_bytes=float("inf"),
    memory_bandwidth_bytes_per_s=float("inf"),
    source="idealized: compute takes no time",
)
