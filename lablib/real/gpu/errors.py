"""Errors that a GPU reports late: at a later line than the one that caused them.

A kernel's failed assertion is raised by the next call that waits for the GPU. That may be any line of the program, or
the launcher's own wait at the end; the kernel's output is in the rank's stderr.
"""

from lablib.text.messages import safe_str


def explain(error: RuntimeError, under_way: str, has_returned: bool) -> None:
    """Add to a CUDA error where it surfaced, and how to find its cause. Other errors stay unchanged."""
    if "CUDA error" not in safe_str(error):
        return
    where = "while the launcher waited for the GPU, after the program had returned" if has_returned else "at this line"
    error.add_note(
        f"this error surfaced {where}; the kernel that failed was launched before, and what it printed stands in the "
        "rank's stderr. To see the line that launched it, set CUDA_LAUNCH_BLOCKING=1 before the first launch of a "
        "new notebook kernel"
    )
    if under_way:
        error.add_note(f"communications that were not complete then:\n{under_way}")
