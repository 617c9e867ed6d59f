"""Environment variables of NCCL, gloo and torch: each with its effect, or the rule that its value breaks."""

import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lablib.course.running.doctor import Doubtful, all_probes, examine, look
from lablib.course.running.doctor_settings import SETTINGS, check_setting, settings_probes

HEADERS = Path(torch.__path__[0]) / "include" / "torch" / "csrc" / "distributed" / "c10d"


@pytest.fixture(scope="module")
def system(tmp_path_factory) -> Path:
    """A made-up /sys: two interfaces and the loopback, two InfiniBand adapters."""
    root = tmp_path_factory.mktemp("sys")
    for name in (
        "class/net/lo",
        "class/net/eth0",
        "class/net/ib0",
        "class/infiniband/mlx5_0",
        "class/infiniband/mlx5_1",
    ):
        (root / name).mkdir(parents=True)
    return root


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_DEBUG", "info"),
        ("NCCL_DEBUG_SUBSYS", "^INIT,NET"),
        ("NCCL_SOCKET_IFNAME", "eth"),
        ("NCCL_SOCKET_IFNAME", "=ib0"),
        ("NCCL_SOCKET_IFNAME", "^docker,lo"),
        ("GLOO_SOCKET_IFNAME", "eth0,ib0"),
        ("NCCL_IB_HCA", "mlx5"),
        ("NCCL_IB_HCA", "=mlx5_0:1,mlx5_1"),
        ("NCCL_BUFFSIZE", "8388608"),
        ("NCCL_IB_TIMEOUT", "22"),
        ("NCCL_ALGO", "Ring,Tree"),
        ("NCCL_ALGO", "allreduce:tree;broadcast:ring"),
        ("NCCL_PROTO", "^LL128"),
        ("NCCL_NET_GDR_LEVEL", "PHB"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"),
        ("TORCH_NCCL_BLOCKING_WAIT", "true"),
        ("PYTORCH_ALLOC_CONF", "expandable_segments:True,max_split_size_mb:128"),
        ("CUBLAS_WORKSPACE_CONFIG", ":4096:8"),
    ],
)
def test_a_right_value_is_shown_with_its_effect(name, value, system):
    assert check_setting(name, {name: value}, system) == f"{value}: {SETTINGS[name].effect}"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("NCCL_DEBUG", "VERBOSE", "must be one of VERSION, WARN, INFO, ABORT, TRACE: got VERBOSE; try VERSION"),
        ("NCCL_DEBUG_SUBSYS", "INIT,NETT", "got INIT,NETT; did you mean NET?"),
        ("NCCL_SOCKET_IFNAME", "eno1", "must name an interface of this machine: got eno1; here are eth0, ib0, lo"),
        ("NCCL_SOCKET_IFNAME", "=eth", "got =eth; here are"),
        ("NCCL_SOCKET_IFNAME", "", "must name an interface"),
        ("GLOO_SOCKET_IFNAME", "eth", "exact names: got eth; here are eth0, ib0, lo"),
        ("GLOO_SOCKET_IFNAME", "eth0,eno1", "got eth0,eno1"),
        ("NCCL_IB_HCA", "bnxt", "here are mlx5_0, mlx5_1"),
        ("NCCL_BUFFSIZE", "4M", "must be a whole number, 1 or more: got 4M; try 4194304"),
        ("NCCL_BUFFSIZE", "0", "got 0; try 4194304"),
        ("NCCL_IB_TIMEOUT", "23", "must be a whole number, 1 to 22: got 23; try 20"),
        ("NCCL_NTHREADS", "100", "must be one of 64, 128, 256, 512"),
        ("NCCL_ALGO", "Rings", "did you mean Ring?"),
        ("NCCL_IB_DISABLE", "yes", "must be one of 0, 1: got yes; try 0"),
        ("TORCH_NCCL_BLOCKING_WAIT", "on", "must be one of 0, 1, TRUE"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "4", "must be one of 0, 1, 2, 3"),
        ("TORCH_DISTRIBUTED_DEBUG", "debug", "must be one of OFF, INFO, DETAIL"),
        ("PYTORCH_ALLOC_CONF", "expandable_segments:true", "expandable_segments must be True or False"),
        ("NCCL_TOPO_FILE", "/nowhere.xml", "must be a file: got /nowhere.xml"),
        ("NCCL_BUFSIZE", "1", "must be a known variable: got NCCL_BUFSIZE; did you mean NCCL_BUFFSIZE?"),
        ("NCCL_ABRACADABRA", "1", "got NCCL_ABRACADABRA; see the library's documentation"),
        ("NCCL_BLOCKING_WAIT", "1", "must have its present name: got NCCL_BLOCKING_WAIT; use TORCH_NCCL_BLOCKING_WAIT"),
        ("NCCL_LL_THRESHOLD", "0", "NCCL no longer reads it: use NCCL_PROTO"),
        ("PYTORCH_CUDA_ALLOC_CONF", "", "use PYTORCH_ALLOC_CONF (torch 2.9); the old name is still read"),
    ],
)
def test_a_wrong_value_has_rule_value_and_remedy(name, value, message, system):
    with pytest.raises(Doubtful) as caught:
        check_setting(name, {name: value}, system)
    assert message in str(caught.value)


def test_a_machine_without_adapters_says_so(tmp_path):
    with pytest.raises(Doubtful, match="got mlx5; unset it: this machine has none"):
        check_setting("NCCL_IB_HCA", {"NCCL_IB_HCA": "mlx5"}, tmp_path)


def test_too_many_sockets_are_refused_together():
    """NCCL's guide: threads times sockets per thread, at most 64."""
    both = {"NCCL_SOCKET_NTHREADS": "8", "NCCL_NSOCKS_PERTHREAD": "8"}
    assert check_setting("NCCL_NSOCKS_PERTHREAD", both).startswith("8: ")
    with pytest.raises(Doubtful, match="of 64 or less: got 16 times 8"):
        check_setting("NCCL_SOCKET_NTHREADS", both | {"NCCL_SOCKET_NTHREADS": "16"})


def test_each_variable_that_is_set_is_a_line_and_none_fails(system, capsys):
    variables = {
        "NCCL_DEBUG": "INFO",
        "NCCL_SOCKET_IFNAME": "eno1",
        "GLOO_ABC": "1",
        "HOME": "/",
        "OMP_NUM_THREADS": "1",
    }
    assert examine(settings_probes(variables, system)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "everything the labs need works here. Warnings: GLOO_ABC, NCCL_SOCKET_IFNAME."
    states = [line.split()[:2] for line in lines[:-1]]
    assert states == [
        ["warning", "GLOO_ABC"],
        ["ok", "NCCL_DEBUG"],
        ["warning", "NCCL_SOCKET_IFNAME"],
        ["ok", "OMP_NUM_THREADS"],
    ]


def test_without_any_variable_the_doctor_says_so():
    (probe,) = settings_probes({"HOME": "/"})
    assert look(probe).state == "ok" and "defaults" in look(probe).text


def test_the_doctor_examines_the_environment(monkeypatch):
    monkeypatch.setenv("NCCL_DEBUGG", "INFO")
    probe = next(probe for probe in all_probes() if probe.name == "NCCL_DEBUGG")
    assert look(probe).state == "warning" and "did you mean NCCL_DEBUG?" in look(probe).text


@pytest.mark.skipif(not (HEADERS / "ProcessGroupNCCL.hpp").is_file(), reason="this torch has no headers")
def test_every_variable_of_torchs_process_group_is_known():
    text = (HEADERS / "ProcessGroupNCCL.hpp").read_text("utf-8")
    named = set(re.findall(r'"((?:TORCH_)?NCCL_[A-Z0-9_]+)"', text)) | set(re.findall(r"TORCH_FR_[A-Z_]+", text))
    assert len(named) > 20 and named <= set(SETTINGS)
    old = {name for name in named if name.startswith("NCCL_")}
    assert all(SETTINGS[name].replaced_by for name in old)


@given(value=st.text(max_size=30), name=st.sampled_from(sorted(SETTINGS)))
def test_any_value_is_shown_or_refused_in_one_sentence(name, value):
    try:
        assert check_setting(name, {name: value}, Path("/nowhere")).endswith(SETTINGS[name].effect)
    except Doubtful as doubt:
        assert ("must " in str(doubt)) and str(doubt)
