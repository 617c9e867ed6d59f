"""A cluster on which one byte takes a nanosecond to read or write, ten to send inside a node, a hundred outside."""

from typing import Any

import pytest
import torch

from lablib import Cluster, Device, Link

DEVICE = Device("toy", {"float32": 1e12}, memory_bytes=1e12, memory_bandwidth_bytes_per_s=1e9)
WIRE = Link("wire", 1e-6, 1e8)
TOY = Cluster("toy", DEVICE, devices_per_node=4, intra=WIRE, inter=Link("long wire", 5e-6, 1e7))


def about(value: float) -> Any:
    """Equal but for sums in another order."""
    return pytest.approx(value, rel=1e-12, abs=1e-18)


def compute(num_bytes: int) -> None:
    """An operation that writes so many bytes and reads none: `num_bytes` nanoseconds."""
    torch.zeros(num_bytes, dtype=torch.uint8)
