"""Hand the turn from rank to rank on one processor core, on Linux.

A rank that passes its turn wakes the next one and goes to sleep. Linux wakes a thread on an idle core where there is
one: the turn then moves from core to core, away from its caches, and waits for the new core to wake up. So a thread is
bound to the core of its waker while it sleeps, and is free again once it runs: its computation, and threads and
processes that it starts, may use every core, and the system may move it to balance the load.

The two system calls take 3 to 10 us per turn, so threads are bound only while turns move: on a busy machine no core is
idle, and they stay where they are.

Simplified: a rank that binds itself (`os.sched_setaffinity`) loses that with its next turn.
"""

import ctypes
import os

_TURNS = 100  # after a turn that moved, as many are kept on its core


class SameCore:
    """Binds threads that sleep, and frees those that run. Does nothing where there is one core, or no Linux."""

    def __init__(self) -> None:
        cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
        self._is_used = len(cores) > 1
        if self._is_used:
            self._libc = ctypes.PyDLL(None)  # PyDLL: these calls take less time than giving the interpreter away
            self._size = max(cores) // 64 * 8 + 8  # bytes of a mask: whole words
            self._every = self._mask(cores)
            self._single = {core: self._mask({core}) for core in cores}
        self._core, self._turns_left, self._is_bound = -1, 0, False

    def _mask(self, cores: set[int]) -> bytes:
        return sum(1 << core for core in cores).to_bytes(self._size, "little")

    def bind(self, thread_id: int) -> None:
        """Have another thread, which sleeps, wake up on this core. `thread_id` is its `threading.get_native_id()`."""
        if self._is_used and thread_id:
            core = self._libc.sched_getcpu()
            if core != self._core:
                self._core, self._turns_left = core, _TURNS
            if self._turns_left and core in self._single:
                self._turns_left -= 1
                self._is_bound = self._libc.sched_setaffinity(thread_id, self._size, self._single[core]) == 0

    def free(self) -> None:
        """Let the calling thread run on every core again."""
        if self._is_bound:
            self._is_bound = False
            self._libc.sched_setaffinity(0, self._size, self._every)
