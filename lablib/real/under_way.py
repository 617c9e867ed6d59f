"""Which communications of a rank on a GPU are not complete: what a program that never ends waits for.

NCCL's calls return before the GPU has done them, so a hang shows where the program next waits for the GPU, far from the
call that has no partner. Each call's work is kept until it is complete. Asking that takes a microsecond, and may be
done by another thread than the one that made the call.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

if TYPE_CHECKING:
    from lablib.real.calls import Call

_MAX_LINES = 8


class UnderWay:
    """The calls that have not been seen to be complete, each with its work."""

    def __init__(self) -> None:
        # NCCL does the calls of one group, and the messages of one pair, one after another.
        self._works: dict[tuple[str, int, int], deque[tuple[Call, Any]]] = defaultdict(deque)

    def add(self, call: Call, work: Any) -> None:
        """Remember a call and its work: torch's script object or a `Work`; None: it has none of its own."""
        works = self._works[call.group_id, call.source, call.target]
        while works and _is_complete(works[0][1]):
            works.popleft()
        if work is not None:
            works.append((call, work))

    def text(self) -> str:
        """The calls that are not complete, one a line, the oldest first; empty where there are none."""
        waiting = [pair for works in list(self._works.values()) for pair in list(works)]
        left = [call for call, work in waiting if not _is_complete(work)]
        left.sort(key=lambda call: call.start_ns)
        lines = [f"  {_told(call)}" for call in left[:_MAX_LINES]]
        if len(left) > _MAX_LINES:
            lines.append(f"  ... and {len(left) - _MAX_LINES} more")
        return "\n".join(lines)

    def clear(self) -> None:
        self._works.clear()


def _is_complete(work: Any) -> bool:
    try:
        return (work if isinstance(work, dist.Work) else dist.Work.unbox(work)).is_completed()
    except RuntimeError:  # the GPU has failed: it says nothing of this call
        return False


def _told(call: Call) -> str:
    number = f" #{call.sequence}" if call.sequence >= 0 else ""
    where = f"  ({call.line})" if call.line else ""
    return f"{call.span_name}{number} of group {call.group}, {call.size_bytes:.0f} bytes{where}"
