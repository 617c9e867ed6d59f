"""What a GPU's error says of the line that caused it: little, as the host was further on when the GPU failed.

A kernel's failed assertion is an error of the next call that waits for the GPU. That may be any line of the program, or
the launcher's own wait at the end; what the kernel printed stands in the rank's stderr.
"""

from lablib.text.messages import safe_str


def explain(error: RuntimeError, under_way: str, has_returned: bool) -> None:
    """Add to an error of CUDA where it surfaced, and how to find its cause. Leaves other errors as they are.

    Args:
        error: what the program, or waiting for its GPU, raised.
        under_way: the communications that are not complete, as text.
        has_returned: whether the program had come to its end.
    """
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
