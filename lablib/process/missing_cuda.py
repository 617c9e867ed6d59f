"""Remedy in the error of a program that uses CUDA in a launch that gives its ranks no CUDA device."""

from lablib.text.messages import safe_str

# How torch says it: a build without CUDA, one without a driver or a GPU, and functions that such a build lacks.
_SAYINGS = (
    "compiled with CUDA",
    "NVIDIA driver",
    "No CUDA GPUs are available",
    "without ATen_cuda library",
    "has no attribute '_cuda_",
    "requires CUDA support",
    "dummy base class",
    "Cannot access accelerator device when none is available",
    "requires a CUDA or other accelerator backend",
)


def note_missing_cuda(error: BaseException, remedy: str) -> None:
    """Add the remedy to an error by which torch says that there is no CUDA device.

    Args:
        error: raised by the program.
        remedy: arguments of `launch` that give each rank a GPU.
    """
    if issubclass(type(error), (RuntimeError, AssertionError, AttributeError, TypeError)):
        text = safe_str(error)
        if any(saying in text for saying in _SAYINGS):
            error.add_note(f"The ranks of this launch have no CUDA device: launch(..., {remedy}) gives each rank one.")
