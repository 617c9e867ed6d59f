"""Reset of a warm worker to the state of a new process: settings, environment, seeds.

Reset before each launch: all per-process settings (lablib/process/settings), with the launching process's settings for
those that travel, and the user's own modules and classes (removed, so that an edited file is read again). Not reset:
changes a program makes to installed packages themselves. State that cannot be restored, such as a thread that still
runs, ends the worker, and the next launch starts new ones.
"""

import os
import sys
import threading
from typing import Any

import torch

from lablib.process import settings as process_settings
from lablib.process.default_device import make_tensors_of_the_process_on
from lablib.process.rank_state import compute_with_one_thread, device_seed, seed_rank
from lablib.process.whose_code import is_users, module_file
from lablib.real.workers.pickling import forget_classes

_END_OF_THREAD_S = 0.2  # threads of an executor end when it is collected


class FreshState:
    """The state in which a rank starts every program, taken when the worker starts.

    `device`: "cpu", or the rank's GPU, the default device for new tensors (default_device.py).
    """

    def __init__(self, rank: int, device: torch.device):
        self._rank, self._device = rank, device
        compute_with_one_thread()
        seed_rank(rank)
        self._settings = process_settings.taken()
        self._threads = set(threading.enumerate())

    def check_nothing_is_left(self) -> None:
        """Undo the effects of the last program on the next.

        Raises Exception: a setting cannot be restored, or a thread or a process of the program still runs.
        """
        process_settings.give_back(self._settings)
        for thread in set(threading.enumerate()) - self._threads:
            if type(thread).__name__ != "_DummyThread":  # a C++ thread of torch that has called Python
                thread.join(_END_OF_THREAD_S)
                if thread.is_alive():
                    raise RuntimeError(f"the last program left the thread {thread.name!r} running")
        if _has_children():
            raise RuntimeError("the last program left processes running")

    def restore(self, settings: dict[str, Any]) -> None:
        """Reset this process, with these settings of the launching process."""
        for name, module in sys.modules.copy().items():
            file = module_file(module)
            if name != "__main__" and file is not None and is_users(file):
                del sys.modules[name]
        forget_classes()
        process_settings.give_back(self._settings | settings)
        torch.clear_autocast_cache()
        if self._device.type == "cuda":
            begin_on_gpu(self._rank, self._device)


def begin_on_gpu(rank: int, device: torch.device) -> None:
    """Make the GPU the current and the default device, and seed its generator from the rank."""
    torch.cuda.set_device(device)
    make_tensors_of_the_process_on(device)
    torch.cuda.default_generators[device.index].manual_seed(device_seed(rank))


def _has_children() -> bool:
    """Whether a child process still runs."""
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass  # that one has ended
    except ChildProcessError:
        return False
    return True
