"""Devices, links, topologies and clusters as frozen records, and a catalogue with a source for each figure.

device.py      one accelerator (or CPU): peak FLOP/s by dtype, memory, bandwidth
link.py        one kind of wire: latency and bandwidth
topology.py    how nodes are wired together: fat tree, dragonfly, torus
cluster.py     devices, links and topology put together; the edge between two ranks
devices.py     the accelerators that have a name
links.py       the wires that have a name
catalogue.py   the clusters that have a name
this_machine.py  where the profile of this machine is kept
toml_file.py   clusters of one's own, in TOML files
checks.py      numbers that are finite and in range
plausible.py   figures that are probably in another unit
"""

from lablib.hardware.catalogue import CLUSTERS, find_cluster
from lablib.hardware.cluster import Cluster, Edge
from lablib.hardware.device import Device
from lablib.hardware.devices import DEVICES
from lablib.hardware.link import Link
from lablib.hardware.links import LINKS
from lablib.hardware.toml_file import load_cluster, save_cluster
from lablib.hardware.topology import Dragonfly, FatTree, Topology, Torus

__all__ = [
    "CLUSTERS",
    "DEVICES",
    "LINKS",
    "Cluster",
    "Device",
    "Dragonfly",
    "Edge",
    "FatTree",
    "Link",
    "Topology",
    "Torus",
    "find_cluster",
    "load_cluster",
    "save_cluster",
]
