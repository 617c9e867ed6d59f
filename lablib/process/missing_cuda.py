"""Remedy for a program that uses CUDA in a launch without CUDA devices."""

from lablib.text.messages import safe_str

# Words in torch's errors: a build without CUDA, one without a driver or a GPU, and functions that such a build lacks.
_SAYINGS = (
    "compiled with CUDA",
    "NVIDIA driver",
    "CUDA driver version is insufficient",
    "No CUDA GPUs are available",
    "without ATen_cuda library",
    "has no attribute '_cuda_",
    "requires CUDA support",
    "dummy base class",
    "Cannot access accelerator device when none is available",
    "requires a CUDA or other accelerator backend",
    "invalid argument to reset_peak_memory_stats",
)


def note_missing_cuda(error: BaseException, remedy: str) -> None:
    """Add the remedy, arguments of `launch` that give each rank a GPU, to an error about a missing CUDA device."""
    if issubclass(type(error), (RuntimeError, AssertionError, AttributeError, TypeError)):
        text = safe_str(error)
        if any(saying in text for saying in _SAYINGS):
            error.add_note(f"The ranks of this launch have no CUDA device: launch(..., {remedy}) gives each rank one.")
