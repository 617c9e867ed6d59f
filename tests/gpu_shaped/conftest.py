"""Fixtures of tests in which "meta" is the GPU of a rank's process."""

from collections.abc import Iterator

import pytest
import torch

from lablib.process.default_device import places
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
