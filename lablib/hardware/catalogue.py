"""Catalogue of named clusters, made of named devices and links.

`find_cluster` takes a name of this catalogue or the path of a TOML file (see toml_file.py).

Path of the profile of this machine: `lab calibrate` writes it, `cluster="this-machine"` reads it.

The file is `$LAB_MACHINE`, or `this-machine.toml` in the user's settings folder.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lablib.errors import unknown_name
from lablib.hardware.cluster import Cluster
from lablib.hardware.devices import DEVICES, NEURON
from lablib.hardware.links import LINKS
from lablib.hardware.toml_file import load_cluster
from lablib.hardware.topology import Dragonfly, FatTree, Torus
from lablib.process.user_folders import user_folder

_UNVERIFIED = "from memory, not verified"


def _cluster(
    name: str, device: str, intra: str, inter: str, source: str, devices_per_node: int = 8, **others: Any
) -> Cluster:
    places = (DEVICES[device], devices_per_node, LINKS[intra], LINKS[inter])
    return Cluster(name, *places, source=source, **others)


CLUSTERS: Mapping[str, Cluster] = MappingProxyType(
    {
        cluster.name: cluster
        for cluster in (
            _cluster(
                *("dgx-v100", "V100-32GB-SXM2", "nvlink2", "infiniband-edr-half"),
                f"NVIDIA DGX-1: 8 GPUs, NVLink 2, 4 x 100 Gb/s EDR ({_UNVERIFIED}); its cube mesh taken for all-to-all",
            ),
            _cluster(
                *("dgx-a100", "A100-80GB-SXM", "nvlink3", "infiniband-hdr"),
                "NVIDIA DGX A100: 8 GPUs, NVSwitch, 8 x 200 Gb/s HDR",
            ),
            _cluster(
                *("p4d", "A100-40GB-SXM", "nvlink3", "efa-v1"),
                "AWS P4d: 8 GPUs, NVSwitch, EFA 4 x 100 Gb/s (github.com/stas00/ml-engineering, 744d01e18b, network)",
            ),
            _cluster(
                *("dgx-h100", "H100-80GB-SXM", "nvlink4", "infiniband-ndr"),
                "NVIDIA DGX H100: 8 GPUs, NVSwitch, 8 x 400 Gb/s NDR",
            ),
            _cluster(
                *("hgx-a800", "A800-80GB-SXM", "nvlink3-800", "infiniband-hdr"),
                f"a DGX A100 with NVLink at 400 of 600 GB/s (links.py); 8 x 200 Gb/s HDR ({_UNVERIFIED})",
            ),
            _cluster(
                *("hgx-h800", "H800-80GB-SXM", "nvlink4-800", "infiniband-ndr"),
                "DeepSeek-AI, 2025, arXiv 2505.09343, section 4.1: 8 H800, NVLink at 400 of 900 GB/s, 8 x 400 Gb/s NDR",
            ),
            _cluster(
                *("hgx-h200", "H200-SXM", "nvlink4", "infiniband-ndr"),
                "NVIDIA HGX H200: 8 GPUs, NVSwitch, 8 x 400 Gb/s NDR",
            ),
            _cluster(
                *("dgx-b200", "B200-SXM", "nvlink5", "infiniband-ndr"),
                "NVIDIA DGX B200: 8 GPUs, NVSwitch, 8 x 400 Gb/s (as AWS P6-B200: ml-engineering, 744d01e18b, network)",
            ),
            _cluster(
                *("dgx-b300", "B300-SXM", "nvlink5", "infiniband-xdr"),
                f"NVIDIA DGX B300: 8 GPUs, NVSwitch, 8 x 800 Gb/s ({_UNVERIFIED})",
            ),
            _cluster(
                *("gb200-nvl72", "GB200", "nvlink5", "infiniband-ndr"),
                f"NVIDIA GB200 NVL72: 72 GPUs in one NVLink domain, 400 Gb/s ConnectX-7 for each ({_UNVERIFIED})",
                devices_per_node=72,
            ),
            _cluster(
                *("gb300-nvl72", "GB300", "nvlink5", "infiniband-xdr"),
                "NVIDIA GB300 NVL72: 72 GPUs in one NVLink domain, 800 Gb/s ConnectX-8 for each "
                "(verda.com/blog/gb300-nvl72-architecture; glennklockwood.com/garden/processors/B300)",
                devices_per_node=72,
            ),
            _cluster(
                *("mi300x", "MI300X", "xgmi", "roce-400"),
                f"AMD MI300X platform: 8 GPUs, each wired to the seven others; 8 x 400 Gb/s RoCE ({_UNVERIFIED})",
            ),
            _cluster(
                *("tpu-v4", "TPU-v4", "ici-v4", "ici-v4"),
                f"Jouppi et al., TPU v4, ISCA 2023, arXiv 2304.01433: 4 chips a host, a torus of 16^3 ({_UNVERIFIED})",
                devices_per_node=4,
                topology=Torus((8, 8, 16)),  # of hosts, each 2 x 2 x 1 chips
            ),
            *(
                _cluster(
                    *(f"tpu-{name}-slice", f"TPU-{name}", f"ici-{name}-slice", "tpu-dcn"),
                    f"a slice of {chips} chips, whose axes work at once, and 50 Gb/s per chip between slices "
                    f"({_UNVERIFIED})",
                    devices_per_node=chips,
                )
                for name, chips in (("v4", 4096), ("v5e", 256), ("v5p", 8960), ("v6e", 256), ("7x", 9216))
            ),
            _cluster(
                *("gaudi2", "Gaudi-2", "gaudi2", "gaudi2-out"),
                f"8 Gaudi 2: 21 ports of 100 Gb/s inside the node, 3 outside ({_UNVERIFIED})",
            ),
            _cluster(
                *("trn1", "Trainium-NeuronCore-v2", "neuronlink-v2", "efa-trn1"),
                f"AWS trn1.32xlarge: 16 chips of two cores, a torus of 4 x 4, EFA at 800 Gb/s ({NEURON}trn1-arch.rst)",
                devices_per_node=32,
            ),
            *(
                _cluster(
                    *(name.lower(), name, "pcie4", "roce-100"), f"8 {name} on PCIe 4, 100 Gb/s per GPU ({_UNVERIFIED})"
                )
                for name in ("A100-80GB-PCIe", "RTX-A6000", "RTX-4090", "L40S", "H100-80GB-PCIe")
            ),
            _cluster(
                *("hgx-h20", "H20", "nvlink4", "infiniband-ndr"), f"8 H20, NVSwitch, 400 Gb/s each ({_UNVERIFIED})"
            ),
            _cluster(
                *("mi325x", "MI325X", "xgmi", "roce-400"),
                f"AMD MI325X platform: 8 GPUs, each wired to the seven others; 8 x 400 Gb/s RoCE ({_UNVERIFIED})",
            ),
            _cluster(
                *("frontier", "MI250X", "xgmi-mi250x", "slingshot-11"),
                f"OLCF Frontier: 4 MI250X (2 dies each) and 4 x 200 Gb/s Slingshot per node ({_UNVERIFIED})",
                devices_per_node=4,
            ),
            _cluster(
                *("perlmutter", "A100-40GB-SXM", "nvlink3", "slingshot-11"),
                f"NERSC Perlmutter: 4 GPUs and 4 x 200 Gb/s Slingshot a node ({_UNVERIFIED}; group sizes ours)",
                devices_per_node=4,
                topology=Dragonfly(nodes_per_router=4, routers_per_group=16),
            ),
            _cluster(
                *("pcie-a100", "A100-80GB-SXM", "pcie4", "roce-100"),
                "a budget node: the same GPU without NVLink, 100 Gb/s RoCE on a 2:1 oversubscribed fat tree",
                topology=FatTree(oversubscription=2.0),
            ),
            _cluster(
                *("laptop", "laptop-core", "loopback", "ethernet-25"),
                "the machine at hand: gloo processes that talk over loopback",
                devices_per_node=64,
            ),
        )
    }
)


def find_cluster(name: str | Path | Cluster) -> Cluster:
    """A cluster by name, or from a TOML file (a path ending in .toml); a `Cluster` is returned unchanged.

    "this-machine" is the profile that `lab calibrate` wrote. Raises ValueError: an unknown name, with
    the nearest ones; or an error of `load_cluster`.
    """
    if isinstance(name, Cluster):
        return name
    if isinstance(name, str | Path) and str(name).endswith(".toml"):
        return load_cluster(name)
    if isinstance(name, str) and name == THIS_MACHINE:
        return this_machine()
    if not isinstance(name, str) or name not in CLUSTERS:
        raise unknown_name("cluster", name, [*CLUSTERS, THIS_MACHINE])
    return CLUSTERS[name]


THIS_MACHINE = "this-machine"


def profile_path() -> Path:
    if chosen := os.environ.get("LAB_MACHINE"):
        return Path(os.path.expanduser(chosen)).absolute()
    return user_folder("config") / f"{THIS_MACHINE}.toml"


def this_machine() -> Cluster:
    """The measured cluster of this machine.

    Raises ValueError: nothing was measured yet, or `lab calibrate` did not write the file.
    """
    path = profile_path()
    if not path.is_file():
        raise ValueError(
            f'cluster "{THIS_MACHINE}" is what was measured here, and nothing was yet ({path} does not exist): '
            "run `lab calibrate`, or name a cluster of the catalogue."
        )
    return load_cluster(path)
