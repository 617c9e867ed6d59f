"""Phases of a program from its `record_function` blocks, by thread.

A block on the program's main thread also applies to other threads in that time: on GPUs, autograd runs backward on a
separate thread (one per device) while the main thread waits in `loss.backward()`. A block opened by a hook there
applies to that thread, nested in those that the main thread has open.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable

from lablib.real.measurement.events import ProfilerEvent
from lablib.record.passes import UNNAMED
from lablib.record.phase_path import joined, within

_OPTIMIZER = "Optimizer."
_STEP = "optimizer"  # the phase inside an optimizer step without another block
_LIBRARY_MARKS = (".", "::", "#")  # in labels of torch: "Optimizer.step#SGD.step", "FSDP::all_gather"
_TRANSPORT = ("gloo:", "nccl:")  # blocks of the communication library

State = tuple[str, bool]  # the path of the program's labels, and whether an optimizer steps
_NOTHING: State = ("", False)


class Phases:
    """The phase at any time on any thread; `main_thread` is the system id of the thread that ran the program."""

    def __init__(self, events: Iterable[ProfilerEvent], main_thread: int):
        labels: dict[int, list[ProfilerEvent]] = defaultdict(list)
        for event in events:
            if event.is_label and not event.on_device and not event.name.startswith(_TRANSPORT):
                labels[event.thread].append(event)
        self._main_thread = main_thread
        self._threads = {thread: _Thread(blocks) for thread, blocks in labels.items()}

    def at(self, time_ns: int, thread: int, in_backward: bool) -> str:
        """The phase of work started by this thread at this time, as a path (lablib/record/phase_path.py)."""
        path, in_step = self._state(self._main_thread, time_ns)
        if thread != self._main_thread:
            own, own_step = self._state(thread, time_ns)
            path = joined(path or _STEP * in_step, own) if own else path
            in_step = in_step or own_step
        return path or ("backward" if in_backward else _STEP if in_step else UNNAMED)

    def _state(self, thread: int, time_ns: int) -> State:
        return self._threads[thread].at(time_ns) if thread in self._threads else _NOTHING


class _Thread:
    """The blocks of one thread, as states with start times."""

    def __init__(self, labels: Iterable[ProfilerEvent]):
        self._starts: list[int] = [0]
        self._states: list[State] = [_NOTHING]
        open_labels: list[tuple[int, State]] = []
        for event in sorted(labels, key=lambda e: (e.start_ns, -e.end_ns)):
            self._close(open_labels, event.start_ns)
            label, in_step = open_labels[-1][1] if open_labels else _NOTHING
            if not any(mark in event.name for mark in _LIBRARY_MARKS):
                label = within(label or _STEP * in_step, event.name)
            state = (label, in_step or event.name.startswith(_OPTIMIZER))
            self._enter(event.start_ns, state)
            open_labels.append((event.end_ns, state))
        self._close(open_labels, None)

    def at(self, time_ns: int) -> State:
        return self._states[bisect_right(self._starts, time_ns) - 1]

    def _close(self, open_labels: list[tuple[int, State]], until_ns: int | None) -> None:
        while open_labels and (until_ns is None or open_labels[-1][0] <= until_ns):
            end_ns, _ = open_labels.pop()
            self._enter(end_ns, open_labels[-1][1] if open_labels else _NOTHING)

    def _enter(self, time_ns: int, state: State) -> None:
        self._starts.append(time_ns)
        self._states.append(state)
