"""Ranks share a GPU only where that was asked for: as many GPUs as a test says, and none in this machine."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lablib import launch
from lablib.errors import WorkerError
from lablib.real import launch as real_launch
from lablib.real.gpu.sharing import SHARE_VARIABLE, require_gpus


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.delenv(SHARE_VARIABLE, raising=False)
    yield monkeypatch


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ranks=st.integers(1, 64), count=st.integers(1, 16), asked=st.sampled_from(["", "argument", "environment"]))
def test_more_ranks_than_gpus_are_refused_unless_asked_for(
    gpus: pytest.MonkeyPatch, ranks: int, count: int, asked: str
):
    gpus.setattr(torch.cuda, "device_count", lambda: count)
    gpus.setenv(SHARE_VARIABLE, "1" if asked == "environment" else "0")
    if ranks <= count or asked:
        require_gpus(ranks, share_gpus=asked == "argument")
        return
    with pytest.raises(WorkerError, match=rf"for each rank: got {ranks} ranks?, and .* has {count} GPUs?") as error:
        require_gpus(ranks, share_gpus=False)
    assert f"ranks={count}" in str(error.value) and "share_gpus=True" in str(error.value)


def test_sixteen_ranks_on_eight_gpus_are_refused_before_anything_starts(gpus: pytest.MonkeyPatch):
    gpus.setattr(torch.cuda, "device_count", lambda: 8)
    started: list[int] = []
    gpus.setattr(real_launch, "_launch", lambda job, backend, ranks, timeout_s: started.append(ranks))
    with pytest.raises(WorkerError, match="got 16 ranks, and this machine has 8 GPUs; try ranks=8, more nodes"):
        launch(int, ranks=16, backend="nccl")
    assert not started


@pytest.mark.parametrize("value", [1, "yes", None])
def test_sharing_is_a_switch(value: object):
    with pytest.raises(TypeError, match="share_gpus must be True or False: got"):
        launch(int, ranks=2, backend="nccl", share_gpus=value)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("backend", ["sim", "gloo"])
def test_there_is_nothing_to_share_without_gpus(backend: str):
    with pytest.raises(ValueError, match=f'share_gpus is for backend="nccl": got {backend}'):
        launch(int, ranks=2, backend=backend, share_gpus=True)
