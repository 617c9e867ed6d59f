"""A simulated script borrows the interpreter; these tests hold it to giving everything back."""

import atexit
import faulthandler
import logging
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # replaces a few functions of torch when it is first imported
import torch.accelerator
import torch.cuda.nvtx
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.utils.data import DataLoader

from lablib import Run, simulate_script

PROGRAMS = Path(__file__).parent / "programs"
_OWNERS = (
    (torch, torch.cuda, torch.cuda.memory, torch.cuda.random, torch.cuda.streams, torch.cuda.nvtx)
    + (
        torch.accelerator,
        torch._C,
        torch.Tensor,
        torch.autograd,
        torch.serialization,
        torch.UntypedStorage,
        torch.nn.Module,
    )
    + (import_module("torch.cuda.nccl"), dist, c10d, DataLoader, atexit, os, signal)
    + (time, subprocess.Popen, faulthandler)
)


def process_state() -> dict[str, Any]:
    """Everything that a script may have touched and that can be compared."""
    state: dict[str, Any] = {
        "main": id(sys.modules["__main__"]),
        "argv": (id(sys.argv), list(sys.argv)),
        "path": (id(sys.path), list(sys.path)),
        "meta path": list(sys.meta_path),
        "streams": (id(sys.stdout), id(sys.stderr)),
        "environment": {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")},
        "folder": os.getcwd(),
        "root logger": (id(logging.root), list(logging.root.handlers), id(logging.Logger.manager)),
        "precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cudnn": (torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic),
        "default device": str(torch.get_default_device()),
        "dtype": torch.get_default_dtype(),
        "world": id(c10d._world),
    }
    for owner in _OWNERS:
        # Modules that torch loads when they are first used (torch._dynamo) are no part of the state.
        own = {k: id(v) for k, v in vars(owner).items() if callable(v) and not isinstance(v, type(sys))}
        state[f"functions of {owner.__name__}"] = own
    return state


def script_modules() -> set[str]:
    """Names of the modules that are neither a library's nor this test's own."""
    libraries = ("site-packages", os.sep + "lib" + os.sep + "python")
    files = {name: getattr(module, "__file__", None) or "" for name, module in list(sys.modules.items())}
    return {name for name, file in files.items() if file and not any(mark in file for mark in libraries)}


@pytest.fixture
def everything_is_given_back() -> Iterator[None]:
    """After the test the interpreter is as it was: no module, function, folder or logger of the script is left."""
    simulate_nothing()
    before, modules = process_state(), script_modules()
    yield
    after = process_state()
    for name, value in before.items():
        # What torch adds to its own modules when it first needs it is no leftover; what changed is.
        is_functions = name.startswith("functions")
        assert ({key: after[name].get(key) for key in value} if is_functions else after[name]) == value, name
    new = {name for name in script_modules() - modules if not name.startswith(("lablib", "tests"))}
    assert new == set()


def simulate_nothing() -> None:
    """Have torch load what it loads late, so that it does not count as a change."""
    simulate_script(PROGRAMS / "nothing.py", ranks=1)


@pytest.fixture
def simulated(tmp_path: Path) -> Callable[..., Run]:
    """A function that writes a script, simulates it, and returns the run."""

    def simulate(text: str, *args: str, **options: Any) -> Run:
        path = tmp_path / "script.py"
        path.write_text(text, "utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return simulate_script(path, args, **{**dict[str, Any](ranks=2), **options})

    return simulate
