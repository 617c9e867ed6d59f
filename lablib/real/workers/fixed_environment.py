"""Environment variables that a library reads once, when it starts: a warm worker would not hear of a change.

NCCL reads NCCL_* when it makes its first communicator, CUDA reads CUDA_VISIBLE_DEVICES when it is initialised, and
Python, torch and the libraries of their products read theirs when they are loaded: workers started under other values
keep those. So these variables are a part of what a pool (pools.py) and the server that forks its workers (processes.py)
are looked up by, and a launch under changed values has new ones.
"""

import os
from collections.abc import Mapping

_PREFIXES = (
    *("CUDA_", "NCCL_", "PYTORCH_", "NVIDIA_", "GLOO_", "TORCH_", "KINETO_", "CUBLAS_"),
    *("PYTHON", "OMP_", "KMP_", "MKL_", "OPENBLAS_", "ATEN_", "LD_", "MALLOC_"),
    *("GOMP_", "GLIBC_", "LC_", "LANG", "TZ"),
)
FixedEnvironment = tuple[tuple[str, str], ...]


def fixed_environment(variables: Mapping[str, str] | None = None) -> FixedEnvironment:
    """The variables that a worker keeps for its life, in order; of this process where none are given."""
    variables = os.environ if variables is None else variables
    return tuple(sorted((name, value) for name, value in variables.items() if name.startswith(_PREFIXES)))
