"""A cluster survives being written and read to the last bit; a file that is wrong is answered with what to change."""

import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib import hardware


def read(tmp_path: Path, text: str, name: str = "mine.toml") -> hardware.Cluster:
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    return hardware.load_cluster(file)


# ---- round trip ----

TEXT = st.text(max_size=20)
COUNT = st.integers(1, 10**6)


def within(least: float, most: float) -> st.SearchStrategy[float]:
    return st.floats(least, most, allow_nan=False)


DTYPES = st.dictionaries(st.sampled_from(["float64", "bfloat16", "float8", "odd name"]), within(1e8, 1e17))
DEVICE = st.builds(
    hardware.Device,
    name=TEXT,
    peak_flops_per_s=st.builds(lambda peaks, peak: peaks | {"float32": peak}, DTYPES, within(1e8, 1e17)),
    memory_bytes=within(1e7, 1e14),
    memory_bandwidth_bytes_per_s=within(1e8, 1e14),
    matmul_efficiency=within(1e-3, 1),
    kernel_overhead_s=st.just(0.0) | within(1e-9, 1e-2),
    source=TEXT,
    num_cores=st.integers(0, 1000),
    matmul_tile=st.tuples(COUNT, COUNT),
    matmul_half_depth=within(0, 1e6),
    memory_efficiency=within(1e-3, 1),
    cache_bytes=st.just(0.0) | within(1e4, 1e11),
    cache_bandwidth_bytes_per_s=within(1e8, 1e15),
    matmul_efficiency_by_dtype=st.dictionaries(st.just("float8"), within(1e-3, 1)),
    power_w=st.none() | within(1, 1e5),
    row_alignment_bytes=st.sampled_from([0, 1, 16, 128]),
    element_s=st.dictionaries(st.sampled_from(["exp", "gelu tanh", "_softmax", "bf16"]), within(0, 1e-6)),
)
LINK = st.builds(
    hardware.Link,
    name=TEXT,
    latency_s=st.just(0.0) | within(1e-9, 0.1),
    bandwidth_bytes_per_s=within(1e6, 1e13) | st.just(float("inf")),
    source=TEXT,
    nvls_latency_s=st.none() | within(1e-9, 0.1),
)
TOPOLOGY = (
    st.builds(hardware.FatTree, COUNT, COUNT, within(1, 100), within(0, 1e-3))
    | st.builds(hardware.Dragonfly, COUNT, COUNT, within(1e-3, 1), within(0, 1e-3))
    | st.builds(hardware.Torus, st.lists(COUNT, min_size=1, max_size=4).map(tuple), within(0, 1e-3))
)
CLUSTER = st.builds(
    hardware.Cluster,
    name=TEXT,
    device=DEVICE,
    devices_per_node=COUNT,
    intra=LINK,
    inter=LINK,
    topology=TOPOLOGY,
    source=TEXT,
    collective_overhead_s=st.just(0.0) | within(1e-9, 1),
    library=st.sampled_from(["", "gloo"]),
    shared_cores=st.integers(0, 256),
    profile=st.dictionaries(TEXT, TEXT, max_size=4),
).flatmap(
    lambda cluster: st.booleans().map(lambda on: cluster.replace(uses_nvls=on and bool(cluster.intra.nvls_latency_s)))
)


@given(cluster=CLUSTER)
def test_any_cluster_is_read_back_as_it_was_written(tmp_path_factory, cluster):
    file = tmp_path_factory.mktemp("clusters") / "any.toml"
    hardware.save_cluster(cluster, file)
    assert hardware.load_cluster(file) == cluster


@pytest.mark.parametrize("name", sorted(hardware.CLUSTERS))
def test_every_cluster_of_the_catalogue_is_read_back_as_it_was_written(name, tmp_path):
    cluster = hardware.CLUSTERS[name].replace(profile={"date": "2026-11-21", "torch version": '2.13 "cpu"'})
    hardware.save_cluster(cluster, tmp_path / "it.toml")
    again = hardware.load_cluster(tmp_path / "it.toml")
    assert again == cluster and again.profile == cluster.profile and again.device == cluster.device


def test_what_is_written_is_written_again_in_the_same_bytes(tmp_path):
    first, second = tmp_path / "a.toml", tmp_path / "b.toml"
    hardware.save_cluster(hardware.find_cluster("tpu-v4"), first)
    hardware.save_cluster(hardware.load_cluster(first), second)
    assert first.read_bytes() == second.read_bytes()


# ---- reading ----


def test_a_profile_from_before_cores_were_shared_is_read_as_it_was_meant(tmp_path):
    hardware.save_cluster(hardware.CLUSTERS["laptop"].replace(profile={"ranks": "4"}), tmp_path / "new.toml")
    lines = (tmp_path / "new.toml").read_text("utf-8").splitlines()
    old = [line for line in lines if not line.startswith(("shared_cores", "element_s"))]
    assert len(old) == len(lines) - 2
    (tmp_path / "old.toml").write_text("\n".join(old), "utf-8")
    cluster = hardware.load_cluster(tmp_path / "old.toml")
    assert (
        cluster.shared_cores == 0
        and cluster.device.element_s == {}
        and cluster == hardware.CLUSTERS["laptop"].replace(profile={"ranks": "4"})
    )


def test_sums_in_the_switch_are_true_or_false_and_need_a_link_that_has_them(tmp_path):
    assert read(tmp_path, 'base = "dgx-h100"\nuses_nvls = true\n').uses_nvls
    with pytest.raises(ValueError, match="uses_nvls must be true or false: got 1"):
        read(tmp_path, 'base = "dgx-h100"\nuses_nvls = 1\n')
    with pytest.raises(ValueError, match="uses_nvls needs switches that add .*'NVLink 3' of 'mine' has none"):
        read(tmp_path, 'base = "dgx-a100"\nuses_nvls = true\n')
    with pytest.raises(ValueError, match="nvls_latency_s = 25 reads as 25 s.*give it in s"):
        read(tmp_path, 'base = "dgx-h100"\n[intra]\nnvls_latency_s = 25\n')


def test_a_file_may_start_from_a_cluster_and_change_single_fields(tmp_path):
    cluster = read(tmp_path, 'base = "dgx-h100"\ndevices_per_node = 4\n[intra]\nlatency_s = 3e-6\n')
    base = hardware.find_cluster("dgx-h100")
    intra = replace(base.intra, latency_s=3e-6)
    assert cluster == base.replace(
        name="mine", devices_per_node=4, intra=intra, source=f"{base.source}; changed in mine.toml"
    )


def test_the_dtypes_that_a_file_does_not_name_keep_their_peaks(tmp_path):
    cluster = read(tmp_path, 'base = "dgx-h100"\n[device.peak_flops_per_s]\nbfloat16 = 800e12\n')
    h100 = hardware.DEVICES["H100-80GB-SXM"]
    assert cluster.device.peak_flops_per_s == {**h100.peak_flops_per_s, "bfloat16": 800e12}
    assert h100.peak("bfloat16") == 989e12


def test_devices_and_links_are_names_of_the_catalogue_or_tables_with_a_base_of_their_own(tmp_path):
    text = """
        devices_per_node = 2
        device = "MI300X"
        inter = "roce-400"
        topology = { kind = "dragonfly", global_taper = 0.25 }
        intra = { base = "xgmi", bandwidth_bytes_per_s = 64e9 }
    """
    cluster = read(tmp_path, text)
    assert (cluster.name, cluster.device, cluster.inter) == (
        "mine",
        hardware.DEVICES["MI300X"],
        hardware.LINKS["roce-400"],
    )
    assert cluster.intra == replace(hardware.LINKS["xgmi"], bandwidth_bytes_per_s=64e9)
    assert cluster.topology == hardware.Dragonfly(global_taper=0.25)


def test_a_topology_of_the_same_kind_keeps_what_is_not_given_and_another_kind_starts_anew(tmp_path):
    kept = read(tmp_path, 'base = "pcie-a100"\n[topology]\nnodes_per_leaf = 4\n')
    assert kept.topology == hardware.FatTree(nodes_per_leaf=4, oversubscription=2.0)
    anew = read(tmp_path, 'base = "pcie-a100"\n[topology]\nkind = "torus"\nshape = [2, 3]\n')
    assert anew.topology == hardware.Torus((2, 3))


def test_a_path_is_found_where_a_name_is_asked_for(tmp_path):
    hardware.save_cluster(hardware.find_cluster("dgx-a100"), tmp_path / "my.toml")
    assert (
        hardware.find_cluster(str(tmp_path / "my.toml"))
        == hardware.find_cluster(tmp_path / "my.toml")
        == hardware.find_cluster("dgx-a100")
    )


# ---- refused ----


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('base = "dgx-h10"', "mine.toml: unknown cluster 'dgx-h10': did you mean 'dgx-h100'"),
        ('base = "dgx-h100"\nnodes = 3', "mine.toml: unknown key 'nodes': "),
        (
            'base = "dgx-h100"\n[device]\nmemory_byte = 1e9',
            "mine.toml, [device]: unknown key 'memory_byte': did you mean 'memory_bytes'",
        ),
        (
            'base = "dgx-h100"\n[topology]\nnodes_per_leef = 2',
            "mine.toml, [topology]: unknown key 'nodes_per_leef': did you mean 'nodes_per_leaf'",
        ),
        (
            'base = "dgx-h100"\n[topology]\nkind = "fat-tree"',
            "mine.toml, [topology]: unknown kind 'fat-tree': did you mean 'fat tree'",
        ),
        ('base = "dgx-h100"\ninter = "nvlink"', "mine.toml, inter: unknown link 'nvlink': did you mean 'nvlink"),
        ('base = "dgx-h100"\ndevice = 3', "mine.toml: device must be a name of the catalogue or a table: got 3"),
        ('base = "dgx-h100"\ndevices_per_node = 4.0', "mine.toml: devices_per_node must be a whole number: got 4.0"),
        ('base = "dgx-h100"\ndevices_per_node = true', "mine.toml: devices_per_node must be a whole number: got True"),
        (
            'base = "dgx-h100"\ndevices_per_node = 0',
            "mine.toml: Cluster 'mine': devices_per_node must be a whole number, at least 1 and below",
        ),
        ('base = "dgx-h100"\nname = 7', "mine.toml: name must be text: got 7"),
        ('base = "dgx-h100"\n[intra]\nlatency_s = "2 us"', "mine.toml: intra.latency_s must be a number: got '2 us'"),
        (
            'base = "dgx-h100"\n[intra]\nlatency_s = -1e-6',
            "mine.toml, [intra]: Link 'NVLink 4': latency_s must be a finite number, 0 or more: got -1e-06",
        ),
        (
            'base = "dgx-h100"\n[device]\nmatmul_tile = [128, 1.5]',
            "mine.toml: device.matmul_tile must be a list of whole numbers: got [128, 1.5]",
        ),
        (
            'base = "dgx-h100"\n[device.peak_flops_per_s]\nbfloat16 = "fast"',
            "mine.toml: device.peak_flops_per_s.bfloat16 must be a number: got 'fast'",
        ),
        ('base = "dgx-h100"\n[profile]\ndate = 2026', "mine.toml: profile must be a table of text: got {'date': 2026}"),
        ("devices_per_node = 4", "mine.toml: missing device, intra, inter; give them, or start from a known one"),
        (
            'devices_per_node = 4\ninter = "roce-400"\nintra = "pcie5"\n[device]\nname = "new"',
            "mine.toml, [device]: missing peak_flops_per_s, memory_bytes, memory_bandwidth_bytes_per_s; give them",
        ),
        ("base = ", "mine.toml: not TOML: "),
    ],
)
def test_a_wrong_file_is_answered_with_its_name_the_table_and_the_remedy(text, message, tmp_path):
    with pytest.raises(ValueError, match=re.escape(message)):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            "[device.peak_flops_per_s]\nbfloat16 = 989",
            "device.peak_flops_per_s.bfloat16 = 989 reads as 989 FLOP/s, outside 100 MFLOP/s to 100 PFLOP/s: probably "
            "a unit error; give it in FLOP/s, as in 989e12 for 989 TFLOP/s",
        ),
        ("[device]\nmemory_bytes = 80", "device.memory_bytes = 80 reads as 80 B, outside 10 MB to 100 TB"),
        (
            "[device]\nmemory_bandwidth_bytes_per_s = 3350e12",
            "memory_bandwidth_bytes_per_s = 3.35e+15 reads as 3.35 PB/s, outside 100 MB/s to 100 TB/s",
        ),
        ("[inter]\nbandwidth_bytes_per_s = 400", "inter.bandwidth_bytes_per_s = 400 reads as 400 B/s"),
        ("[inter]\nlatency_s = 4.0", "inter.latency_s = 4 reads as 4 s, outside 1 ns to 100 ms: probably a unit error"),
        ("[device]\nkernel_overhead_s = 5", "device.kernel_overhead_s = 5 reads as 5 s, outside 1 ns to 10 ms"),
        ("[topology]\nswitch_latency_s = 0.15", "topology.switch_latency_s = 0.15 reads as 150 ms, outside"),
        ("[topology]\noversubscription = inf", "topology.oversubscription must be 1 to 1000: got inf"),
        ("[device]\nflops_per_joule = 1.1", "device.flops_per_joule = 1.1 reads as 1.1 FLOP/J"),
        (
            "[device]\nmemory_bytes = 80e6",
            "device.memory_bytes = 8e+07 reads as 80 MB, for a memory of 3.35 TB/s: read",
        ),
        (
            "[device]\nmemory_bytes = 80e12",
            "device.memory_bytes = 8e+13 reads as 80 TB, for a memory of 3.35 TB/s: read",
        ),
        ("[device.peak_flops_per_s]\nbfloat16 = 989e9", "peak_flops_per_s.bfloat16 = 9.89e+11 reads as 989 GFLOP/s"),
        ("[device.peak_flops_per_s]\nbf16 = 989e12", "unknown dtype 'bf16': did you mean 'bfloat16'?"),
        ("[device.peak_flops_per_s]\nfloat_16 = 989e12", "unknown dtype 'float_16': did you mean 'float16'?"),
        ("[topology]\nkind = []", "unknown kind []"),
        ("[inter]\nlatency_s = inf", "latency_s must be a finite number, 0 or more: got inf"),
    ],
)
def test_a_figure_in_another_unit_is_questioned_with_what_it_reads_as(table, message, tmp_path):
    with pytest.raises(ValueError, match=re.escape(message)):
        read(tmp_path, f'base = "dgx-h100"\n{table}\n')


def test_what_could_not_be_read_again_is_not_written(tmp_path):
    cluster = hardware.find_cluster("dgx-h100")
    slow = cluster.replace(inter=replace(cluster.inter, bandwidth_bytes_per_s=3.0))
    with pytest.raises(ValueError, match=r"inter.bandwidth_bytes_per_s = 3 reads as 3 B/s"):
        hardware.save_cluster(slow, tmp_path / "slow.toml")

    class Odd(hardware.FatTree):
        pass

    with pytest.raises(ValueError, match="a topology is one of fat tree, dragonfly, torus: .*Odd.* cannot be written"):
        hardware.save_cluster(cluster.replace(topology=Odd()), tmp_path / "odd.toml")
    assert not list(tmp_path.iterdir())


def test_every_figure_of_a_cluster_can_be_given_in_a_file(tmp_path):
    hardware.save_cluster(hardware.find_cluster("dgx-h100"), tmp_path / "all.toml")
    text = (tmp_path / "all.toml").read_text(encoding="utf-8")
    for record in (hardware.Cluster, hardware.Device, hardware.Link, hardware.FatTree):
        for field in fields(record):
            if field.name not in ("device", "intra", "inter", "topology", "profile"):
                assert re.search(rf"^{field.name} = ", text, re.MULTILINE), field.name


# A laptop's core goes with nearly any wire.
@pytest.mark.parametrize("name", sorted(set(hardware.CLUSTERS) - {"laptop"}))
@pytest.mark.parametrize("table", ["device", "intra", "inter"])
@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_a_bandwidth_a_thousand_times_off_is_questioned(tmp_path, name, table, factor):
    cluster = hardware.CLUSTERS[name]
    key = "memory_bandwidth_bytes_per_s" if table == "device" else "bandwidth_bytes_per_s"
    text = f'base = "{name}"\n[{table}]\n{key} = {getattr(getattr(cluster, table), key) * factor}\n'
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match="probably a unit error"):
        hardware.load_cluster(file)


@pytest.mark.parametrize("name", sorted(set(hardware.CLUSTERS) - {"laptop"}))
@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_a_memory_a_thousand_times_off_is_questioned(tmp_path, name, factor):
    size = hardware.CLUSTERS[name].device.memory_bytes * factor
    with pytest.raises(ValueError, match="memory_bytes = .*probably a unit error"):
        read(tmp_path, f'base = "{name}"\n[device]\nmemory_bytes = {size}\n')


def test_a_slow_network_that_is_meant_is_taken(tmp_path):
    file = tmp_path / "mine.toml"
    slow = 'base = "dgx-h100"\n[inter]\nbandwidth_bytes_per_s = 125e6\n'
    file.write_text(slow)
    with pytest.raises(ValueError, match="inter.bandwidth_bytes_per_s = 1.25e\\+08 reads as 125 MB/s.*unusual = true"):
        hardware.load_cluster(file)
    file.write_text("unusual = true\n" + slow)
    assert hardware.load_cluster(file).inter.bandwidth_bytes_per_s == 125e6
