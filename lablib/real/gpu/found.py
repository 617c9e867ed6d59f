"""Check that there are GPUs for NCCL. For more ranks than GPUs see sharing.py.

Ranks share a GPU only on request, by `launch(..., share_gpus=True)` or LABLIB_SHARE_GPUS=1 in the environment. A
prediction gives each rank a GPU, on more nodes.
"""

import os

import torch
import torch.distributed as dist

from lablib.errors import WorkerError
from lablib.text.units import plural

SHARE_VARIABLE = "LABLIB_SHARE_GPUS"  # "1" allows sharing in every launch, without a change of the notebook


def require_gpus(ranks: int, share_gpus: bool = True) -> None:
    """Check that NCCL can run, and that ranks share a GPU only on request."""
    if not dist.is_nccl_available():
        raise WorkerError(
            f"backend 'nccl' needs a CUDA build of torch and {ranks} NVIDIA GPUs for "
            f"{plural(ranks, 'ranks')}: found torch "
            f"{torch.__version__}, which has no NCCL; use backend='gloo' or 'sim' on this machine"
        )
    if torch.cuda.device_count() == 0:
        raise WorkerError(
            f"backend 'nccl' needs {ranks} NVIDIA GPUs for {plural(ranks, 'ranks')} (at least one, which "
            "they would share): found "
            f"none; use backend='gloo' or 'sim' on this machine"
        )
    if ranks > (gpus := torch.cuda.device_count()) and not (share_gpus or os.environ.get(SHARE_VARIABLE) == "1"):
        raise WorkerError(
            f"backend 'nccl' needs a GPU for each rank: got {plural(ranks, 'ranks')}, and this machine has "
            f"{plural(gpus, 'GPUs')}; try ranks={gpus}, more nodes (`lab run SCRIPT.py --nnodes 2`), or "
            f"share_gpus=True ({SHARE_VARIABLE}=1 for every launch): then values are right and times mean nothing"
        )
