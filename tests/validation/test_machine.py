"""The cluster of a row: the GPU's name, the node of the catalogue, and the words about the interconnect."""

import pytest

from lablib.hardware import DEVICES, LINKS
from lablib.plan.default_stack import default_stack
from lablib.validation.machine import bandwidth_bytes_per_s, cluster_of


def first(published, family):
    return cluster_of(next(row for row in published if row.family == family))


@pytest.mark.parametrize(
    ("family", "device", "intra_gb_per_s", "inter_gb_per_s", "inter_latency_us"),
    [
        ("vtrain", "A100-80GB-SXM", 300, 12.5, 4),  # 800 Gb/s for 8 GPUs; NVLink is the GPU's
        ("bloom", "A100-80GB-SXM", 300, 6.25, 4),  # 4 x 100 Gb/s for 8 GPUs
        ("korthikanti22", "A100-80GB-SXM", 300, 25, 4),  # Selene: DGX A100
        ("titan", "H100-96GB-SXM-500W", 450, 50, 4),
        ("mbridge", "GB300", 900, 100, 4),
        ("simumax", "B200-SXM", 900, 50, 4),
    ],
)
def test_a_source_has_the_machine_it_describes(
    published, family, device, intra_gb_per_s, inter_gb_per_s, inter_latency_us
):
    cluster = first(published, family)
    assert cluster.device.name == device
    assert cluster.intra.bandwidth_bytes_per_s == intra_gb_per_s * 1e9
    assert cluster.inter.bandwidth_bytes_per_s == inter_gb_per_s * 1e9
    assert cluster.inter.latency_s == pytest.approx(inter_latency_us * 1e-6)


@pytest.mark.parametrize(("gpu", "full"), [("A800", "A100"), ("H800-80GB", "H100"), ("NVIDIA A800-SXM4-80GB", "A100")])
def test_a_gpu_with_limited_nvlink_computes_the_same_and_sends_less(row, gpu, full):
    limited, whole = (cluster_of(row({"hardware.gpu": name})) for name in (gpu, full))
    assert limited.intra.bandwidth_bytes_per_s == 200e9 < whole.intra.bandwidth_bytes_per_s
    assert limited.inter == whole.inter and limited.device.peak("bfloat16") == whole.device.peak("bfloat16")
    assert limited.device.name.startswith(gpu.split("-")[0].removeprefix("NVIDIA "))


def test_roce_has_its_own_latency(published):
    row = next(row for row in published if "RoCE" in row.hardware.get("interconnect", ""))
    cluster = cluster_of(row)
    assert cluster.inter.bandwidth_bytes_per_s == 25e9 and cluster.inter.latency_s == pytest.approx(5e-6)


@pytest.mark.parametrize(
    ("text", "latency_us"),
    [
        ("RoCEv2", 5),
        ("one NIC for each process", 4),
        ("the default of the site", 4),
        ("EFA", LINKS["efa-v2"].latency_s * 1e6),
    ],
)
def test_a_technology_is_a_word_of_the_text(row, text, latency_us):
    cluster = cluster_of(row({"hardware.interconnect": f"400 Gb/s, {text}"}))
    assert cluster.inter.latency_s * 1e6 == pytest.approx(latency_us)


@pytest.mark.parametrize(
    ("text", "gb_per_s"),
    [
        ("4 x 100 Gb/s Omni-Path per node", 6.25),
        ("8 x 400 Gb/s", 50),
        ("400 Gb/s RDMA per GPU", 50),
        ("1600 Gb/s node-to-node RoCE", 25),
        ("3.2 Tb/s per node", 50),
        ("150 GB/s intra-node", 150),
        ("1 x 100 Gb/s IB per node", 1.5625),
        ("NVLink in node", None),
    ],
)
def test_an_interconnect_is_read_for_one_gpu_of_eight(text, gb_per_s):
    found = bandwidth_bytes_per_s(text, 8)
    assert found == (None if gb_per_s is None else pytest.approx(gb_per_s * 1e9))


def test_a_rack_holds_64_gpus_of_a_run_of_256_and_all_of_one_of_32(row):
    rack = {"hardware.gpu": "GB200", "hardware.gpus_per_node": None}
    assert cluster_of(row(rack | {"hardware.gpus": 256, "parallel.dp": 64})).devices_per_node == 64
    assert cluster_of(row(rack | {"hardware.gpus": 32, "parallel.dp": 8})).devices_per_node == 72


@pytest.mark.parametrize(
    ("gpu", "device"),
    [
        ("A100", "A100-80GB-SXM"),
        ("A100-40GB", "A100-40GB-SXM"),
        ("A100-SXM4-80GB", "A100-80GB-SXM"),
        ("NVIDIA H100 SXM5", "H100-80GB-SXM"),
        ("DGX-GB200", "GB200"),
        ("H100-SXM5-80GB", "H100-80GB-SXM"),
        ("NVIDIA H100 80GB HBM3", "H100-80GB-SXM"),
        ("A100 80GB SXM", "A100-80GB-SXM"),
        ("A100SXM4", "A100-80GB-SXM"),
        ("Tesla V100-SXM2-32GB", "V100-32GB-SXM2"),
        ("AMD Instinct MI300X", "MI300X"),
        ("B300", "B300-SXM"),
    ],
)
def test_a_gpu_is_known_by_its_usual_names(row, gpu, device):
    assert cluster_of(row({"hardware.gpu": gpu})).device.name == device


@pytest.mark.parametrize("gpu", ["H100 PCIe", "H100 NVL", "A100-PCIE-40GB", "V100 16GB", "GH200", "RTX 6000 Ada"])
def test_a_gpu_that_is_another_device_is_not_taken_for_one_of_a_similar_name(row, gpu):
    with pytest.raises(ValueError, match="unknown GPU"):
        cluster_of(row({"hardware.gpu": gpu}))


def test_a_gpu_that_nobody_knows_is_answered_with_the_nearest(row):
    with pytest.raises(ValueError, match="unknown GPU 'H1000': did you mean 'h100'"):
        cluster_of(row({"hardware.gpu": "H1000"}))


@pytest.mark.parametrize(
    "device", [device for device in DEVICES.values() if device.is_gpu], ids=lambda device: device.name
)
def test_a_gpu_of_the_catalogue_is_known_by_its_name_without_another_table(row, device):
    """A new GPU is one record: its node is its family's, and its record names its compute capability."""
    found = cluster_of(row({"hardware.gpu": device.name}))
    assert found.device is device
    assert (device.compute_capability == (0, 0)) == device.name.startswith("MI")
    assert default_stack(device).name == ("megatron-core" if device.has_flash_attention else "megatron-2022")
