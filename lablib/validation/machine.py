"""Cluster of a row: the GPU's node from the catalogue, with the row's changes.

M1 The GPU's name is matched without punctuation and packaging (synonyms.py); "A100" alone means the device with 80 GB,
    and so does "H100". A name that does not match a device as a whole is refused.
M2 Its node is from the catalogue (DGX A100, DGX H100, GB200 NVL72, ...), with the row's number of GPUs, or gpus / nodes
    if only nodes are stated.
M3 A rack of 72 GPUs holds 64 of a run with a multiple of 64 GPUs: its 16 whole trays of 4 (from memory, not verified:
    NVIDIA's block scheduling).
M4 The text of the interconnect changes bandwidths between nodes. Parts of it (between ";" or ",") with "intra", "in
    node" or "NVLink" are ignored if the GPU has NVLink, as its bandwidth is fixed, and a smaller figure describes a
    model of it. The others are between nodes. "4 x 100 Gb/s" multiplies; "per node" or
    "node-to-node" is shared by the node's GPUs; Gb are bits, GB bytes.
    Collectives over Omni-Path reach a fifth of it: 10 of 50 GB/s per node, measured with 4 nodes of 8 A100
    (bigscience-workshop/bigscience, experiments/bandwidth/all_reduce_bench-a100-n4.txt, 41.8 Gb/s of all-reduce).
M5 Its technology gives the latency (RoCE, EFA, Ethernet, Slingshot; otherwise InfiniBand's). Nothing stated: the node's
    NICs.
M6 "H100" alone in pages of torchtitan and torchao is Meta's, with 96 GB at 500 W, as torchtitan's benchmarks state.
"""

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from lablib.errors import unknown_name
from lablib.hardware import CLUSTERS, DEVICES, LINKS, Cluster, Link
from lablib.validation.rows import PublishedRow
from lablib.validation.synonyms import gpu_key, is_named


def _gpus() -> Iterator[tuple[str, tuple[str, str]]]:
    """Names of the catalogue's accelerators without punctuation, each with device and cluster, the first of its device.

    A family alone ("A100") means the device of its first cluster; TPUs have no family.
    """
    clusters = [cluster for cluster in CLUSTERS.values() if cluster.name not in _OTHER_VIEWS]
    for device in DEVICES.values():
        family = device.name.partition("-")[0]
        if device.name == "laptop-core":
            continue
        of_family = [one for one in clusters if one.device.name.startswith(family)]
        node = next((one for one in of_family if one.device.name == device.name), of_family[0])
        if family not in ("TPU", "RTX"):
            yield gpu_key(family), (of_family[0].device.name, of_family[0].name)
        yield gpu_key(device.name), (device.name, node.name)


# Host by host, for labs on topologies; rows name slices.
_OTHER_VIEWS = ("tpu-v4",)
# torchtitan's rows name GPUs by bandwidth and power.
_TORCHTITANS = {"h10096gb24tbs500w": ("H100-96GB-SXM-500W", "dgx-h100")}
GPUS: Mapping[str, tuple[str, str]] = MappingProxyType(dict(_gpus()) | _TORCHTITANS)
# Words of an interconnect -> a link with its latency.
TECHNOLOGIES = {"roce": "roce-400", "efa": "efa-v2", "ethernet": "ethernet-100", "slingshot": "slingshot-11"}
_BANDWIDTH = re.compile(r"(?:(\d+)\s*x\s*)?(\d+(?:\.\d+)?)\s*([GT])(b|B)(?:it)?(?:/s|ps)")
_INSIDE = ("intra", "in node", "within", "nvlink", "nvswitch")
_SHARED = ("per node", "node-to-node", "per host", "per server")
_OMNI_PATH_SHARE = 0.2
_RACK, _WHOLE_TRAYS = 72, 64


def cluster_of(row: PublishedRow) -> Cluster:
    """The cluster of a row, by the rules above. ValueError: a GPU that is not in the catalogue."""
    name = row.hardware["gpu"]
    if gpu_key(name) == "h100" and is_named(row.source.get("title", "").lower(), "torchtitan|torchao"):
        name = "H100-96GB-SXM-500W"  # M6
    if gpu_key(name) not in GPUS:
        raise unknown_name("GPU", name, list(GPUS))
    device, base = GPUS[gpu_key(name)]
    cluster = CLUSTERS[base].replace(device=DEVICES[device])
    per_node = _per_node(row) or cluster.devices_per_node
    if per_node == _RACK and row.hardware["gpus"] % _WHOLE_TRAYS == 0:
        per_node = _WHOLE_TRAYS
    cluster = cluster.replace(devices_per_node=per_node)
    text = row.hardware.get("interconnect", "")
    for part in re.split(r"[;,]", text):
        bandwidth = bandwidth_bytes_per_s(part, per_node)
        if bandwidth is None:
            continue
        level = "intra" if any(word in part.lower() for word in _INSIDE) else "inter"
        if level == "intra" and cluster.intra.name.startswith("NVLink"):
            continue
        latency_s = _latency_s(text, getattr(cluster, level), level)
        share = _OMNI_PATH_SHARE if "omni-path" in part.lower() else 1.0
        changed = Link(part.strip(), latency_s, bandwidth, f"row {row.id}", share)
        cluster = cluster.replace(**{level: changed})
    return cluster


def _per_node(row: PublishedRow) -> int | None:
    """Rule M2; in a rack (M3) nodes are its trays, and are not counted."""
    nodes, gpus = row.hardware.get("nodes"), row.hardware["gpus"]
    stated = row.hardware.get("gpus_per_node")
    return stated if stated or not nodes else -(-gpus // nodes)


def bandwidth_bytes_per_s(part: str, gpus_per_node: int) -> float | None:
    """Rule M4: bandwidth in a part of an interconnect's text, for one GPU and direction; None if it states none.

    >>> bandwidth_bytes_per_s("4 x 100 Gb/s Omni-Path per node", 8), bandwidth_bytes_per_s("150 GB/s intra-node", 8)
    (6250000000.0, 150000000000.0)
    """
    found = _BANDWIDTH.search(part)
    if not found:
        return None
    times, number, prefix, unit = found.groups()
    total = int(times or 1) * float(number) * {"G": 1e9, "T": 1e12}[prefix] / (8 if unit == "b" else 1)
    is_shared = any(word in part.lower() for word in _SHARED) or (times and "per gpu" not in part.lower())
    return total / gpus_per_node if is_shared and "intra" not in part.lower() else total


def _latency_s(text: str, link: Link, level: str) -> float:
    """Rule M5."""
    if level == "intra":
        return link.latency_s
    # Only at the start of a word: "process" contains "roce" and "default" contains "efa".
    names = [name for word, name in TECHNOLOGIES.items() if re.search(f"(?<![a-z]){word}", text.lower())]
    name = names[0] if names else "infiniband-ndr"
    return LINKS[name].latency_s
