"""Accelerators in the cost model: rates of arithmetic and memory, and the overhead of a kernel.

    peak_flops_per_s, matmul_efficiency         rate of large, well-shaped matrix products
    num_cores, matmul_tile, matmul_half_depth   losses of smaller and misshapen ones (lablib/cost/matmul.py)
    memory_bandwidth_bytes_per_s, memory_efficiency, cache_*   rate of kernels limited by memory (cost/memory.py)
    element_s                                   time of functions that take longer than their bytes (cost/elements.py)
    kernel_overhead_s                           time of the smallest operation: launch and run of one kernel

The defaults mean that the device states no figure: no quantization, no cache, all of the bandwidth.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from lablib.hardware.checks import Cache, Power, Seconds, Size
from lablib.signature import Count, NonNegative, NonNegativeInt, PositiveFraction, PowerOfTwo, check_fields


@dataclass(frozen=True)
class Device:
    """A GPU, or the share of a CPU for one process."""

    name: str  # e.g. "H100-80GB-SXM"
    # dense peak for matrix products by dtype name ("float64", "float32", "tfloat32", "float16", "bfloat16", "float8",
    # "float4", "int8"), without sparsity. A dtype that is missing falls back on "float32".
    peak_flops_per_s: Mapping[str, Size] = field(hash=False)
    memory_bytes: Size  # capacity
    memory_bandwidth_bytes_per_s: Size  # peak of reads and writes together
    # share of the peak that large matrix products reach in practice, in (0, 1]
    matmul_efficiency: PositiveFraction = 1.0
    # minimum time of every operation: to launch and run one kernel. (One hop of a collective, `Link.latency_s`, is
    # less: it is within a kernel that runs already.)
    kernel_overhead_s: Seconds = 0.0
    source: str = ""
    # streaming multiprocessors, compute units, matrix units, or CPU cores, each of which computes one output tile at a
    # time; 0 leaves waves out
    num_cores: NonNegativeInt = 0
    # rows and columns of the output tile that one core computes; (1, 1) leaves tiles out
    matmul_tile: tuple[Count, Count] = (1, 1)
    # the K at which a product reaches half of its efficiency, a factor K / (K + half depth), in the fastest dtype wider
    # than 8 bits; it models a fixed time, so a slower dtype has a smaller half depth
    matmul_half_depth: NonNegative = 0.0
    memory_efficiency: PositiveFraction = 1.0  # share of the memory bandwidth that streaming kernels reach, in (0, 1]
    cache_bytes: Cache = 0.0  # last-level cache; operands that fit in it together move at its speed. 0: no cache.
    cache_bandwidth_bytes_per_s: Cache = 0.0  # that speed; positive where there is a cache
    # `matmul_efficiency` of dtypes with a different one, by dtype name
    matmul_efficiency_by_dtype: Mapping[str, PositiveFraction] = field(default_factory=dict, hash=False)
    # share of its rate alone and repeated that a product reaches within a training step, where power and cold operands
    # slow it, in (0, 1]; 1 where it was not measured
    step_share: PositiveFraction = 1.0
    power_w: Power | None = None  # thermal design power in watts, where the source states it
    # a power of two; matrices with rows that are multiples of it are loaded at full width. 0: any.
    row_alignment_bytes: Annotated[int, PowerOfTwo(or_zero=True)] = 0
    # FLOPs of 16-bit products per joule, where it is known: under its power limit a device sustains power_w *
    # flops_per_joule. Used by the planner only.
    flops_per_joule: Size | None = None
    # the same of other dtypes; a dtype without a figure takes as much less energy as its peak is higher
    flops_per_joule_by_dtype: Mapping[str, Size] = field(default_factory=dict, hash=False)
    # the generation of flash attention written for its matrix units: 2 for Ampere, 3 for Hopper, 4 for Blackwell. Used
    # by the planner only.
    attention_generation: Count = 2
    # rate of attention kernels relative to `lablib/cost/attention.py`, in (0, 1]
    attention_efficiency: PositiveFraction = 1.0
    # of `kernel_overhead_s`, the time that the host takes to launch a kernel. The host launches ahead: a kernel starts
    # when it is launched and its stream is free, so that a busy device hides launches. Positive for GPUs (`is_gpu`),
    # which have rates per operator (lablib/cost/efficiency.py). 0: the processor launches and computes in turn, and a
    # simulated span holds all of `kernel_overhead_s`.
    launch_s: Seconds = 0.0
    # seconds of arithmetic per element, by operator ("gelu", "gelu tanh", "_softmax"), for functions that the device
    # computes more slowly than it reads and writes them: functions on a CPU. Empty: none, as on GPUs
    # (lablib/cost/elements.py). The planner, for runs on GPUs, does not read it.
    element_s: Mapping[str, Seconds] = field(default_factory=dict, hash=False)
    # major and minor number of CUDA's (NVIDIA, "CUDA GPU Compute Capability", developer.nvidia.com/cuda-gpus); (0, 0):
    # no device of NVIDIA
    compute_capability: tuple[NonNegativeInt, NonNegativeInt] = (0, 0)

    def __post_init__(self) -> None:
        check_fields(self, self.name)
        if "float32" not in self.peak_flops_per_s:
            raise ValueError(f"a device needs a float32 peak: {self.name} has {sorted(self.peak_flops_per_s)}; add one")
        if self.cache_bytes and not self.cache_bandwidth_bytes_per_s:
            raise ValueError(f"a cache needs a cache_bandwidth_bytes_per_s above 0: got 0 for {self.name}; give both")
        if self.launch_s > self.kernel_overhead_s:
            raise ValueError(
                f"launch_s is a part of kernel_overhead_s: got {self.launch_s:g} s of {self.kernel_overhead_s:g} s for "
                f"{self.name}; give at most that"
            )

    @property
    def is_gpu(self) -> bool:
        """Whether a host launches this device's kernels into a queue."""
        return self.launch_s > 0

    @property
    def has_flash_attention(self) -> bool:
        """Whether flash attention has kernels for it: NVIDIA's from Ampere on (Dao et al., 2022, arXiv 2205.14135)."""
        return not (0, 0) < self.compute_capability < (8, 0)

    @property
    def queued_s(self) -> float:
        """The device's part of `kernel_overhead_s`: the time of a kernel in the queue beyond its work."""
        return self.kernel_overhead_s - self.launch_s

    def peak(self, dtype: str) -> float:
        """Dense peak in FLOP/s for a dtype name such as "bfloat16"; float32's where the device has no unit for it."""
        return self.peak_flops_per_s.get(dtype, self.peak_flops_per_s["float32"])

    def matmul_rate(self, dtype: str) -> float:
        """FLOP/s that large, well-shaped products of a dtype reach: its peak times its efficiency."""
        return self.peak(dtype) * self.matmul_efficiency_by_dtype.get(dtype, self.matmul_efficiency)


# A device that computes in no time: a run takes only the time of its communication.
FREE = Device(
    name="free",
    peak_flops_per_s={"float32": float("inf")},
    memory_bytes=float("inf"),
    memory_bandwidth_bytes_per_s=float("inf"),
    source="idealized: compute takes no time",
)
