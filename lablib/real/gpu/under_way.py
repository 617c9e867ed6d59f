"""Incomplete communications of a rank on a GPU, to explain a program that hangs, and errors that a GPU reports late.

NCCL's calls return before the GPU has run them, so a hang shows where the program next waits for the GPU, far from the
unmatched call. Each call's work is kept until it is complete. The query takes 1 us, on any thread.

A kernel's failed assertion is raised by the next call that waits for the GPU. That may be any line of the program, or
the launcher's own wait at the end; the kernel's output is in the rank's stderr.
"""

from __future__ import annotations

from collections import defaultdict, deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from lablib.text.messages import safe_str

if TYPE_CHECKING:
    from lablib.real.measurement.calls import Call

_MAX_LINES = 8


class CallsUnderWay:
    """The calls not yet known to be complete, each with its work."""

    def __init__(self) -> None:
        # NCCL runs the calls of one group, and the messages of one pair, one after another.
        self._works: dict[tuple[str, int, int], deque[tuple[Call, dist.Work]]] = defaultdict(deque)

    def add(self, call: Call, work: Any) -> None:
        """Add a call and its result: a `Work`, or torch's script object of one.

        Inside a batch NCCL's calls return no work, which torch boxes as an empty object: those are ignored.
        """
        works = self._works[call.group_id, call.source, call.target]
        while works and _is_complete(works[0][1]):
            works.popleft()
        with suppress(RuntimeError, TypeError):  # the empty object
            if work is not None:
                works.append((call, work if isinstance(work, dist.Work) else dist.Work.unbox(work)))

    def text(self) -> str:
        """The incomplete calls, one per line, the oldest first; empty if there are none."""
        waiting = [pair for works in list(self._works.values()) for pair in list(works)]
        left = sorted((call for call, work in waiting if not _is_complete(work)), key=lambda call: call.start_ns)
        lines = [f"  {_told(call)}" for call in left[:_MAX_LINES]]
        if len(left) > _MAX_LINES:
            lines.append(f"  ... and {len(left) - _MAX_LINES} more")
        return "\n".join(lines)

    def clear(self) -> None:
        self._works.clear()


def _is_complete(work: dist.Work) -> bool:
    try:
        return work.is_completed()
    except RuntimeError:  # the GPU has failed: the state of this call is unknown
        return False


def _told(call: Call) -> str:
    number = f" #{call.sequence}" if call.sequence >= 0 else ""
    where = f"  ({call.line})" if call.line else ""
    return f"{call.span_name}{number} of group {call.group}, {call.size_bytes:.0f} bytes{where}"


def explain(error: RuntimeError, under_way: str, has_returned: bool) -> None:
    """Add to a CUDA error where it surfaced, and how to find its cause. Other errors stay unchanged."""
    if "CUDA error" not in safe_str(error):
        return
    where = "while the launcher waited for the GPU, after the program had returned" if has_returned else "at this line"
    error.add_note(
        f"this error surfaced {where}; the kernel that failed was launched before, and its output is in the "
        "rank's stderr. To see the line that launched it, set CUDA_LAUNCH_BLOCKING=1 before the first launch of a "
        "new notebook kernel"
    )
    if under_way:
        error.add_note(f"communications that were not complete then:\n{under_way}")
