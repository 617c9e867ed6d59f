"""A launch borrows the process; these tests hold it to giving everything back."""

import os
import random
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from lablib import launch


def process_state() -> dict[str, Any]:
    """Everything of this process that a rank may touch, in a form that can be compared."""
    return {
        "threads": [thread.name for thread in threading.enumerate() if thread.name.startswith("sim rank")],
        "stdout": id(sys.stdout),
        "environ": {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")},
        "excepthook": sys.excepthook,
        "torch random": torch.get_rng_state().tolist(),
        "python random": random.getstate(),
        "numpy random": [str(part) for part in numpy.random.get_state()],
        "dtype": torch.get_default_dtype(),
        "grad mode": torch.is_grad_enabled(),
        "world": id(c10d._world),
        "initialized": dist.is_initialized(),
    }


@pytest.fixture
def everything_is_given_back() -> Iterator[None]:
    """After the test no rank's thread is left, the process is as it was, and the next launch works."""
    before = process_state()
    yield
    assert process_state() == before

    def healthy() -> float:
        x = torch.tensor(float(dist.get_rank()))
        dist.all_reduce(x)
        return x.item()

    assert launch(healthy, ranks=3).values == [3.0, 3.0, 3.0]
    assert process_state() == before
