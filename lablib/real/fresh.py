"""A warm worker must look like a new process to every program: same state of torch, same environment, same seeds.

Reset before each launch: random generators, default dtype and device, grad mode, autocast, threads, matrix-product
precision, `os.environ`, working directory, `sys.path`, and the user's own modules (forgotten, so that an edited file is
read again). Not reset: changes a program makes to installed packages themselves.
"""

import os
import sys

import torch

from lablib.rank_state import seed_rank
from lablib.real.shipping import is_users_file

_CUDA_DEFAULT_SEED = (
    67280421310721  # c10::detail / default_rng_seed_val: what a new process's CUDA generators start from
)


class FreshState:
    """The state a rank starts every program with, remembered when the worker starts.

    Args:
        rank, ranks: this rank, and how many share the machine's cores.
        device: "cpu", or the rank's GPU, where tensors are made unless the program says otherwise.
    """

    def __init__(self, rank: int, ranks: int, device: torch.device):
        self._rank, self._device = rank, device
        self._threads = max(1, len(_usable_cores()) // ranks)
        self._environment = dict(os.environ)

    def restore(self, directory: str, sys_path: list[str]) -> None:
        """Make this process look new. `directory` and `sys_path` are those of the process that launches."""
        os.environ.clear()
        os.environ.update(self._environment)
        _forget_users_modules()
        sys.path[:] = sys_path
        os.chdir(directory)
        torch.set_num_threads(self._threads)
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None if self._device.type == "cpu" else self._device)
        torch.set_grad_enabled(True)
        torch.set_anomaly_enabled(False)
        if torch.are_deterministic_algorithms_enabled():  # asked first: to set it imports the compiler, a second's work
            torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision("highest")
        for device_type in {"cpu", self._device.type}:
            torch.set_autocast_enabled(device_type, False)
        torch.clear_autocast_cache()
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
            torch.cuda.default_generators[self._device.index].manual_seed(_CUDA_DEFAULT_SEED)
        seed_rank(self._rank)


def _usable_cores() -> range | set[int]:
    """The cores this process may run on (a container's share, where the system says so)."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)


def _forget_users_modules() -> None:
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name != "__main__" and isinstance(file, str) and is_users_file(file):
            del sys.modules[name]
