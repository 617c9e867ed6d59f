"""Environment variables that a library reads once, when it starts: a warm worker would not hear of a change.

NCCL reads NCCL_* when it makes its first communicator, and CUDA reads CUDA_VISIBLE_DEVICES when it is initialised:
workers started under other values keep those. So these variables are a part of what a pool is looked up by (pools.py),
and a launch under changed values has new workers.
"""

import os
from collections.abc import Mapping

_PREFIXES = ("CUDA_", "NCCL_", "TORCH_NCCL_", "PYTORCH_", "NVIDIA_", "GLOO_", "TORCH_GLOO_", "KINETO_", "CUBLAS_")
FixedEnvironment = tuple[tuple[str, str], ...]


def fixed_environment(variables: Mapping[str, str] | None = None) -> FixedEnvironment:
    """The variables that a worker keeps for its life, in order; of this process where none are given."""
    variables = os.environ if variables is None else variables
    return tuple(sorted((name, value) for name, value in variables.items() if name.startswith(_PREFIXES)))
