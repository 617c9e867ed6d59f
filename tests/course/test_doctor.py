"""The doctor: every probe is reported, none can stop the examination."""

import pytest
import torch

from lablib.course.running.doctor import Absent, Probe, all_probes, examine, look


def fine() -> str:
    return "here"


def broken() -> str:
    raise RuntimeError("first line\nsecond line")


def leaving() -> str:
    raise SystemExit(3)


def absent() -> str:
    raise Absent("not found")


def test_a_probe_that_works_says_what_it_found():
    finding = look(Probe("a", fine, "do something"))
    assert (finding.state, finding.text) == ("ok", "here")


@pytest.mark.parametrize(
    ("probe", "text"),
    [
        (broken, "RuntimeError: first line second line; do it."),
        (leaving, "SystemExit: 3; do it."),
        (absent, "not found; do it."),
    ],
)
def test_a_probe_that_fails_has_its_remedy(probe, text: str):
    assert look(Probe("a", probe, "do it")).text == text
    assert look(Probe("a", probe, "do it")).state == "FAILED"
    assert look(Probe("a", probe, "do it", required=False)).state == "missing"


def test_only_what_is_required_fails_the_examination(capsys: pytest.CaptureFixture):
    assert examine([Probe("a", fine, ""), Probe("b", broken, "r", required=False)]) == 0
    assert "everything the labs need works here" in capsys.readouterr().out
    assert examine([Probe("a", broken, "r"), Probe("b", fine, "")]) == 1
    out = capsys.readouterr().out
    assert "FAILED   a  RuntimeError" in out and "ok       b  here" in out and out.endswith("failed: a\n")


def test_everything_of_the_course_is_examined():
    wanted = {"python", "torch", "jupyterlab", "ipywidgets", "anywidget", "plotly", "papermill", "sim", "gloo", "nccl"}
    probes = {probe.name: probe for probe in all_probes()}
    assert wanted | {"accelerators", "c++", "chromium", "kernel"} <= set(probes)
    assert all(probe.remedy for probe in probes.values())


def test_the_quick_probes_work_on_this_machine(labs):
    for probe in all_probes():
        if probe.name in ("python", "torch", "papermill", "kernel", "labs", "sim"):
            assert look(probe).state == "ok", look(probe)


@pytest.mark.parametrize(("cuda", "words"), [(None, "without CUDA"), ("13.0", "with CUDA 13.0")])
def test_the_build_of_torch_is_named(monkeypatch, cuda, words):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    probe = next(probe for probe in all_probes() if probe.name == "torch")
    assert look(probe).text.endswith(f", {words}")


def test_a_torch_without_cuda_on_a_machine_with_a_driver_has_its_remedy(monkeypatch, tmp_path):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: False)
    probe = next(probe for probe in all_probes() if probe.name == "accelerators")
    assert "this torch is without CUDA" in look(probe).text and "make clean" in look(probe).text


@pytest.mark.parametrize("is_there", [True, False])
def test_the_cpp_compiler_of_torch_compile_is_named_or_its_remedy(monkeypatch, is_there):
    from lablib.kernels import torch_compiler

    def find() -> str:
        if not is_there:
            raise torch_compiler.NoCppCompiler("none")
        return "/usr/bin/g++"

    monkeypatch.setattr(torch_compiler, "find_cpp_compiler", find)
    probe = next(probe for probe in all_probes() if probe.name == "c++")
    found = look(probe)
    assert (found.state, not probe.required) == ("ok" if is_there else "missing", True)
    assert ("/usr/bin/g++" if is_there else "apt install g++") in found.text
