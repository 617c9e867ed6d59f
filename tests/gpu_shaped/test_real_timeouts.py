"""A communication may wait as long as its launch lasts: with gloo, whose groups have limits as NCCL's do."""

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from lablib.real import run_real
from lablib.real.groups import Timeouts

GLOO_S, NCCL_S = 1800.0, 600.0  # torch's own


def limits() -> list[float]:
    """The limit of the default group, and of one that the program makes, in seconds."""
    cpu = torch.device("cpu")
    groups: list[Any] = [dist.group.WORLD, dist.new_group([0])]
    return [group._get_backend(cpu).options._timeout.total_seconds() for group in groups]


@pytest.mark.parametrize(("timeout_s", "expected_s"), [(7200.0, 7260.0), (30.0, GLOO_S), (None, 365 * 86400.0)])
def test_groups_wait_as_long_as_the_launch_may_last_and_no_less_than_torch_lets_them(timeout_s, expected_s):
    assert run_real(limits, ranks=1, backend="gloo", timeout_s=timeout_s).values == [[expected_s] * 2]


@pytest.mark.parametrize(("timeout_s", "expected_s"), [(3600.0, 3660.0), (5.0, NCCL_S), (1e300, 365 * 86400.0)])
def test_groups_of_nccl_are_made_with_the_limit_of_the_launch(monkeypatch, timeout_s, expected_s):
    monkeypatch.setattr(c10d, "default_pg_nccl_timeout", timedelta(seconds=NCCL_S))
    assert Timeouts("nccl").allow(timeout_s).total_seconds() == expected_s
    backend: Any = "nccl"
    assert c10d._get_default_timeout(backend).total_seconds() == expected_s, "what init_process_group and new_group ask"


def test_a_short_launch_after_a_long_one_has_torchs_own_limit_again(monkeypatch):
    monkeypatch.setattr(c10d, "default_pg_nccl_timeout", timedelta(seconds=NCCL_S))
    timeouts = Timeouts("nccl")
    assert [timeouts.allow(t).total_seconds() for t in (3600.0, 5.0)] == [3660.0, NCCL_S]
