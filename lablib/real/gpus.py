"""Whether there are GPUs for NCCL: one sentence where there are not. More ranks than GPUs: see sharing.py."""

import torch
import torch.distributed as dist

from lablib.errors import WorkerError
from lablib.units import plural


def require_gpus(ranks: int) -> None:
    """Check that NCCL can run at all. Raises WorkerError, saying what was found and what is needed."""
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
