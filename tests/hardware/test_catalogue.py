"""The catalogue holds the figures of the data sheets, each with its source; impossible records are refused."""

import re
from dataclasses import FrozenInstanceError, replace
from itertools import pairwise
from math import inf
from typing import Any

import pytest

from lablib.hardware import CLUSTERS, DEVICES, LINKS, Cluster, Device, Link, find_cluster

# ---- the data sheets ----


@pytest.mark.parametrize(
    ("name", "half", "memory_gb", "bandwidth_tb_per_s", "num_cores"),
    [
        ("V100-32GB-SXM2", 125e12, 32, 0.9, 80),
        ("A100-40GB-SXM", 312e12, 40, 1.555, 108),
        ("A100-80GB-SXM", 312e12, 80, 2.0, 108),
        ("H100-80GB-SXM", 989e12, 80, 3.35, 132),
        ("H200-SXM", 989e12, 141, 4.8, 132),
        ("H100-96GB-SXM-500W", 989e12, 96, 2.4, 132),
        ("B200-SXM", 2250e12, 180, 8.0, 148),
        ("B300-SXM", 2250e12, 270, 7.7, 148),
        ("GB200", 2500e12, 186, 8.0, 148),
        ("GB300", 2500e12, 279, 8.0, 148),
        ("MI300X", 1300e12, 192, 5.3, 304),
    ],
)
def test_a_gpu_has_the_figures_of_its_data_sheet(name, half, memory_gb, bandwidth_tb_per_s, num_cores):
    device = DEVICES[name]
    assert device.peak("float16") == half
    assert device.memory_bytes == memory_gb * 1e9
    assert device.memory_bandwidth_bytes_per_s == bandwidth_tb_per_s * 1e12
    assert device.num_cores == num_cores


@pytest.mark.parametrize(
    ("name", "bfloat16", "memory_gb", "bandwidth_tb_per_s"),
    [
        ("TPU-v4", 275e12, 32, 1.2),
        ("TPU-v5p", 459e12, 95, 2.76),
        # Half of a chip's 190 TFLOP/s, 32 GiB and 820 GB/s.
        ("Trainium-NeuronCore-v2", 95e12, 17.179869184, 0.41),
    ],
)
def test_a_tpu_or_trainium_has_the_figures_of_its_data_sheet(name, bfloat16, memory_gb, bandwidth_tb_per_s):
    device = DEVICES[name]
    assert device.peak("bfloat16") == bfloat16 and device.memory_bytes == memory_gb * 1e9
    assert device.memory_bandwidth_bytes_per_s == bandwidth_tb_per_s * 1e12


def test_a_v100_has_no_unit_for_bfloat16_and_falls_back_on_float32():
    assert DEVICES["V100-32GB-SXM2"].peak("bfloat16") == 15.7e12


@pytest.mark.parametrize("record", [*DEVICES.values(), *LINKS.values(), *CLUSTERS.values()], ids=lambda r: r.name)
def test_no_source_claims_to_have_read_what_was_only_remembered(record):
    """Figures that nobody looked up say so in the record: the ones of these names did not come from a page we read."""
    remembered = ("V100", "MI300X", "B200-SXM", "TPU", "EFA", "Slingshot", "mi300x", "dgx-v100", "tpu", "perlmutter")
    if record.name.startswith(remembered):
        assert "from memory, not verified" in record.source


@pytest.mark.parametrize(
    ("name", "float64", "tfloat32", "float8"),
    [("A100-80GB-SXM", 19.5e12, 156e12, None), ("H100-80GB-SXM", 67e12, 494.5e12, 1979e12)],
)
def test_a_gpu_has_the_peaks_of_its_data_sheet_without_sparsity(name, float64, tfloat32, float8):
    peaks = DEVICES[name].peak_flops_per_s
    assert peaks["float64"] == peaks["float32"] == float64
    assert peaks["tfloat32"] == tfloat32 and peaks.get("float8") == float8


@pytest.mark.parametrize(
    ("name", "float4"), [("B200-SXM", 9000e12), ("B300-SXM", 13125e12), ("GB200", 10000e12), ("GB300", 15000e12)]
)
def test_a_blackwell_multiplies_numbers_of_four_bits_at_its_published_peak(name, float4):
    assert DEVICES[name].peak("float4") == float4


@pytest.mark.parametrize(("cluster", "nic_gbit_per_s"), [("gb200-nvl72", 400), ("gb300-nvl72", 800)])
def test_a_rack_of_72_is_one_nvlink_domain_and_has_a_nic_for_each_gpu(cluster, nic_gbit_per_s):
    machine = CLUSTERS[cluster]
    assert machine.devices_per_node == 72 and machine.edge(0, 71).level == "intra"
    assert machine.intra.bandwidth_bytes_per_s == 900e9
    assert machine.inter.bandwidth_bytes_per_s == nic_gbit_per_s * 1e9 / 8


@pytest.mark.parametrize(
    ("cluster", "nvlink_gb_per_s", "nic_gbit_per_s"),
    [
        ("dgx-v100", 150, 50),
        ("p4d", 300, 50),
        ("dgx-a100", 300, 200),
        ("dgx-h100", 450, 400),
        ("hgx-h200", 450, 400),
        ("dgx-b200", 900, 400),
        ("dgx-b300", 900, 800),
        ("mi300x", 448, 400),
    ],
)
def test_a_node_has_eight_gpus_on_nvlink_and_a_nic_for_each(cluster, nvlink_gb_per_s, nic_gbit_per_s):
    machine = CLUSTERS[cluster]
    assert machine.devices_per_node == 8
    assert machine.intra.bandwidth_bytes_per_s == nvlink_gb_per_s * 1e9
    assert machine.inter.bandwidth_bytes_per_s == nic_gbit_per_s * 1e9 / 8


@pytest.mark.parametrize(
    ("link", "bandwidth_gb_per_s"),
    [
        ("nvlink2", 150),
        ("infiniband-edr", 12.5),
        ("efa-v2", 50),
        ("ethernet-100", 12.5),
        ("nvlink5", 900),
        ("pcie3", 15.75),
        ("pcie4", 31),
        ("pcie5", 63),
        ("roce-100", 12.5),
        ("ethernet-25", 3.125),
    ],
)
def test_a_link_has_the_bandwidth_of_its_standard(link, bandwidth_gb_per_s):
    assert LINKS[link].bandwidth_bytes_per_s == bandwidth_gb_per_s * 1e9


@pytest.mark.parametrize(("link", "latency_s"), [("nvlink4", 1.9e-6), ("pcie5", 2.5e-6), ("infiniband-ndr", 4e-6)])
def test_a_latency_is_that_of_nccls_tuning_table(link, latency_s):
    assert LINKS[link].latency_s == latency_s


def test_a_newer_machine_is_in_no_figure_slower():
    names = ("A100-40GB-SXM", "A100-80GB-SXM", "H100-80GB-SXM", "H200-SXM")
    for old, new in pairwise(DEVICES[name] for name in names):
        assert all(new.peak(dtype) >= peak for dtype, peak in old.peak_flops_per_s.items())
        assert new.memory_bytes >= old.memory_bytes
        assert new.memory_bandwidth_bytes_per_s >= old.memory_bandwidth_bytes_per_s


# ---- sources ----


@pytest.mark.parametrize("record", [*DEVICES.values(), *LINKS.values(), *CLUSTERS.values()], ids=lambda r: r.name)
def test_every_record_of_the_catalogue_says_where_its_figures_come_from(record):
    assert len(record.source) > 20


@pytest.mark.parametrize("catalogue", [DEVICES, CLUSTERS])
def test_a_record_is_found_under_its_own_name(catalogue):
    assert all(name == record.name for name, record in catalogue.items())


@pytest.mark.parametrize("catalogue", [DEVICES, LINKS, CLUSTERS])
def test_the_catalogue_cannot_be_changed_by_accident(catalogue):
    with pytest.raises(TypeError):
        catalogue["mine"] = next(iter(catalogue.values()))
    with pytest.raises(FrozenInstanceError):
        next(iter(catalogue.values())).name = "mine"


def test_every_cluster_is_made_of_parts_of_the_catalogue():
    for cluster in CLUSTERS.values():
        assert cluster.device in DEVICES.values()
        assert cluster.intra in LINKS.values() and cluster.inter in LINKS.values()


# ---- finding ----


def test_a_cluster_is_found_by_name_and_a_record_is_itself():
    for name, cluster in CLUSTERS.items():
        assert find_cluster(name) is cluster and find_cluster(cluster) is cluster


@pytest.mark.parametrize(
    ("wrong", "nearest"), [("dgx-h10", "dgx-h100"), ("DGX-A100", "dgx-a100"), ("h200", "hgx-h200"), ("lap", "laptop")]
)
def test_a_name_that_is_nearly_right_is_answered_with_the_right_one(wrong, nearest):
    with pytest.raises(ValueError, match=rf"unknown cluster '{wrong}': did you mean .*'{nearest}'"):
        find_cluster(wrong)


@pytest.mark.parametrize("wrong", ["zzz", "", 7, None, ["dgx-h100"]])
def test_what_is_no_name_at_all_is_answered_with_every_name(wrong):
    with pytest.raises(ValueError, match=re.escape(f"unknown cluster {wrong!r}")) as caught:
        find_cluster(wrong)
    assert all(name in str(caught.value) for name in CLUSTERS)


# ---- changing ----


def test_a_changed_cluster_is_a_new_one():
    cluster = find_cluster("dgx-a100")
    changed = cluster.replace(inter=LINKS["roce-100"])
    assert changed.inter is LINKS["roce-100"] and changed.device is cluster.device
    assert find_cluster("dgx-a100").inter is LINKS["infiniband-hdr"]


def test_free_compute_keeps_the_network_and_computes_in_no_time():
    cluster = find_cluster("dgx-h100")
    free = cluster.free_compute()
    assert (free.intra, free.inter, free.topology) == (cluster.intra, cluster.inter, cluster.topology)
    assert 1e30 / free.device.peak("bfloat16") == 0 and 1e30 / free.device.memory_bandwidth_bytes_per_s == 0
    assert free.device.kernel_overhead_s == 0


# ---- refused ----

DEVICE: dict[str, Any] = {
    "name": "mine",
    "peak_flops_per_s": {"float32": 1e12},
    "memory_bytes": 1e9,
    "memory_bandwidth_bytes_per_s": 1e11,
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peak_flops_per_s": {"bfloat16": 1e12}}, "a device needs a float32 peak: mine has ['bfloat16']; add one"),
        (
            {"peak_flops_per_s": {"float32": 0}},
            "Device 'mine': peak_flops_per_s must be a dict of text to numbers, each above 0: got 0 for 'float32' of "
            "{'float32': 0}; give 80e9 for 80 GB, GB/s or GFLOP/s",
        ),
        ({"cache_bytes": 5e7}, "a cache needs a cache_bandwidth_bytes_per_s above 0: got 0 for mine; give both"),
        (
            {"kernel_overhead_s": inf},
            "Device 'mine': kernel_overhead_s must be a finite number, 0 or more: got inf; give 2e-6 for 2 us",
        ),
        (
            {"memory_bytes": "80 GB"},
            "Device 'mine': memory_bytes must be a number, above 0: got '80 GB'; give 80e9 for 80 GB, GB/s or GFLOP/s",
        ),
        (
            {"row_alignment_bytes": 12},
            "Device 'mine': row_alignment_bytes must be 0 or a power of two: got 12; try row_alignment_bytes=0",
        ),
        (
            {"launch_s": 2e-6, "kernel_overhead_s": 1e-6},
            "launch_s is a part of kernel_overhead_s: got 2e-06 s of 1e-06 s for mine; give at most that",
        ),
    ],
)
def test_an_impossible_device_is_refused(changes, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Device(**{**DEVICE, **changes})


def test_a_link_without_latency_or_with_endless_bandwidth_is_an_idealization_not_an_error():
    assert Link("ideal", 0, inf).bandwidth_bytes_per_s == inf


def test_a_node_without_devices_is_refused():
    with pytest.raises(ValueError, match="'dgx-h100': devices_per_node must be .*: got 0; try devices_per_node=8"):
        find_cluster("dgx-h100").replace(devices_per_node=0)
    with pytest.raises(TypeError, match="devices"):
        find_cluster("dgx-h100").replace(devices=4)


def test_records_of_equal_figures_are_equal_and_can_be_keys():
    cluster = find_cluster("dgx-h100")
    again = replace(cluster)
    assert isinstance(again, Cluster) and again == cluster and hash(again) == hash(cluster)
    assert len({cluster, again, find_cluster("dgx-a100")}) == 2
