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

from lablib.hardware.checks import check_numbers, check_times
from lablib.signature import check_fields, check_type, whole_number
from lablib.signature.bounds import NonNegativeInt


@dataclass(frozen=True)
class Device:
    """A GPU, or the share of a CPU for one process.

    Attributes:
        name: e.g. "H100-80GB-SXM".
        peak_flops_per_s: dense peak for matrix products by dtype name ("float64", "float32", "tfloat32", "float16",
            "bfloat16", "float8", "float4"), without sparsity. A dtype that is missing falls back on "float32".
        matmul_efficiency: share of the peak that large matrix products reach in practice, in (0, 1].
        memory_bytes: capacity.
        memory_bandwidth_bytes_per_s: peak of reads and writes together.
        kernel_overhead_s: minimum time of every operation: to launch and run one kernel. (One hop of a collective,
            `Link.latency_s`, is less: it is within a kernel that runs already.)
        launch_s: of `kernel_overhead_s`, the time that the host takes to launch a kernel. The host launches ahead: a
            kernel starts when it is launched and its stream is free, so that a busy device hides launches. Positive
            for GPUs (`is_gpu`), which have rates per operator (lablib/cost/efficiency.py). 0: the processor launches
            and computes in turn, and a simulated span holds all of `kernel_overhead_s`.
        source: source of the figures.
        num_cores: streaming multiprocessors, compute units, matrix units, or CPU cores, each of which computes one
            output tile at a time; 0 leaves waves out.
        matmul_tile: rows and columns of the output tile that one core computes; (1, 1) leaves tiles out.
        matmul_half_depth: the K at which a product reaches half of its efficiency, a factor K / (K + half depth), in
            the fastest dtype wider than 8 bits; it models a fixed time, so a slower dtype has a smaller half depth.
        memory_efficiency: share of the memory bandwidth that streaming kernels reach, in (0, 1].
        cache_bytes: last-level cache; operands that fit in it together move at its speed. 0: no cache.
        cache_bandwidth_bytes_per_s: that speed; positive where there is a cache.
        element_s: seconds of arithmetic per element, by operator ("gelu", "gelu tanh", "_softmax"), for functions that
            the device computes more slowly than it reads and writes them: functions on a CPU. Empty: none, as on GPUs
            (lablib/cost/elements.py). The planner, for runs on GPUs, does not read it.
        matmul_efficiency_by_dtype: `matmul_efficiency` of dtypes with a different one, by dtype name.
        power_w: thermal design power in watts, where the source states it.
        row_alignment_bytes: a power of two; matrices with rows that are multiples of it are loaded at full width. 0:
            any.
        flops_per_joule: FLOPs of 16-bit products per joule, where it is known: under its power limit a device sustains
            power_w * flops_per_joule. Used by the planner only.
        attention_generation: the generation of flash attention written for its matrix units: 2 for Ampere, 3 for
            Hopper, 4 for Blackwell. Used by the planner only.
        compute_capability: major and minor number of CUDA's (NVIDIA, "CUDA GPU Compute Capability",
            developer.nvidia.com/cuda-gpus); (0, 0): no device of NVIDIA.
    """

    name: str
    peak_flops_per_s: Mapping[str, float] = field(hash=False)
    memory_bytes: float
    memory_bandwidth_bytes_per_s: float
    matmul_efficiency: float = 1.0
    kernel_overhead_s: float = 0.0
    source: str = ""
    num_cores: int = 0
    matmul_tile: tuple[int, int] = (1, 1)
    matmul_half_depth: float = 0.0
    memory_efficiency: float = 1.0
    cache_bytes: float = 0.0
    cache_bandwidth_bytes_per_s: float = 0.0
    matmul_efficiency_by_dtype: Mapping[str, float] = field(default_factory=dict, hash=False)
    power_w: float | None = None
    row_alignment_bytes: int = 0
    flops_per_joule: float | None = None
    attention_generation: int = 2
    launch_s: float = 0.0
    element_s: Mapping[str, float] = field(default_factory=dict, hash=False)
    compute_capability: tuple[NonNegativeInt, NonNegativeInt] = (0, 0)

    def __post_init__(self) -> None:
        for name in ("peak_flops_per_s", "matmul_efficiency_by_dtype", "element_s"):
            check_type(f"{name} of {self.name!r}", getattr(self, name), Mapping)
        if "float32" not in self.peak_flops_per_s:
            raise ValueError(f"a device needs a float32 peak: {self.name} has {sorted(self.peak_flops_per_s)}; add one")
        self._check_shares()
        self._check_positive()
        self._check_counts()
        check_fields(self)

    def _check_shares(self) -> None:
        shares = {name: getattr(self, name) for name in ("matmul_efficiency", "memory_efficiency")}
        shares |= {f"matmul_efficiency_by_dtype[{k!r}]": v for k, v in self.matmul_efficiency_by_dtype.items()}
        check_numbers(self.name, shares)
        for figure, share in shares.items():
            if not 0 < share <= 1:
                raise ValueError(f"{figure} is a share in (0, 1]: got {share} for {self.name}")

    def _check_positive(self) -> None:
        positive = {f"peak_flops_per_s[{dtype!r}]": peak for dtype, peak in self.peak_flops_per_s.items()}
        positive |= {name: getattr(self, name) for name in ("memory_bytes", "memory_bandwidth_bytes_per_s")}
        if self.cache_bytes:
            positive["cache_bandwidth_bytes_per_s"] = self.cache_bandwidth_bytes_per_s
        if self.power_w is not None:
            positive["power_w"] = self.power_w
        if self.flops_per_joule is not None:
            positive["flops_per_joule"] = self.flops_per_joule
        check_numbers(self.name, positive)
        for figure, value in positive.items():
            if not value > 0:
                raise ValueError(f"{figure} must be positive: got {value} for {self.name}")
        check_times(self.name, {name: getattr(self, name) for name in ("kernel_overhead_s", "matmul_half_depth")})
        check_times(self.name, {"launch_s": self.launch_s})
        check_times(self.name, {f"element_s[{operator!r}]": seconds for operator, seconds in self.element_s.items()})
        if self.launch_s > self.kernel_overhead_s:
            raise ValueError(
                f"launch_s is a part of kernel_overhead_s: got {self.launch_s:g} s of {self.kernel_overhead_s:g} s for "
                f"{self.name}; give at most that"
            )
        check_numbers(self.name, {name: getattr(self, name) for name in ("cache_bytes", "cache_bandwidth_bytes_per_s")})
        for figure in ("cache_bytes", "cache_bandwidth_bytes_per_s"):
            if not getattr(self, figure) >= 0:
                raise ValueError(f"{figure} must be 0 or more: got {getattr(self, figure)} for {self.name}")

    def _check_counts(self) -> None:
        whole_number("num_cores", self.num_cores, 0, 132, f" for {self.name}")
        whole_number("attention_generation", self.attention_generation, 1, 2, f" for {self.name}")
        alignment = self.row_alignment_bytes
        if not (isinstance(alignment, int) and alignment >= 0 and alignment & (alignment - 1) == 0):
            raise ValueError(f"row_alignment_bytes is a power of two or 0: got {alignment!r} for {self.name}")
        tile = self.matmul_tile
        is_pair = isinstance(tile, tuple) and len(tile) == 2
        if not (is_pair and all(isinstance(extent, int) and extent >= 1 for extent in tile)):
            raise ValueError(f"matmul_tile is two whole numbers, 1 or more: got {tile!r} for {self.name}")

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
