"""Environment variables that a library reads only once: a warm worker would miss a change.

NCCL reads NCCL_* when it makes its first communicator, CUDA reads CUDA_VISIBLE_DEVICES when it is initialised, and
Python, torch and their math libraries read theirs when they are loaded: workers started under other values keep those.
So these variables are part of the key of a pool (pools.py) and of the server that forks its workers (processes.py), and
a launch under changed values gets new ones.
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
    """The variables that a worker keeps for its life, sorted; those of this process by default."""
    variables = os.environ if variables is None else variables
    return tuple(sorted((name, value) for name, value in variables.items() if name.startswith(_PREFIXES)))
