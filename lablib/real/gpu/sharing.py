"""More ranks than GPUs: the ways in which NCCL lets several ranks share one, and what such a run is good for.

NCCL expects a GPU for each rank, and refuses two ranks of one host on one GPU. For trying a program out there are two
ways around that (the sources are NCCL's own, by release):

    NCCL            what it does with two ranks on one GPU                                          where
    2.5 to 2.29     refuses ("Duplicate GPU detected") where both ranks are of one host. A rank     src/init.cc,
                    that has its own NCCL_HOSTID counts as a host of its own, and the ranks talk    src/misc/utils.cc
                    through sockets.
    2.30 and later  the same; and NCCL_MULTI_RANK_GPU_ENABLE=1 turns the refusal off. It is         src/init.cc,
                    experimental, meant for up to 2 ranks a GPU, and hangs where a GPU has too      docs/.../env.rst
                    little room for the channels of all its ranks.

torch 2.11 comes with NCCL 2.28.9, torch 2.12 and 2.13 with 2.29.7: so hosts of their own come first, as they work in
every version and for any number of ranks; the switch is tried where that fails.

Ranks that share a GPU take turns on it. A program's values are right then. Its times mean nothing, and each rank sees
the memory of the whole GPU, so such a run is no measurement: its note is shown below each figure, and a calibration
starts one process per GPU instead (`ranks_with_own_gpu`).
"""

from math import ceil

import torch
from torch.cuda import nccl

from lablib.run import TIMES_MEAN_NOTHING
from lablib.text.units import plural

Environment = dict[str, str]
SWITCH_SINCE = (2, 30)  # the first release of NCCL with NCCL_MULTI_RANK_GPU_ENABLE: 2.29.7 has none, 2.30.3 has it
_MAX_RANKS_WITH_SWITCH = 2  # of one GPU, "with the default configuration" (NCCL 2.30.7, env.rst)


def environments(backend: str, ranks: int) -> list[list[Environment]]:
    """Ways to start the workers, the best first: for each way, what to add to the environment of each rank."""
    if (most := ranks_per_gpu(backend, ranks)) <= 1:
        return [[{} for _ in range(ranks)]]
    ways = [[_own_host(rank) for rank in range(ranks)]]
    if nccl.version()[:2] >= SWITCH_SINCE and most <= _MAX_RANKS_WITH_SWITCH:
        ways.append([_switch() for _ in range(ranks)])
    return ways


def ranks_per_gpu(backend: str, ranks: int) -> int:
    """The most ranks that one GPU has on "nccl"; 0 on other backends, and where there are no GPUs."""
    gpus = torch.cuda.device_count() if backend == "nccl" else 0  # asks NVML: CUDA is not initialised
    return ceil(ranks / gpus) if gpus else 0


def ranks_with_own_gpu(backend: str, ranks: int) -> int:
    """How many of so many ranks have a GPU of their own on "nccl"; all of them on other backends."""
    gpus = torch.cuda.device_count() if backend == "nccl" else 0
    return min(ranks, gpus) if gpus else ranks


def sharing_note(backend: str, ranks: int) -> str:
    """What a reader of the run must know about shared GPUs; empty where each rank has its own."""
    if ranks_per_gpu(backend, ranks) <= 1:
        return ""
    return f"{ranks} ranks shared {plural(torch.cuda.device_count(), 'GPUs')}: {TIMES_MEAN_NOTHING}"


def _own_host(rank: int) -> Environment:
    """What makes NCCL take a rank for a host of its own, without the ways that lead past the network."""
    return {
        "NCCL_HOSTID": f"lablib-rank-{rank}",
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
        "NCCL_MNNVL_ENABLE": "0",  # NVLink between hosts, which these are not
        "NCCL_NET": "Socket",
        "NCCL_SOCKET_IFNAME": "lo",
    }


def _switch() -> Environment:
    """NCCL's own switch, with few channels a rank: what it advises against its hangs (NCCL 2.30.7, env.rst)."""
    return {
        "NCCL_MULTI_RANK_GPU_ENABLE": "1",
        "NCCL_MAX_CTAS": "2",
        "NCCL_NET_GDR_LEVEL": "LOC",
        "NCCL_NVLS_ENABLE": "0",  # ranks of one GPU cannot use it, and a user's 1 would be an error
    }
