"""Catalogue of named wires, per device and direction, with a source for every figure.

Latencies are alpha of NCCL's own tuning model for the ring algorithm and the LL128 protocol (NVIDIA/nccl,
src/graph/tuning.cc, `hwLat`): NVLink 1.9 us, PCIe 2.5 us, network 4.0 us; others as their source says. Sums
made in the switch take 25 us there (NVLS, NCCL 2.21 to 2.29); NVSwitch can add from its third generation on, NVLink 4.
"""

from collections.abc import Mapping
from types import MappingProxyType

from lablib.hardware.devices import NEURON
from lablib.hardware.link import Link

_STAS = "S. Bekman, Machine Learning Engineering (github.com/stas00/ml-engineering, 744d01e18b)"
_NETWORK = f"{_STAS}, network: interconnect tables"
_NCCL = "latency: NVIDIA/nccl src/graph/tuning.cc, hwLat, ring, LL128"
_NVLS = f"{_NCCL}; sums in the switch: NCCL's user guide, NCCL_NVLS_ENABLE (NVSwitch 3 and later), hwLat of NVLS"
_LIMITED = (
    "400 GB/s, both directions together: DeepSeek-AI, Insights into DeepSeek-V3, 2025, arXiv 2505.09343, section 4.1 "
    "(H800: 900 reduced to 400); Reuters, 2022-11-08, on NVIDIA's A800 (600 reduced to 400)"
)
_SCALING_BOOK = "jax-ml/scaling-book, tpus.md: one-way bandwidth of a link; 7x: from memory, not verified; about 1 us"
_TRN1 = f"{NEURON}trn1-arch.rst"
_NEURONLINK = f"{_TRN1}: 384 GiB/s; from memory, not verified: both directions together; latency guessed"
_UNVERIFIED = "from memory, not verified:"
_EFA = f"{_UNVERIFIED} latency, order of magnitude"

GB = 1e9


def _gbps(gigabits_per_s: float) -> float:
    return gigabits_per_s * 1e9 / 8


LINKS: Mapping[str, Link] = MappingProxyType(
    {
        "nvlink2": Link("NVLink 2", 1.9e-6, 150 * GB, f"{_NETWORK}; {_NCCL}"),
        "nvlink3": Link("NVLink 3", 1.9e-6, 300 * GB, f"{_NETWORK}; {_NCCL}"),
        # Of an A800 and an H800: 400 GB/s in both directions together.
        "nvlink3-800": Link("NVLink 3 of an A800", 1.9e-6, 200 * GB, f"{_LIMITED}; {_NCCL}"),
        "nvlink4-800": Link("NVLink 4 of an H800", 1.9e-6, 200 * GB, f"{_LIMITED}; {_NVLS}", nvls_latency_s=25e-6),
        "nvlink4": Link("NVLink 4", 1.9e-6, 450 * GB, f"{_NETWORK}; {_NVLS}", nvls_latency_s=25e-6),
        "nvlink5": Link("NVLink 5", 1.9e-6, 900 * GB, f"{_NETWORK}; {_NVLS}", nvls_latency_s=25e-6),
        # Seven wires of 64 GB/s to seven neighbours: a collective uses all of them, one message between two only one.
        "xgmi": Link(
            "xGMI, 7 wires of 64 GB/s", 1.9e-6, 448 * GB, f"{_NETWORK}; latency: as NVLink, without another source"
        ),
        "xgmi-mi250x": Link(
            "xGMI of an MI250X, 4 wires of 50 GB/s", 1.9e-6, 200 * GB, f"{_UNVERIFIED} AMD CDNA 2 white paper"
        ),
        # A ring along one axis of the torus sends in both directions.
        "ici-v4": Link(
            "TPU v4 ICI, one axis", 1e-6, 100 * GB, f"{_UNVERIFIED} 2 of 6 wires of about 50 GB/s each way; about 1 us"
        ),
        # All wires of a chip, one way: collectives over a slice use every axis.
        **{
            f"ici-{name}-slice": Link(f"TPU {name} ICI, {wires} wires", 1e-6, wires * each * GB, _SCALING_BOOK)
            for name, wires, each in (("v4", 6, 45), ("v5e", 4, 45), ("v5p", 6, 90), ("v6e", 4, 90), ("7x", 6, 100))
        },
        "tpu-dcn": Link("data-center network, 50 Gb/s per TPU", 20e-6, _gbps(50), f"{_SCALING_BOOK}; latency guessed"),
        "gaudi2": Link("21 ports of 100 Gb/s", 5.0e-6, 21 * _gbps(100), f"{_UNVERIFIED} Intel Gaudi 2 data sheet"),
        "gaudi2-out": Link("3 ports of 100 Gb/s", 5.0e-6, 3 * _gbps(100), f"{_UNVERIFIED} Intel Gaudi 2 data sheet"),
        # A ring over a node's cores leaves each chip once, over all its wires. nccom-test's all-reduces reach 104 GiB/s
        # over 16 cores, and 47 of 93 GiB/s over two nodes (tools/neuron-sys-tools/nccom-test.rst); the shares are
        # these without the usual losses of derating.py.
        "neuronlink-v2": Link("NeuronLink-v2 of a chip", 2e-6, 192 * 2**30, _NEURONLINK, collective_share=0.65),
        "efa-trn1": Link("EFA, 800 Gb/s for 32 cores", 15e-6, _gbps(25), f"{_TRN1}; {_EFA}", collective_share=0.55),
        "pcie3": Link("PCIe 3 x16", 2.5e-6, 15.75 * GB, f"{_NETWORK}; {_NCCL}"),
        "pcie4": Link("PCIe 4 x16", 2.5e-6, 31 * GB, f"{_NETWORK}; {_NCCL}"),
        "pcie5": Link("PCIe 5 x16", 2.5e-6, 63 * GB, f"{_NETWORK}; {_NCCL}"),
        "infiniband-edr": Link("InfiniBand EDR, 100 Gb/s", 4.0e-6, _gbps(100), f"line rate; {_NCCL}"),
        "infiniband-edr-half": Link(
            "InfiniBand EDR, 100 Gb/s for two GPUs", 4.0e-6, _gbps(50), f"half of the line rate; {_NCCL}"
        ),
        "infiniband-hdr": Link("InfiniBand HDR, 200 Gb/s", 4.0e-6, _gbps(200), f"{_NETWORK}; {_NCCL}"),
        "infiniband-ndr": Link("InfiniBand NDR, 400 Gb/s", 4.0e-6, _gbps(400), f"{_NETWORK}; {_NCCL}"),
        "infiniband-xdr": Link("InfiniBand XDR, 800 Gb/s", 4.0e-6, _gbps(800), f"line rate; {_NCCL}"),
        # RoCE runs the same verbs over Ethernet: the same NIC, switches about 1 us slower in total.
        "roce-100": Link(
            "RoCE v2, 100 Gb/s", 5.0e-6, _gbps(100), f"line rate; {_NCCL}, plus 1 us for Ethernet switching"
        ),
        "roce-400": Link(
            "RoCE v2, 400 Gb/s", 5.0e-6, _gbps(400), f"line rate; {_NCCL}, plus 1 us for Ethernet switching"
        ),
        "slingshot-11": Link(
            "Slingshot 11, 200 Gb/s", 4.0e-6, _gbps(200), f"{_UNVERIFIED} line rate of one NIC a GPU; {_NCCL}"
        ),
        "efa-v1": Link("EFA, 4 x 100 Gb/s for 8 GPUs", 15e-6, _gbps(50), f"{_NETWORK}: AWS P4d, 50 GB/s; {_EFA}"),
        "efa-v2": Link("EFA v2, 32 x 100 Gb/s for 8 GPUs", 15e-6, _gbps(400), f"{_NETWORK}: AWS P5, 400 GB/s; {_EFA}"),
        "ethernet-25": Link("Ethernet TCP, 25 Gb/s", 30e-6, _gbps(25), "line rate; latency: order of magnitude of TCP"),
        "ethernet-100": Link(
            "Ethernet TCP, 100 Gb/s", 30e-6, _gbps(100), "line rate; latency: order of magnitude of TCP"
        ),
        "loopback": Link(
            "loopback TCP",
            200e-6,
            1.2e9,
            "gloo on a 2-core machine: a 64 MB all-reduce of 4 ranks moves 96 MB a rank in about 0.09 s",
        ),
    }
)
