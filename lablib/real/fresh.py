"""A warm worker must look like a new process to every program: same settings, same environment, same seeds.

Reset before each launch: every setting that a process owns (lablib/owners), with the launching process's in place of
those that travel; `os.environ`; random generators; the number of threads; and the user's own modules (forgotten, so
that an edited file is read again). Not reset: changes a program makes to installed packages themselves.
"""

import os
import sys
from typing import Any

import torch

from lablib import owners
from lablib.rank_state import compute_with_one_thread, seed_rank
from lablib.real.shipping import is_users_file

_CUDA_DEFAULT_SEED = (
    67280421310721  # c10::detail / default_rng_seed_val: what a new process's CUDA generators start from
)


class FreshState:
    """The state a rank starts every program with, remembered when the worker starts.

    Args:
        rank: this rank.
        device: "cpu", or the rank's GPU, where tensors are made unless the program says otherwise.
    """

    def __init__(self, rank: int, device: torch.device):
        self._rank, self._device = rank, device
        self._environment = dict(os.environ)
        self._settings = owners.taken()

    def restore(self, settings: dict[str, Any]) -> None:
        """Make this process look new, with these settings of the process that launches."""
        os.environ.clear()
        os.environ.update(self._environment)
        _forget_users_modules()
        owners.give_back(self._settings | settings)
        torch.clear_autocast_cache()
        if self._device.type == "cuda":
            torch.set_default_device(self._device)
            torch.cuda.set_device(self._device)
            torch.cuda.default_generators[self._device.index].manual_seed(_CUDA_DEFAULT_SEED)
        compute_with_one_thread()
        seed_rank(self._rank)


def _forget_users_modules() -> None:
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name != "__main__" and isinstance(file, str) and is_users_file(file):
            del sys.modules[name]
