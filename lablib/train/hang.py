"""Ends a run on real ranks in which no step ends any more, and says which rank waits where.

A rank that sleeps, or never joins a collective, holds up all others without an error. A thread on each rank sees that
no step has ended for the limit. It writes the line of its rank's main thread into the store of the process group, where
the lowest rank that answers collects the lines of all, prints them, and ends its process; the others follow.

    no step has ended for 30 s (health.hang_s=30), and the run is ended:
      rank 1 is at train.py:12: time.sleep(1e9), in step 3
      ranks 0, 2, 3 wait in all_reduce at lablib/train/steps.py:168: self._sum(num_tokens), in step 3

torchrun and `launch` end the other ranks when one has ended. A rank in C code that holds the interpreter lock cannot
answer, and is named as one that did not. On the simulator ranks are threads of one process, which this must not end:
nothing is watched there. A simulated rank that waits for ever for another is found at once, as a deadlock, and one that
sleeps is ended by `lab train --timeout`.

Cost: a thread that wakes a few times per limit. Nothing is sent before the limit.
Source: the idea of PyTorch's flight recorder (torch 2.13, torch/csrc/distributed/c10d/FlightRecorder.hpp), on the host.
Simplified: the main thread only; GPU kernels in flight are not named.
"""

import os
import re
import sys
import threading
import time
from collections.abc import Mapping
from traceback import FrameSummary, extract_stack
from typing import Any, Self

import torch.distributed as dist

from lablib.signature import NonNegative, checked
from lablib.text.units import plural
from lablib.torch_compat import default_store

_ANSWER_S = 3.0  # for the other ranks: their limit passes at the same time
_MOST_LINES = 16
_LABLIB = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_WAITS = (".wait(", ".synchronize(", ".item(", "barrier(")


class HangWatch:
    """Watches the steps of this rank while its block runs. `limit_s`: 0 watches nothing."""

    @checked
    def __init__(self, limit_s: NonNegative):
        self.limit_s, self._step = limit_s, 0
        self._since_s, self._over = time.monotonic(), threading.Event()

    def step_ended(self, metrics: Mapping[str, Any]) -> None:
        self._step, self._since_s = metrics["step"], time.monotonic()

    def __enter__(self) -> Self:
        self._since_s = time.monotonic()
        is_process = threading.current_thread() is threading.main_thread()  # a simulated rank is a thread
        if self.limit_s and dist.is_initialized() and is_process:
            self._rank, self._num_ranks, self._store = dist.get_rank(), dist.get_world_size(), default_store()
            threading.Thread(target=self._watch, name="hang watch", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(min(1.0, self.limit_s / 4)):
            if time.monotonic() - self._since_s >= self.limit_s:
                self._end_run()

    def _end_run(self) -> None:
        self._store.set(f"hang/{self._rank}", f"{where(extract_main())}, in step {self._step + 1}")
        until_s, found = time.monotonic() + _ANSWER_S, dict[int, str]()
        while len(found) < self._num_ranks and time.monotonic() < until_s:
            for rank in range(self._num_ranks):
                if rank not in found and self._store.check([f"hang/{rank}"]):
                    found[rank] = self._store.get(f"hang/{rank}").decode()
            time.sleep(0.05)
        if self._over.is_set():  # it went on in the last moment
            return
        if self._rank != min(found):
            time.sleep(_ANSWER_S)
        else:
            print(explanation(self.limit_s, found, self._num_ranks), file=sys.stderr, flush=True)
        os._exit(1)


def extract_main() -> list[FrameSummary]:
    """The stack of the main thread, outermost call first."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return list(extract_stack(frame)) if frame else []


def where(stack: list[FrameSummary]) -> str:
    """The line of the program and whether it waits for other ranks, from a stack."""
    place = next((frame for frame in reversed(stack) if not _is_library(frame.filename)), None)
    if place is None:
        return "is outside Python"
    inner = stack[stack.index(place) + 1 :]
    calls = [frame.name for frame in inner if "torch/distributed" in frame.filename and frame.name != "wrapper"]
    short = "/".join(place.filename.split(os.sep)[-3:])  # two folders and the name
    line = f"{short}:{place.lineno}: {place.line}"
    if calls:
        return f"waits in {calls[0]} at {line}"
    return f"waits at {line}" if any(mark in (place.line or "") for mark in _WAITS) else f"is at {line}"


def explanation(limit_s: float, found: Mapping[int, str], num_ranks: int) -> str:
    """Which ranks are where; those that wait for no rank first."""
    ranks_at: dict[str, list[int]] = {}
    for rank in range(num_ranks):
        ranks_at.setdefault(found.get(rank, "did not answer: ended, or in C code"), []).append(rank)
    lines = [f"no step has ended for {limit_s:g} s (health.hang_s={limit_s:g}), and the run is ended:"]
    for place, ranks in sorted(ranks_at.items(), key=lambda item: item[0].startswith("waits")):
        if len(ranks) > 1:
            place = re.sub("^waits", "wait", re.sub("^is", "are", place))
        lines.append(f"  rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))} {place}")
    if len(lines) > _MOST_LINES:
        lines[_MOST_LINES:] = [f"  and {plural(len(lines) - _MOST_LINES, 'more places')}"]
    lines.append("look at the ranks that do not wait; if a step may take longer, raise health.hang_s")
    return "\n".join(lines)


def _is_library(filename: str) -> bool:
    """Whether a file is an installed package's, Python's own, or the launcher's."""
    if filename.startswith(_LABLIB):
        return filename.removeprefix(_LABLIB).split(os.sep)[1] in ("real", "signature", "process")
    return "/torch/" in filename or "/lib/python" in filename or filename.startswith("<frozen")
