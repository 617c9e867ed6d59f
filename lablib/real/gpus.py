"""Which GPUs there are for NCCL, and what to do when there are fewer than ranks.

NCCL expects a GPU for each rank. For trying a program out, several ranks can share one; then they take turns on it and
talk through detours, so the program is right and its times mean nothing. Two ways, tried in this order:

  1. NCCL's own switch, NCCL_MULTI_RANK_GPU_ENABLE=1 (newer versions of NCCL).
  2. Every rank claims to be another host (its own NCCL_HOSTID) and they talk over sockets.
"""

import torch
import torch.distributed as dist
from torch.cuda import nccl

from lablib.errors import WorkerError
from lablib.units import plural

Environment = dict[str, str]
_LAST_WITHOUT_SWITCH = (2, 28, 9)  # the newest NCCL known to lack NCCL_MULTI_RANK_GPU_ENABLE


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


def environments(backend: str, ranks: int) -> list[list[Environment]]:
    """Ways to start the workers, the best first: for each way, what to add to the environment of each rank."""
    if backend != "nccl" or torch.cuda.device_count() >= ranks:
        return [[{} for _ in range(ranks)]]
    sockets = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo"}
    as_hosts = [{"NCCL_HOSTID": f"lablib-rank-{rank}", **sockets} for rank in range(ranks)]
    if nccl.version() <= _LAST_WITHOUT_SWITCH:
        return [as_hosts]
    return [[{"NCCL_MULTI_RANK_GPU_ENABLE": "1"} for _ in range(ranks)], as_hosts]


def sharing_note(backend: str, ranks: int) -> str:
    """What a reader of the run must know about shared GPUs; empty where each rank has its own."""
    if backend != "nccl" or (gpus := torch.cuda.device_count()) >= ranks:
        return ""
    return f"{ranks} ranks shared {plural(gpus, 'GPUs')}: values are right, times mean nothing"
