"""Replacements of torch's functions on a simulated GPU (for run.py and stand_in.py)."""

from lablib.script.backends import answer_backends
from lablib.script.classes import answer_classes
from lablib.script.cuda import answer_cuda
from lablib.script.cuda_kernels import answer_kernels
from lablib.script.devices import answer_grouping, answer_hooks, answer_wrappers
from lablib.script.dtensor import answer_dtensor
from lablib.script.patches import Patches


def answer_gpu(patches: Patches) -> None:
    """Install them, for the lifetime of `patches`."""
    answer_cuda(patches)
    answer_classes(patches)
    answer_hooks(patches)
    answer_grouping(patches)
    answer_wrappers(patches)
    answer_dtensor(patches)
    answer_kernels(patches)
    answer_backends(patches)
