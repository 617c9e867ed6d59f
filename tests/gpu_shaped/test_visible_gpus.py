"""The launching process asks for GPUs without initialising CUDA: a stand-in for NVML, and a CUDA left alone."""

import ctypes

import pytest
import torch
import torch.distributed as dist

from lablib import phase
from lablib.calibration.machine import machine_text
from lablib.precision.best_format import find_device
from lablib.process.visible_gpus import VisibleGpu, gpus_text, visible_gpus
from lablib.real.measurement.measure import Measurement

H100 = "NVIDIA H100 80GB HBM3"


class Nvml:
    """What `ctypes.CDLL("libnvidia-ml.so.1")` would be on a machine with these GPUs."""

    def __init__(self, names: list[str], init_result: int = 0):
        self.names, self.init_result, self.is_open = names, init_result, 0

    def nvmlInit_v2(self) -> int:
        self.is_open += self.init_result == 0
        return self.init_result

    def nvmlShutdown(self) -> int:
        self.is_open -= 1
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle) -> int:
        if not self.is_open or index >= len(self.names):
            return 2
        handle._obj.value = index + 1
        return 0

    def nvmlDeviceGetName(self, handle, name, size) -> int:
        name.value = self.names[handle.value - 1].encode()[: size - 1]
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle, memory) -> int:
        memory._obj.total = 85_520_809_984
        return 0


def with_gpus(patch: pytest.MonkeyPatch, names: list[str], init_result: int = 0) -> Nvml:
    """A machine with GPUs whose CUDA must not be touched."""
    library = Nvml(names, init_result)

    def touched(*args: object) -> None:
        raise AssertionError("CUDA was initialised in the launching process")

    patch.setattr(ctypes, "CDLL", lambda path: library)
    patch.setattr(torch.cuda, "device_count", lambda: len(names))
    for name in ("_lazy_init", "is_available", "get_device_name", "get_device_properties", "current_device"):
        patch.setattr(torch.cuda, name, touched)
    patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return library


def test_names_and_memory_come_from_nvml(monkeypatch):
    library = with_gpus(monkeypatch, [H100, H100, "NVIDIA L4"])
    assert visible_gpus() == [VisibleGpu(name, 85_520_809_984) for name in library.names]
    assert gpus_text() == machine_text(True) == f"2 x {H100}, 1 x NVIDIA L4"
    assert library.is_open == 0, "what was opened is closed"
    assert find_device().name == "H100-80GB-SXM"


def test_the_visible_gpus_are_those_that_cuda_numbers(monkeypatch):
    with_gpus(monkeypatch, ["A", "B", "C"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [gpu.name for gpu in visible_gpus()] == ["C", "A"]


@pytest.mark.parametrize("broken", ["no library", "no driver", "MIG"])
def test_without_nvml_the_gpus_are_counted_and_not_named(monkeypatch, broken):
    with_gpus(monkeypatch, [H100, H100], init_result=9 if broken == "no driver" else 0)
    if broken == "no library":

        def missing(path: str) -> None:
            raise OSError(path)

        monkeypatch.setattr(ctypes, "CDLL", missing)
    if broken == "MIG":
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-2c1d3f0a-0000,MIG-2c1d3f0a-0001")
        monkeypatch.setattr(torch.cuda, "_raw_device_uuid_nvml", lambda: None)
    assert visible_gpus() == [VisibleGpu()] * 2 and gpus_text() == "2 GPUs"


def test_without_gpus_nvml_is_not_asked(monkeypatch):
    with_gpus(monkeypatch, [])
    assert visible_gpus() == [] and gpus_text() == "0 GPUs"


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_launch_on_nccl_leaves_cuda_alone_in_its_own_process(monkeypatch, run_of, ranks):
    with_gpus(monkeypatch, [H100])
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setenv("LABLIB_SHARE_GPUS", "1")
    run = run_of([Measurement(start_ns=1)] * ranks)
    assert run.cluster.endswith(f"(1 x {H100})") and bool(run.notes) == (ranks > 1)


def test_a_phase_leaves_cuda_alone(monkeypatch):
    with_gpus(monkeypatch, [H100])
    with phase("forward"):
        pass
