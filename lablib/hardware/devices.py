"""Catalogue of named accelerators, with a source for every figure.

Peaks are dense (no sparsity). The rate of large products is the measured maximum achievable matmul FLOP/s (MAMF), found
by search over shapes: here, of a product of depth 8,192 with tiles that fill their waves. The half depth was chosen so
that the model agrees with published products of other depths: MAMF's best shapes, and DeepGEMM's table of small ones
(github.com/deepseek-ai/DeepGEMM, README at 55ab91f, 2025-03-25; H800 has the cores of an H100). For a device without
such a measurement it is a guess from its neighbours, and its source says so.

NVIDIA's libraries load rows at full width if they are multiples of 16 bytes (lablib/cost/matmul.py). On an MI250X
products with other rows take equally long (github.com/EleutherAI/cookbook, 27dff48,
sizing/results/gemm_data/mm/ksweep_low).
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from lablib.hardware.device import Device

_STAS = "S. Bekman, Machine Learning Engineering (github.com/stas00/ml-engineering, 744d01e18b)"
_ACCELERATORS = f"{_STAS}, compute/accelerator: TFLOPS, MAMF, memory and cache tables"
_UNVERIFIED = "from memory, not verified:"
# A CUDA kernel takes a few microseconds to launch; eager PyTorch adds its dispatch. One figure for all. The device's
# part is 1.3 us, between two kernels of its queue, measured in a CUDA graph on an H100 (Spector et al., "Look Ma, No
# Bubbles!", Hazy Research blog, 2025-05-27). The rest is the host's.
_KERNEL_OVERHEAD_S = 5e-6
_LAUNCH_S = _KERNEL_OVERHEAD_S - 1.3e-6
# Between the published rate of thin products, which read one large matrix (DeepGEMM's reach 2,668 of 3,350 GB/s, 0.80)
# and an unsourced rate of copies, about 0.9. One figure for all.
_MEMORY_EFFICIENCY = 0.85
# FLOPs of 16-bit products per joule over a whole training step, by generation. Fitted to all published runs at once
# (lablib/validation): an A100 sustains 248 of its 312 TFLOP/s at 400 W, an H100 595 of 989 at 700 W, a B200 1,000 of
# 2,250 at 1,000 W, in 8 bits 2,350 of 4,500, in 4 bits 2,900 of 9,000. Only the planner uses them.
_AMPERE_FLOPS_PER_JOULE = 0.62e12
_HOPPER_FLOPS_PER_JOULE = 0.85e12
_BLACKWELL_FLOPS_PER_JOULE = 1.0e12
_BLACKWELL_FLOPS_PER_JOULE_BY_DTYPE = {"float8": 2.35e12, "float4": 2.9e12}
# Two whole steps of a GPT (124 M and 1.3 G parameters, bfloat16, eager) on an H200 take as long as simulated if their
# products reach 0.922 and 0.913 of their rate alone (tests/operators/measured/h200.jsonl). Every Hopper has its cores.
_HOPPER_STEP_SHARE = 0.918
# Of an MI300X in one step of torchtitan (pytorch/ao, torchao/float8/README.md): 450 of its 668 TFLOP/s alone.
_CDNA_FLOPS_PER_JOULE = 0.6e12
_COMMON = f"{_UNVERIFIED} 0.85 of the bandwidth, 5 us a launch"

GB = 1e9
MIB = 2**20
TFLOPS = 1e12


def _efficiency(mamf: float, peak: float, half_depth: float) -> float:
    """Share of the peak at infinite depth, if a depth of 8,192 reaches `mamf`."""
    return mamf / peak * (1 + half_depth / 8192)


def _gpu(**figures: Any) -> Device:
    defaults: dict[str, Any] = {
        "kernel_overhead_s": _KERNEL_OVERHEAD_S,
        "launch_s": _LAUNCH_S,
        "memory_efficiency": _MEMORY_EFFICIENCY,
    }
    return Device(**defaults | figures)


def _sizes(name: str, memory_gb: float, tb_per_s: float, power_w: float | None = None) -> dict[str, Any]:
    """Name, memory and its bandwidth, and the power if the generation does not state it."""
    sizes = {"name": name, "memory_bytes": memory_gb * GB, "memory_bandwidth_bytes_per_s": tb_per_s * 1e12}
    return sizes | ({"power_w": power_w} if power_w else {})


def _peaks(*, half: float, **tflops: float) -> dict[str, float]:
    """Peaks in FLOP/s from TFLOP/s by dtype; `half`: of float16 and bfloat16."""
    order = ("float64", "float32", "tfloat32", "float16", "bfloat16", "float8", "float4")
    peaks = tflops | {"float16": half, "bfloat16": half}
    return {dtype: peaks[dtype] * TFLOPS for dtype in order if dtype in peaks}


_HOPPER_PEAKS = _peaks(float64=67, float32=67, tfloat32=494.5, half=989, float8=1979)
_AMPERE_PEAKS = _peaks(float64=19.5, float32=19.5, tfloat32=156, half=312)
# Any Blackwell GPU reaches the same share of its peak as a measured B200; float4: guessed.
_BLACKWELL = {
    "num_cores": 148,
    "matmul_tile": (128, 256),
    "matmul_half_depth": 64.0,
    "row_alignment_bytes": 16,
    "matmul_efficiency": _efficiency(1745, 2250, 64),
    "matmul_efficiency_by_dtype": {"float8": _efficiency(3432.5, 4500, 128), "float4": 0.7},
    "flops_per_joule": _BLACKWELL_FLOPS_PER_JOULE,
    "flops_per_joule_by_dtype": _BLACKWELL_FLOPS_PER_JOULE_BY_DTYPE,
    "attention_generation": 4,
    # cuDNN's kernels on a B200, 4,096 to 131,072 tokens in heads of 128, reach 0.74 to 0.97 of the modelled rate: 980
    # to 1,330 TFLOP/s forward, 820 to 1,070 backward (MooreThreads/SimuMax, configs/system/b200_bf16_ceperm.json,
    # 4dcaae5).
    "attention_efficiency": 0.82,
    "compute_capability": (10, 0),
}
_BLACKWELL_NOTES = (
    f"shares of the peak: of a B200 in {_ACCELERATORS}; float4's share guessed; {_UNVERIFIED} 148 SMs; "
    f"L2 of 126 MB left out, its bandwidth is not published; {_COMMON}"
)
_BLACKWELL_ULTRA = _BLACKWELL | {
    "compute_capability": (10, 3),
    "flops_per_joule_by_dtype": {"float8": 2.35e12, "float4": 4.5e12},
}
_VERDA = "verda.com/blog/gb300-nvl72-architecture"
_KLOCKWOOD = "glennklockwood.com/garden/processors"
_HOPPER_TILES = {
    "num_cores": 132,
    "matmul_tile": (128, 256),
    "matmul_half_depth": 160.0,
    "row_alignment_bytes": 16,
    "step_share": _HOPPER_STEP_SHARE,
    "flops_per_joule": _HOPPER_FLOPS_PER_JOULE,
    "attention_generation": 3,
    "compute_capability": (9, 0),
}
_HOPPER = _HOPPER_TILES | {"cache_bytes": 50 * MIB, "cache_bandwidth_bytes_per_s": 5.5e12}
_HOPPER_80GB = _HOPPER | {
    "matmul_efficiency": _efficiency(794.5, 989, 160),
    "matmul_efficiency_by_dtype": {"float8": _efficiency(1402.6, 1979, 320)},
}
_AMPERE = {
    "peak_flops_per_s": _AMPERE_PEAKS,
    "num_cores": 108,
    "matmul_tile": (128, 256),
    "matmul_half_depth": 85.0,
    "row_alignment_bytes": 16,
    "matmul_efficiency": _efficiency(271.2, 312, 85),
    "cache_bytes": 40 * MIB,
    "cache_bandwidth_bytes_per_s": 5120 * 1.41e9,
    "power_w": 400.0,
    "flops_per_joule": _AMPERE_FLOPS_PER_JOULE,
    "attention_generation": 2,
    "compute_capability": (8, 0),
}
_AMPERE_NOTES = f"{_UNVERIFIED} L2 at 5,120 bytes a clock of 1.41 GHz (NVIDIA A100 white paper), 400 W; {_COMMON}"


# A product of 8192 x 8192 x 8192 in bfloat16 on a v6e, in its profiler's trace: 827 of 918 TFLOP/s
# (AI-Hypercomputer/tpu-recipes, microbenchmarks/README.md, c8cfe2f).
_TPU_EFFICIENCY = 0.90
NEURON = "aws-neuron/aws-neuron-sdk, 81ce03a, about-neuron/arch/neuron-hardware/"
# With it six other training runs on Trn1 (about-neuron/benchmarks/trn1/trn1_trn1n_nlp_data.csv; none is in
# lablib/validation) take 1% less than measured in the median; two of Llama 2 in four stages, 24% and 41% less.
_TRAINIUM_EFFICIENCY = 0.55


def _by_datasheet() -> Iterator[Device]:
    """Devices with no measurement of their own: peaks and sizes of their data sheets, rates of their generation.

    float16 with sums in 32 bits, float8 if it has units for it, and float32: in TFLOP/s; GB, GB/s, W; cores.
    """
    kinds: Mapping[str, dict[str, Any]] = {
        "Ampere": {"matmul_efficiency": 0.85, "flops_per_joule": _AMPERE_FLOPS_PER_JOULE, "compute_capability": (8, 0)},
        "GA102": {"matmul_efficiency": 0.85, "compute_capability": (8, 6)},
        "Ada": {"matmul_efficiency": 0.8, "compute_capability": (8, 9)},
        "Hopper": _HOPPER_TILES | {"matmul_efficiency": 0.8},
        "CDNA": {"matmul_efficiency": 0.5, "flops_per_joule": _CDNA_FLOPS_PER_JOULE},
        "Gaudi": {"matmul_efficiency": 0.75, "launch_s": 0.0},
        "TPU": {"matmul_efficiency": _TPU_EFFICIENCY, "launch_s": 0.0},
    }
    # A v6e's whole steps in MaxText (AI-Hypercomputer/tpu-recipes, training/trillium) take a fourth longer than so.
    own = {"TPU-v6e": {"matmul_efficiency": 0.7}, "TPU-v4": {"matmul_efficiency": 0.85}}
    # Of integers: docs.cloud.google.com/tpu, by generation.
    eight_bits = {"TPU-v4": 275, "TPU-v5p": 918, "TPU-v5e": 394, "TPU-v6e": 1836}
    rows = (
        ("A100-80GB-PCIe", "Ampere", 312, 0, 19.5, 80, 1935, 300, 108),
        ("RTX-A6000", "GA102", 154.8, 0, 38.7, 48, 768, 300, 84),
        ("RTX-4090", "Ada", 165.2, 330.3, 82.6, 24, 1008, 450, 128),
        ("L40S", "Ada", 362, 733, 91.6, 48, 864, 350, 142),
        ("H100-80GB-PCIe", "Hopper", 756, 1513, 51, 80, 2000, 350, 114),
        ("H20", "Hopper", 148, 296, 44, 96, 4000, 400, 78),
        ("MI250X", "CDNA", 383, 0, 47.9, 128, 3277, 560, 220),
        ("MI325X", "CDNA", 1307, 2614, 163.4, 256, 6000, 1000, 304),
        ("Gaudi-2", "Gaudi", 432, 865, 11, 96, 2450, 600, 0),
        # A matrix unit multiplies bfloat16 (TPU v4: Jouppi et al., 2023, arXiv 2304.01433); XLA makes float32 of six.
        ("TPU-v4", "TPU", 275, 0, 275 / 6, 32, 1200, None, 8),
        ("TPU-v5p", "TPU", 459, 0, 459 / 6, 95, 2760, None, 8),
        ("TPU-v5e", "TPU", 197, 0, 197 / 6, 16, 819, None, 4),
        ("TPU-v6e", "TPU", 918, 0, 918 / 6, 32, 1640, None, 2),
        ("TPU-7x", "TPU", 2307, 4614, 2307 / 6, 192, 7370, None, 4),
    )
    for name, kind, half, narrow, single, memory_gb, gb_per_s, power_w, cores in rows:
        halves = ("bfloat16",) if kind == "TPU" else ("bfloat16", "float16")
        peaks = {"float32": single, **dict.fromkeys(halves, half), **({"float8": narrow} if narrow else {})}
        peaks |= {"int8": eight_bits[name]} if name in eight_bits else {}
        tile = {"matmul_tile": (256, 256)} if name in ("TPU-v6e", "TPU-7x") else {"matmul_tile": (128, 128)}
        yield _gpu(
            **{"name": name, "num_cores": cores, **tile} | kinds[kind] | own.get(name, {}),
            peak_flops_per_s={dtype: peak * TFLOPS for dtype, peak in peaks.items()},
            memory_bytes=memory_gb * GB,
            memory_bandwidth_bytes_per_s=gb_per_s * GB,
            power_w=power_w,
            source=f"data sheet, {_UNVERIFIED} all figures; efficiency of its generation, guessed; {_COMMON}",
        )


DEVICES: Mapping[str, Device] = MappingProxyType(
    {
        device.name: device
        for device in (
            _gpu(
                **_sizes("V100-32GB-SXM2", 32, 0.9, 300.0),
                peak_flops_per_s={"float64": 7.8 * TFLOPS, "float32": 15.7 * TFLOPS, "float16": 125 * TFLOPS},
                matmul_efficiency=0.8,
                num_cores=80,
                matmul_tile=(128, 256),
                matmul_half_depth=64.0,
                row_alignment_bytes=16,
                compute_capability=(7, 0),
                source=(
                    "float16: bigscience experiments/gpt2.md, about 125 TFLOPS; no unit for bfloat16; "
                    f"{_UNVERIFIED} float32, float64, memory, 80 SMs, 300 W; efficiency and half depth guessed; "
                    f"{_COMMON}"
                ),
            ),
            _gpu(
                **_sizes("A100-40GB-SXM", 40, 1.555),
                **_AMPERE,
                source=(
                    f"{_ACCELERATORS}; float64 tensor cores: NVIDIA A100 datasheet; "
                    f"{_UNVERIFIED} 40 GB at 1.555 TB/s; {_AMPERE_NOTES}"
                ),
            ),
            _gpu(
                **_sizes("A100-80GB-SXM", 80, 2.0),
                **_AMPERE,
                source=f"{_ACCELERATORS}; float64 tensor cores: NVIDIA A100 datasheet; {_AMPERE_NOTES}",
            ),
            _gpu(
                **_sizes("A800-80GB-SXM", 80, 2.0),
                **_AMPERE,
                source=(
                    "an A100-80GB-SXM but for its NVLink (Reuters, 2022-11-08, on NVIDIA's A800; links.py): "
                    f"{_ACCELERATORS}; {_AMPERE_NOTES}"
                ),
            ),
            _gpu(
                **_sizes("H100-80GB-SXM", 80, 3.35, 700.0),
                peak_flops_per_s=_HOPPER_PEAKS,
                **_HOPPER_80GB,
                source=(
                    f"{_ACCELERATORS}; float64 tensor cores: NVIDIA H100 datasheet; "
                    f"{_UNVERIFIED} L2 at 5.5 TB/s, 700 W; {_COMMON}"
                ),
            ),
            _gpu(
                **_sizes("H800-80GB-SXM", 80, 3.35, 700.0),
                peak_flops_per_s=_HOPPER_PEAKS | {"float64": 1 * TFLOPS},
                **_HOPPER_80GB,
                source=(
                    "an H100-80GB-SXM but for NVLink and float64: DeepSeek-AI, 2025, arXiv 2505.09343, section 4.1 "
                    f"(links.py); {_ACCELERATORS}; {_UNVERIFIED} float64, L2 at 5.5 TB/s, 700 W; {_COMMON}"
                ),
            ),
            _gpu(
                **_sizes("H100-96GB-SXM-500W", 96, 2.4, 500.0),
                peak_flops_per_s=_HOPPER_PEAKS,
                **(_HOPPER | {"flops_per_joule": _HOPPER_FLOPS_PER_JOULE * (700 / 500) ** (2 / 3)}),
                # Near its limit a chip's power grows with the cube of its clock: 500 of 700 W leave 0.89 of it.
                matmul_efficiency=_efficiency(794.5 * (500 / 700) ** (1 / 3), 989, 160),
                matmul_efficiency_by_dtype={"float8": _efficiency(1402.6 * (500 / 700) ** (1 / 3), 1979, 320)},
                source=(
                    "memory, power limit: github.com/pytorch/torchtitan, b5bcd76c66, benchmarks/"
                    "llama3_h100_202412_torchtitan.md, which does not list its peak; peaks: of an H100-80GB-SXM; "
                    f"shares of them: by the cube root of the power, guessed; {_UNVERIFIED} L2 at 5.5 TB/s; {_COMMON}"
                ),
            ),
            _gpu(
                **_sizes("H200-SXM", 141, 4.8, 700.0),
                peak_flops_per_s=_HOPPER_PEAKS,
                **_HOPPER,
                matmul_efficiency=_efficiency(794.5, 989, 160),
                matmul_efficiency_by_dtype={"float8": _efficiency(1453.4, 1979, 320)},
                source=(
                    f"{_ACCELERATORS}; float64 tensor cores: NVIDIA H200 datasheet; "
                    f"{_UNVERIFIED} L2 at 5.5 TB/s, 700 W; {_COMMON}"
                ),
            ),
            _gpu(
                **_sizes("B200-SXM", 180, 8.0, 1000.0),
                peak_flops_per_s=_peaks(float64=40, float32=80, tfloat32=1125, half=2250, float8=4500, float4=9000),
                **_BLACKWELL,
                source=f"{_ACCELERATORS}; {_UNVERIFIED} float64, 1,000 W; {_BLACKWELL_NOTES}",
            ),
            _gpu(
                **_sizes("B300-SXM", 270, 7.7, 1100.0),
                peak_flops_per_s=_peaks(float64=1.25, float32=75, tfloat32=1125, half=2250, float8=4500, float4=13125),
                **_BLACKWELL_ULTRA,
                source=f"peaks: {_KLOCKWOOD}/B300; memory, power: {_VERDA}; {_BLACKWELL_NOTES}",
            ),
            _gpu(
                **_sizes("GB200", 186, 8.0, 1200.0),
                peak_flops_per_s=_peaks(float64=45, float32=90, tfloat32=1250, half=2500, float8=5000, float4=10000),
                **_BLACKWELL,
                source=(
                    f"peaks at 1,200 W: {_KLOCKWOOD}/B200 ({_VERDA} has the peaks of a B200); "
                    f"{_UNVERIFIED} a 72nd of the rack's 13.4 TB; {_BLACKWELL_NOTES}"
                ),
            ),
            _gpu(
                **_sizes("GB300", 279, 8.0, 1400.0),
                peak_flops_per_s=_peaks(float64=1.4, float32=80, tfloat32=1250, half=2500, float8=5000, float4=15000),
                **_BLACKWELL_ULTRA,
                source=f"{_VERDA}; {_UNVERIFIED} float64; {_BLACKWELL_NOTES}",
            ),
            _gpu(
                **_sizes("MI300X", 192, 5.3, 750.0),
                peak_flops_per_s=_peaks(float64=163.4, float32=163.4, tfloat32=653.7, half=1300, float8=2610),
                matmul_efficiency=_efficiency(668.4, 1300, 128),
                flops_per_joule=_CDNA_FLOPS_PER_JOULE,
                flops_per_joule_by_dtype={"float8": 1.1 * _CDNA_FLOPS_PER_JOULE},
                num_cores=304,
                matmul_tile=(256, 256),
                matmul_half_depth=128.0,
                cache_bytes=256 * MIB,
                cache_bandwidth_bytes_per_s=17.2e12,
                source=(
                    f"{_ACCELERATORS} (bfloat16 is 1,307.4 TFLOPS by formula, 1,300 in the table); {_UNVERIFIED} "
                    f"float64, 304 compute units, tile, half depth, Infinity Cache at 17.2 TB/s, 750 W; {_COMMON}"
                ),
            ),
            _gpu(
                name="Trainium-NeuronCore-v2",
                launch_s=0.0,  # XLA runs whole programs
                # Half of a chip's 190 and 47.5 TFLOP/s. One systolic array of 128 x 128, fed with up to 512 columns.
                peak_flops_per_s=_peaks(float32=23.75, tfloat32=95, half=95, float8=95),
                matmul_efficiency=_TRAINIUM_EFFICIENCY,
                num_cores=1,
                matmul_tile=(128, 512),
                memory_bytes=16 * 2**30,
                memory_bandwidth_bytes_per_s=410 * GB,
                source=(
                    f"half of a chip: {NEURON}trainium.rst, and nki/guides/architecture/trainium_inferentia2_arch.rst; "
                    f"efficiency: see above; {_COMMON}"
                ),
            ),
            *_by_datasheet(),
            Device(
                name="laptop-core",
                peak_flops_per_s={"float32": 60e9, "float64": 30e9, "bfloat16": 20e9, "float16": 20e9},
                memory_bytes=8 * GB,
                memory_bandwidth_bytes_per_s=10e9,
                kernel_overhead_s=10e-6,
                source="order of magnitude of one core of a 2-core machine running eager PyTorch; not a specification",
            ),
        )
    }
)
