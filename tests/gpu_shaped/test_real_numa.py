"""A worker stays near its GPU: on a stand-in for Linux's /sys, and for what the process may use."""

import os
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lablib.real.workers import numa
from lablib.real.workers.numa import cores_near, cores_of, stay_near

ADDRESS = "0000:dc:00.0"
GPU = torch.device("cuda", 0)


def system(folder, node: int, cores: str):
    """A machine whose GPU is on this NUMA node, which has these cores."""
    gpu = folder / "bus/pci/devices" / ADDRESS
    gpu.mkdir(parents=True)
    (gpu / "numa_node").write_text(f"{node}\n")
    near = folder / f"devices/system/node/node{node}"
    near.mkdir(parents=True)
    (near / "cpulist").write_text(f"{cores}\n")
    return folder


@given(st.sets(st.integers(0, 300), max_size=40))
def test_lists_of_cores_are_read_as_linux_writes_them(cores):
    ranges, text = sorted(cores), []
    while ranges:
        first = last = ranges.pop(0)
        while ranges and ranges[0] == last + 1:
            last = ranges.pop(0)
        text.append(f"{first}-{last}" if last > first else f"{first}")
    assert cores_of(",".join(text) + "\n") == cores


@pytest.mark.parametrize(
    ("node", "allowed", "bound_to"),
    [
        (1, set(range(8)), {4, 5}),
        (1, {5, 6, 7}, {5}),  # no more than the process may use
        (1, {0, 1}, None),  # none of the near ones: left as it is
        (1, {4, 5}, None),  # there already
        (-1, set(range(8)), None),  # one node alone
    ],
)
def test_a_worker_is_bound_to_the_near_cores_that_it_may_use(monkeypatch, tmp_path, node, allowed, bound_to):
    monkeypatch.setattr(numa.cores_near, "__defaults__", (system(tmp_path, node, "4-5"),))
    gpu = SimpleNamespace(pci_domain_id=0, pci_bus_id=0xDC, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(allowed), raising=False)
    bound = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: bound.append((pid, cores)), raising=False)
    stay_near(GPU)
    assert bound == ([] if bound_to is None else [(0, bound_to)])


def test_a_machine_that_does_not_say_leaves_the_worker_where_it_is(monkeypatch, tmp_path):
    with pytest.raises(OSError):
        cores_near(ADDRESS, tmp_path)
    monkeypatch.setattr(numa.cores_near, "__defaults__", (tmp_path,))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace())
    stay_near(GPU)  # no PCI address either


@given(
    owners=st.lists(st.integers(0, 3), min_size=1, max_size=64),
    places=st.dictionaries(st.sampled_from(["0000:1b:00.0", "0000:dc:00.0", "0001:01:00.0"]), st.integers(-1, 3)),
)
def test_each_gpu_of_a_larger_machine_has_the_cores_of_its_node(tmp_path_factory, owners, places):
    """`owners`: the node of each core; `places`: of each GPU."""
    root = tmp_path_factory.mktemp("sys")
    nodes = [{core for core, owner in enumerate(owners) if owner == node} for node in range(4)]
    for number, cores in enumerate(nodes):
        (root / f"devices/system/node/node{number}").mkdir(parents=True)
        (root / f"devices/system/node/node{number}/cpulist").write_text(",".join(map(str, cores)) + "\n")
    for gpu, node in places.items():
        (root / "bus/pci/devices" / gpu).mkdir(parents=True)
        (root / "bus/pci/devices" / gpu / "numa_node").write_text(f"{node}\n")
    assert all(cores_near(gpu, root) == (nodes[node] if node >= 0 else set()) for gpu, node in places.items())
