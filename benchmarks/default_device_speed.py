"""Time per call of torch with a default device: none, torch's mode, and the replaced functions of a launch.

    .venv/bin/python benchmarks/default_device_speed.py

Operators compute on 64 numbers on the CPU, and the default device is "meta", in place of a GPU. A launch on GPUs gives
its ranks the default device of the last column; one on the CPU gives none. Processor time with one
thread, the least of several rounds: other programs only ever add to it.
"""

import time
from collections.abc import Callable

import torch
from torch.nn import functional as F

from lablib.process.default_device import make_tensors_of_the_process_on

_CALLS, _ROUNDS = 100, 60
_META = torch.device("meta")


def _calls() -> dict[str, Callable[[], object]]:
    x, w = torch.ones(8, 8, device="cpu"), torch.ones(8, device="cpu")
    return {
        "add": lambda: torch.add(x, x),
        "linear": lambda: F.linear(x, x, w),
        "layer_norm": lambda: F.layer_norm(x, (8,), w, w),
        "ones, on a device": lambda: torch.ones(8, device="cpu"),
        "ones": lambda: torch.ones(8),
    }


def _us_per_call(call: Callable[[], object]) -> float:
    start_s = time.thread_time()
    for _ in range(_CALLS):
        call()
    return (time.thread_time() - start_s) / _CALLS * 1e6


def main() -> None:
    torch.set_num_threads(1)
    calls = _calls()
    defaults = {
        "no default device": lambda: torch.set_default_device(None),
        "torch.set_default_device": lambda: torch.set_default_device(_META),
        "launch": lambda: make_tensors_of_the_process_on(_META),
    }
    times: dict[tuple[str, str], list[float]] = {}
    for _ in range(_ROUNDS):
        for default, begin in defaults.items():
            begin()
            for name, call in calls.items():
                times.setdefault((name, default), []).append(_us_per_call(call))
    print(f"{'us per call':18}" + "".join(f"{default:>27}" for default in defaults))
    for name in calls:
        print(f"{name:18}" + "".join(f"{min(times[name, default]):27.2f}" for default in defaults))


if __name__ == "__main__":
    main()
