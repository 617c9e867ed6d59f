"""GPUs for NCCL: one per rank, or on request fewer, for correct values without meaningful times.

NCCL expects a GPU for each rank, and rejects two ranks of one host on one GPU. To try out a program there are two ways
around that (sources are NCCL's files, by release):

    NCCL            two ranks on one GPU                                                            source
    2.5 to 2.29     error ("Duplicate GPU detected") if both ranks are on one host. A rank with     src/init.cc,
                    its own NCCL_HOSTID counts as a separate host, and the ranks communicate        src/misc/utils.cc
                    through sockets.
    2.30 and later  the same; and NCCL_MULTI_RANK_GPU_ENABLE=1 disables the error. It is            src/init.cc,
                    experimental, meant for up to 2 ranks per GPU, and hangs if a GPU has too       docs/.../env.rst
                    little room for the channels of all its ranks.

torch 2.11 comes with NCCL 2.28.9, torch 2.12 and 2.13 with 2.29.7: so separate hosts are tried first, as they work in
every version and for any number of ranks; the switch is tried if that fails.

Ranks that share a GPU take turns on it. A program's values are correct then. Its times mean nothing, and each rank sees
the memory of the whole GPU, so such a run is no measurement: its note is shown below each figure, and a calibration
starts one process per GPU instead (`ranks_with_own_gpu`). The request is `launch(..., share_gpus=True)`, or
LABLIB_SHARE_GPUS=1 in the environment. A prediction gives each rank a GPU, on more nodes.
"""

import os
from math import ceil

import torch
import torch.distributed as dist
from torch.cuda import nccl

from lablib.errors import WorkerError
from lablib.run import TIMES_MEAN_NOTHING
from lablib.text.units import plural

Environment = dict[str, str]
SHARE_VARIABLE = "LABLIB_SHARE_GPUS"  # "1" allows sharing in every launch, without a change of the notebook
SWITCH_SINCE = (2, 30)  # first release with NCCL_MULTI_RANK_GPU_ENABLE: not in 2.29.7, in 2.30.3
_MAX_RANKS_WITH_SWITCH = 2  # per GPU, "with the default configuration" (NCCL 2.30.7, env.rst)
# With NCCL_HOSTID, these make NCCL treat a rank as a separate host, on sockets only.
_OWN_HOST: Environment = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_MNNVL_ENABLE": "0",  # NVLink between hosts: there is none
    "NCCL_NET": "Socket",
    "NCCL_SOCKET_IFNAME": "lo",
}
# NCCL's switch, with few channels per rank, as it advises against hangs (NCCL 2.30.7, env.rst).
_SWITCH: Environment = {
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    "NCCL_MAX_CTAS": "2",
    "NCCL_NET_GDR_LEVEL": "LOC",
    "NCCL_NVLS_ENABLE": "0",  # not available to ranks of one GPU; a user's 1 would be an error
}


def require_gpus(ranks: int, share_gpus: bool = True) -> None:
    """Check that NCCL can run, and that ranks share a GPU only on request."""
    if not dist.is_nccl_available():
        raise WorkerError(
            f"backend 'nccl' needs a CUDA build of torch and {ranks} NVIDIA GPUs for {plural(ranks, 'ranks')}: found "
            f"torch {torch.__version__}, which has no NCCL; use backend='gloo' or 'sim' on this machine"
        )
    if torch.cuda.device_count() == 0:
        raise WorkerError(
            f"backend 'nccl' needs {ranks} NVIDIA GPUs for {plural(ranks, 'ranks')} (at least one, which they would "
            "share): found none; use backend='gloo' or 'sim' on this machine"
        )
    if ranks > (gpus := torch.cuda.device_count()) and not (share_gpus or os.environ.get(SHARE_VARIABLE) == "1"):
        raise WorkerError(
            f"backend 'nccl' needs a GPU for each rank: got {plural(ranks, 'ranks')}, and this machine has "
            f"{plural(gpus, 'GPUs')}; try ranks={gpus}, more nodes (`lab run SCRIPT.py --nnodes 2`), or "
            f"share_gpus=True ({SHARE_VARIABLE}=1 for every launch): then values are right and times mean nothing"
        )


def environments(backend: str, ranks: int) -> list[list[Environment]]:
    """Alternatives for the start of the workers, best first: additions to the environment of each rank."""
    if (most := ranks_per_gpu(backend, ranks)) <= 1:
        return [[{} for _ in range(ranks)]]
    ways = [[{"NCCL_HOSTID": f"lablib-rank-{rank}", **_OWN_HOST} for rank in range(ranks)]]
    if nccl.version()[:2] >= SWITCH_SINCE and most <= _MAX_RANKS_WITH_SWITCH:
        ways.append([_SWITCH] * ranks)
    return ways


def ranks_per_gpu(backend: str, ranks: int) -> int:
    """The largest number of ranks on one GPU with "nccl"; 0 on other backends, and without GPUs."""
    gpus = torch.cuda.device_count() if backend == "nccl" else 0  # queries NVML: CUDA is not initialised
    return ceil(ranks / gpus) if gpus else 0


def ranks_with_own_gpu(backend: str, ranks: int) -> int:
    """The number of ranks with a separate GPU on "nccl"; all ranks on other backends."""
    return min(ranks, torch.cuda.device_count() or ranks) if backend == "nccl" else ranks


def sharing_note(backend: str, ranks: int) -> str:
    """The note for a run on shared GPUs; empty if each rank has its own."""
    if ranks_per_gpu(backend, ranks) <= 1:
        return ""
    return f"{ranks} ranks shared {plural(torch.cuda.device_count(), 'GPUs')}: {TIMES_MEAN_NOTHING}"
