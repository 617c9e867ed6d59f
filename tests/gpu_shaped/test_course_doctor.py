"""The doctor on a machine with GPUs: NCCL, tracing, sharing and shared memory, with a stand-in for launches."""

import os
import shutil
import sys
from collections import namedtuple
from types import SimpleNamespace

import pytest
import torch
from torch.profiler import ProfilerActivity

import lablib.launch  # noqa: F401 - the module that `launch` is imported from
from lablib.course.running import doctor, doctor_gpus
from lablib.course.running.doctor import all_probes, examine, look
from lablib.errors import WorkerError

Usage = namedtuple("Usage", "total used free")
NAMES = ["nccl", "tracing", "sharing", "/dev/shm"]


@pytest.fixture
def machine(monkeypatch):
    """A machine with two GPUs on which all is well; its launches answer what `answers` says for a program."""
    answers = {doctor.sum_of_ranks: lambda ranks: [ranks * (ranks + 1) / 2] * ranks}
    answers[doctor_gpus._kernels_seen] = lambda ranks: [3]
    seen: list[tuple[int, str | None]] = []

    def launch(program, ranks, backend, **options):
        assert backend == "nccl"
        seen.append((ranks, os.environ.get("CUDA_VISIBLE_DEVICES")))
        return SimpleNamespace(values=answers[program](ranks))

    monkeypatch.setattr(sys.modules["lablib.launch"], "launch", launch)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(8e9, 0, 8e9))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return SimpleNamespace(answers=answers, seen=seen, patch=monkeypatch)


def findings():
    return {probe.name: look(probe) for probe in all_probes() if probe.name in NAMES}


def broken(ranks: int):
    raise WorkerError("rank 0 could not make its process group: NCCL error")


def test_on_a_healthy_machine_all_of_it_is_ok(machine):
    assert [one.state for one in findings().values()] == ["ok"] * 4
    assert machine.seen == [(2, None), (1, None), (2, "0")], "sharing is tried on the first GPU alone"
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_sharing_is_tried_on_the_first_gpu_that_is_visible(machine):
    machine.patch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    findings()
    assert machine.seen[-1] == (2, "3") and os.environ["CUDA_VISIBLE_DEVICES"] == "3,5"


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_broken_nccl_fails_the_examination_where_there_are_gpus(machine, capsys, gpus):
    machine.patch.setattr(torch.cuda, "device_count", lambda: gpus)
    machine.answers[doctor.sum_of_ranks] = broken
    found = findings()
    assert (found["nccl"].state, found["sharing"].state) == ("FAILED", "missing")
    assert "NCCL error" in found["nccl"].text and "not needed" not in found["nccl"].text
    assert examine([probe for probe in all_probes() if probe.name in NAMES]) == 1
    assert "failed: nccl" in capsys.readouterr().out


def test_ranks_that_add_wrong_numbers_are_broken(machine):
    machine.answers[doctor.sum_of_ranks] = lambda ranks: [0.0] * ranks
    assert "2 ranks added 1 to 2 and got" in findings()["nccl"].text


def test_without_kernels_in_the_trace_the_remedy_names_cupti(machine):
    machine.answers[doctor_gpus._kernels_seen] = lambda ranks: [0]
    found = findings()["tracing"]
    assert found.state == "FAILED" and "saw no kernel" in found.text and "CUPTI" in found.text


def test_little_shared_memory_has_its_remedy(machine):
    machine.patch.setattr(shutil, "disk_usage", lambda path: Usage(64e6, 0, 64e6))
    found = findings()["/dev/shm"]
    assert found.state == "missing" and "64 MB free" in found.text and "--shm-size=1g" in found.text


def test_without_gpus_nccl_is_missing_and_not_needed(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    found = findings()
    assert list(found) == ["nccl"] and found["nccl"].state == "missing" and "not needed" in found["nccl"].text


def test_a_broken_torch_is_another_probes_matter(monkeypatch):
    def broken_torch() -> int:
        raise OSError("libcudart.so: cannot open shared object file")

    monkeypatch.setattr(torch.cuda, "device_count", broken_torch)
    assert list(findings()) == ["nccl"]


def test_kernels_are_counted_among_the_profilers_events(monkeypatch):
    real = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *sizes, device: real(*sizes))  # no GPU: all events are the host's
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    profile = torch.profiler.profile
    monkeypatch.setattr(torch.profiler, "profile", lambda activities: profile(activities=[ProfilerActivity.CPU]))
    assert doctor_gpus._kernels_seen() == 0
