"""CPU affinity of a rank's process: the processor cores nearest to its GPU.

A server with two sockets has two parts of memory (NUMA nodes), and each GPU is attached to one of them. A process on
the other reaches its GPU through the link between the sockets: copies to the GPU and kernel launches are slower then,
and vary from run to run. Linux reports the node of a PCI device, and the cores of a node:

    /sys/bus/pci/devices/0000:dc:00.0/numa_node      1, or -1 for a single node
    /sys/devices/system/node/node1/cpulist           "48-95,144-191"

torch's elastic agent can do this (`WorkerSpec.numa_options`, torch/numa/binding.py of torch 2.13), but it queries the
GPU through CUDA in the launching process, which must not initialise CUDA, and needs the program numactl. So a worker
binds itself, before it starts any other thread that computes.
"""

import os
from contextlib import suppress
from pathlib import Path

import torch

_SYSTEM = Path("/sys")


def stay_near(device: torch.device) -> None:
    """Bind this process to the cores near its GPU. No effect if Linux does not report them, or they are not allowed."""
    with suppress(OSError, ValueError, AttributeError):  # no Linux, no PCI device, a container without /sys
        allowed = os.sched_getaffinity(0)
        gpu = torch.cuda.get_device_properties(device)
        near = cores_near(f"{gpu.pci_domain_id:04x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}.0") & allowed
        if near and near != allowed:
            os.sched_setaffinity(0, near)


def cores_near(pci_address: str, system: Path = _SYSTEM) -> set[int]:
    """The cores of the NUMA node of a PCI device; none if there is only one node.

    Raises OSError, ValueError: Linux does not report it.
    """
    node = int((system / "bus/pci/devices" / pci_address / "numa_node").read_text())
    return cores_of((system / f"devices/system/node/node{node}/cpulist").read_text()) if node >= 0 else set()


def cores_of(text: str) -> set[int]:
    """Parse a list of cores: "0-2,8" -> {0, 1, 2, 8}."""
    parts = [part.split("-") for part in text.strip().split(",") if part]
    return {core for first, *last in parts for core in range(int(first), int(last[0] if last else first) + 1)}
