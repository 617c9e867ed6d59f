"""Several ranks on one GPU: which way NCCL has by version, and that such a run never passes for a measurement."""

from math import ceil

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.cuda import nccl

from lablib.figures import describe, figure_reconcile, figure_traffic
from lablib.real.gpu.sharing import environments, ranks_per_gpu, ranks_with_own_gpu, sharing_note
from lablib.real.measurement.measure import Measurement

VERSIONS = [(2, 27, 7), (2, 28, 9), (2, 29, 7), (2, 30, 3), (2, 30, 7), (2, 31, 2, "rc1"), (3, 0, 0)]
HAVE_THE_SWITCH = VERSIONS[3:]  # by NCCL's own releases: src/init.cc of v2.29.7-1 has none, that of v2.30.3-1 has it


@given(st.sampled_from(VERSIONS), st.integers(1, 8), st.integers(1, 20))
def test_the_ways_to_share_follow_the_version_and_the_ranks_of_a_gpu(version, gpus, ranks):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "device_count", lambda: gpus)
        patch.setattr(nccl, "version", lambda: version)
        ways = environments("nccl", ranks)
        assert all(len(way) == ranks for way in ways), "one environment a rank"
        is_shared = ranks > gpus
        assert bool(sharing_note("nccl", ranks)) == is_shared == (ranks_per_gpu("nccl", ranks) > 1)
        if not is_shared:
            assert ways == [[{}] * ranks]
            return
        hosts, *others = ways
        names = [f"lablib-rank-{rank}" for rank in range(ranks)]
        assert [one["NCCL_HOSTID"] for one in hosts] == names, "a host of its own for each rank: in every version"
        assert all(one["NCCL_NET"] == "Socket" for one in hosts)
        assert all("NCCL_MULTI_RANK_GPU_ENABLE" not in one for one in hosts)
        can_switch = version in HAVE_THE_SWITCH and ceil(ranks / gpus) <= 2
        assert len(others) == can_switch
        for one in (one for way in others for one in way):
            assert one["NCCL_MULTI_RANK_GPU_ENABLE"] == "1" and "NCCL_HOSTID" not in one


def test_other_backends_share_nothing(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert environments("gloo", 3) == [[{}] * 3] and sharing_note("gloo", 3) == ""


@given(st.integers(1, 8), st.integers(1, 20))
def test_a_shared_gpu_is_never_calibrated(gpus, ranks):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "device_count", lambda: gpus)
        assert ranks_with_own_gpu("nccl", ranks) == min(gpus, ranks) and ranks_with_own_gpu("gloo", ranks) == ranks
        assert ranks_per_gpu("nccl", ranks_with_own_gpu("nccl", ranks)) == 1


def drawn(run):
    """Every figure that a run has."""
    yield run.timeline.figure()
    yield run.timeline.between(0.0, 1.0).figure()
    yield run.timeline.without("setup").figure()
    yield run.traffic.figure()
    yield figure_traffic(run.traffic, run.ranks)
    yield run.memory.figure()
    yield run.memory.figure(timeline=run.timeline)
    yield figure_reconcile(run.timeline, run.timeline)


@pytest.mark.parametrize("ranks", [1, 2])
def test_every_figure_of_a_run_on_a_shared_gpu_says_so(monkeypatch, run_of, ranks):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setenv("LABLIB_SHARE_GPUS", "1")
    run = run_of([Measurement(start_ns=1)] * ranks, peaks=[1000] * ranks)
    assert run.notes == (("2 ranks shared 1 GPU: values are right, times mean nothing",) if ranks > 1 else ())
    for figure in drawn(run):
        words = describe(figure)
        assert words.count("2 ranks shared 1 GPU: values are right, times mean nothing.") == (ranks > 1), words
