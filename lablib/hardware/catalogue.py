"""The machines that have a name. Every figure says where it comes from.

Peak figures are dense (no sparsity). `matmul_efficiency` is the measured maximum achievable matmul FLOP/s (MAMF) over
the peak, from the same tables. Latencies are alpha of NCCL's own tuning model for the ring algorithm and the LL128
protocol (NVIDIA/nccl, src/graph/tuning.cc, `hwLat`): NVLink 1.9 us, PCIe 2.5 us, network 4.0 us.
"""

from collections.abc import Mapping
from types import MappingProxyType

from lablib.errors import unknown_name
from lablib.hardware.cluster import Cluster
from lablib.hardware.device import Device
from lablib.hardware.link import Link
from lablib.hardware.topology import FatTree

_STAS = "S. Bekman, Machine Learning Engineering (github.com/stas00/ml-engineering, 744d01e18b)"
_ACCELERATORS = f"{_STAS}, compute/accelerator: TFLOPS, MAMF and memory tables"
_NETWORK = f"{_STAS}, network: interconnect tables"
_NCCL = "latency: NVIDIA/nccl src/graph/tuning.cc, hwLat, ring, LL128"
# A CUDA kernel takes a few microseconds to launch; eager PyTorch adds its own dispatch. One figure for both.
_KERNEL_OVERHEAD_S = 5e-6

GB = 1e9
TFLOPS = 1e12


def _gbps(gigabits_per_s: float) -> float:
    return gigabits_per_s * 1e9 / 8


DEVICES: Mapping[str, Device] = MappingProxyType(
    {
        device.name: device
        for device in (
            Device(
                name="A100-80GB-SXM",
                peak_flops_per_s={
                    "float64": 19.5 * TFLOPS,
                    "float32": 19.5 * TFLOPS,
                    "tfloat32": 156 * TFLOPS,
                    "float16": 312 * TFLOPS,
                    "bfloat16": 312 * TFLOPS,
                },
                matmul_efficiency=271.2 / 312,
                memory_bytes=80 * GB,
                memory_bandwidth_bytes_per_s=2.0e12,
                kernel_overhead_s=_KERNEL_OVERHEAD_S,
                source=f"{_ACCELERATORS}; float64 tensor cores: NVIDIA A100 datasheet",
            ),
            Device(
                name="H100-80GB-SXM",
                peak_flops_per_s={
                    "float64": 67 * TFLOPS,
                    "float32": 67 * TFLOPS,
                    "tfloat32": 494.5 * TFLOPS,
                    "float16": 989 * TFLOPS,
                    "bfloat16": 989 * TFLOPS,
                    "float8": 1979 * TFLOPS,
                },
                matmul_efficiency=794.5 / 989,
                memory_bytes=80 * GB,
                memory_bandwidth_bytes_per_s=3.35e12,
                kernel_overhead_s=_KERNEL_OVERHEAD_S,
                source=f"{_ACCELERATORS}; float64 tensor cores: NVIDIA H100 datasheet",
            ),
            Device(
                name="H200-SXM",
                peak_flops_per_s={
                    "float64": 67 * TFLOPS,
                    "float32": 67 * TFLOPS,
                    "tfloat32": 494.5 * TFLOPS,
                    "float16": 989 * TFLOPS,
                    "bfloat16": 989 * TFLOPS,
                    "float8": 1979 * TFLOPS,
                },
                matmul_efficiency=794.5 / 989,
                memory_bytes=141 * GB,
                memory_bandwidth_bytes_per_s=4.8e12,
                kernel_overhead_s=_KERNEL_OVERHEAD_S,
                source=f"{_ACCELERATORS}; float64 tensor cores: NVIDIA H200 datasheet",
            ),
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

LINKS: Mapping[str, Link] = MappingProxyType(
    {
        "nvlink3": Link("NVLink 3", 1.9e-6, 300 * GB, f"{_NETWORK}; {_NCCL}"),
        "nvlink4": Link("NVLink 4", 1.9e-6, 450 * GB, f"{_NETWORK}; {_NCCL}"),
        "nvlink5": Link("NVLink 5", 1.9e-6, 900 * GB, f"{_NETWORK}; {_NCCL}"),
        "pcie3": Link("PCIe 3 x16", 2.5e-6, 15.75 * GB, f"{_NETWORK}; {_NCCL}"),
        "pcie4": Link("PCIe 4 x16", 2.5e-6, 31 * GB, f"{_NETWORK}; {_NCCL}"),
        "pcie5": Link("PCIe 5 x16", 2.5e-6, 63 * GB, f"{_NETWORK}; {_NCCL}"),
        "infiniband-hdr": Link("InfiniBand HDR, 200 Gb/s", 4.0e-6, _gbps(200), f"{_NETWORK}; {_NCCL}"),
        "infiniband-ndr": Link("InfiniBand NDR, 400 Gb/s", 4.0e-6, _gbps(400), f"{_NETWORK}; {_NCCL}"),
        # RoCE runs the same verbs over Ethernet: the same NIC, switches about 1 us slower in all.
        "roce-100": Link(
            "RoCE v2, 100 Gb/s", 5.0e-6, _gbps(100), f"line rate; {_NCCL}, plus 1 us for Ethernet switching"
        ),
        "roce-400": Link(
            "RoCE v2, 400 Gb/s", 5.0e-6, _gbps(400), f"line rate; {_NCCL}, plus 1 us for Ethernet switching"
        ),
        "ethernet-25": Link("Ethernet TCP, 25 Gb/s", 30e-6, _gbps(25), "line rate; latency: order of magnitude of TCP"),
        "loopback": Link(
            "loopback TCP",
            200e-6,
            1.2e9,
            "gloo on a 2-core machine: a 64 MB all-reduce of 4 ranks moves 96 MB a rank in about 0.09 s",
        ),
    }
)

CLUSTERS: Mapping[str, Cluster] = MappingProxyType(
    {
        cluster.name: cluster
        for cluster in (
            Cluster(
                name="dgx-a100",
                device=DEVICES["A100-80GB-SXM"],
                devices_per_node=8,
                intra=LINKS["nvlink3"],
                inter=LINKS["infiniband-hdr"],
                topology=FatTree(),
                source="NVIDIA DGX A100: 8 GPUs, NVSwitch, 8 x 200 Gb/s HDR",
            ),
            Cluster(
                name="dgx-h100",
                device=DEVICES["H100-80GB-SXM"],
                devices_per_node=8,
                intra=LINKS["nvlink4"],
                inter=LINKS["infiniband-ndr"],
                topology=FatTree(),
                source="NVIDIA DGX H100: 8 GPUs, NVSwitch, 8 x 400 Gb/s NDR",
            ),
            Cluster(
                name="hgx-h200",
                device=DEVICES["H200-SXM"],
                devices_per_node=8,
                intra=LINKS["nvlink4"],
                inter=LINKS["infiniband-ndr"],
                topology=FatTree(),
                source="NVIDIA HGX H200: 8 GPUs, NVSwitch, 8 x 400 Gb/s NDR",
            ),
            Cluster(
                name="pcie-a100",
                device=DEVICES["A100-80GB-SXM"],
                devices_per_node=8,
                intra=LINKS["pcie4"],
                inter=LINKS["roce-100"],
                topology=FatTree(oversubscription=2.0),
                source="a budget node: the same GPU without NVLink, 100 Gb/s RoCE on a 2:1 oversubscribed fat tree",
            ),
            Cluster(
                name="laptop",
                device=DEVICES["laptop-core"],
                devices_per_node=64,
                intra=LINKS["loopback"],
                inter=LINKS["ethernet-25"],
                topology=FatTree(),
                source="the machine at hand: gloo processes that talk over loopback",
            ),
        )
    }
)


def find_cluster(name: str | Cluster) -> Cluster:
    """The cluster of that name; a `Cluster` is returned as it is. Raises ValueError with the nearest names."""
    if isinstance(name, Cluster):
        return name
    if not isinstance(name, str) or name not in CLUSTERS:
        raise unknown_name("cluster", name, list(CLUSTERS))
    return CLUSTERS[name]
