"""Links of the catalogue for a machine with one GPU, where no message can be timed.

The cluster has the GPU's model ("NVIDIA H200" is the device "H200-SXM") with the nearest amount of memory. A name with
PCIe takes a cluster with PCIe inside a node, if there is one. A model missing in the catalogue takes PCIe 4 and
100 Gbit/s Ethernet, the links of an ordinary server.
"""

import re

from lablib.hardware import CLUSTERS, Cluster

_ORDINARY = "pcie-a100"


def with_catalogue_links(cluster: Cluster) -> Cluster:
    """The cluster with nodes, links and topology of the catalogue; its profile names the entry."""
    entry = nearest_entry(cluster.device.name, cluster.device.memory_bytes)
    links = f"of {entry.name} in the catalogue, not measured: {entry.intra.name} and {entry.inter.name}"
    found = {name: getattr(entry, name) for name in ("devices_per_node", "intra", "inter", "topology")}
    return cluster.replace(**found, profile={"links": links})


def nearest_entry(gpu: str, memory_bytes: float) -> Cluster:
    """The catalogue's cluster for a GPU, by the driver's name ("1 x NVIDIA A100-SXM4-80GB") and its memory."""
    words = set(re.findall(r"[A-Z0-9]+", gpu.upper()))
    same = [one for one in CLUSTERS.values() if one.device.name.upper().split("-")[0] in words]
    if not same:
        return CLUSTERS[_ORDINARY]

    def distance(entry: Cluster) -> tuple[bool, float]:
        return ("PCIE" in words) != entry.intra.name.startswith("PCIe"), abs(entry.device.memory_bytes - memory_bytes)

    return min(same, key=distance)
