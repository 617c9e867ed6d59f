"""Fixtures: "meta" as the GPU of a rank's process; runs whose workers report what a test says."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from lablib.process.default_device import places
from lablib.real import launch as real_launch
from lablib.real import run_real
from lablib.real.measurement.measure import Measurement
from lablib.real.workers.messages import Finished
from lablib.real.workers.pickling import pack
from lablib.run import Run
from lablib.torch_compat import place


@pytest.fixture
def gives_back_the_default_device() -> Iterator[None]:
    """Put torch's own functions back that `make_tensors_of_the_process_on` replaces for good."""
    contexts = place("DEVICE_CONTEXT")
    before = [(owner, name, make) for make, (owner, name) in places().items()] + [(*contexts, getattr(*contexts))]
    yield
    torch.set_default_device(None)
    for owner, name, value in before:
        setattr(owner, name, value)


@pytest.fixture
def run_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    """A function that gives the run of workers with these measurements, and peaks of their GPUs; none is started."""

    def run(measured: list[Measurement], backend: str = "nccl", peaks: list[int | None] | None = None) -> Run:
        found = zip(measured, peaks or [None] * len(measured), strict=True)
        reports: list[Any] = [Finished(pack(1), "", "", one, peak) for one, peak in found]
        monkeypatch.setattr(real_launch, "_launch", lambda job, backend, ranks, timeout_s: reports)
        return run_real(int, ranks=len(reports), backend=backend)

    return run
