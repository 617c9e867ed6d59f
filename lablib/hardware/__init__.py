"""Records of devices, links, topologies and clusters, and a catalogue with sources.

device.py      one accelerator (or CPU): peak FLOP/s by dtype, memory, bandwidth
link.py        one kind of wire: latency and bandwidth
topology.py    network between nodes: fat tree, dragonfly, torus
cluster.py     devices, links and topology put together; the edge between two ranks
devices.py     named accelerators
links.py       named wires
catalogue.py   named clusters
toml_file.py   user-defined clusters, in TOML files
checks.py      numbers that are finite and in range
plausible.py   figures that are probably in another unit
"""

# ruff: noqa: F401  (the names of the package)
from lablib.hardware.catalogue import CLUSTERS, find_cluster
from lablib.hardware.cluster import Cluster, Edge
from lablib.hardware.device import Device
from lablib.hardware.devices import DEVICES
from lablib.hardware.link import Link
from lablib.hardware.links import LINKS
from lablib.hardware.toml_file import load_cluster, save_cluster
from lablib.hardware.topology import Dragonfly, FatTree, Topology, Torus
