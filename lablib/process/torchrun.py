"""Environment variables that torchrun gives each worker, and a free port for the master.

Source: torch 2.13, torch/distributed/elastic/agent/server/local_elastic_agent.py (`_start_workers`),
multiprocessing/api.py (TORCHELASTIC_ERROR_FILE), launcher/api.py (TORCHELASTIC_SIGNALS_TO_HANDLE) and run.py
(OMP_NUM_THREADS). Simplified: no error file, and no store of the agent that workers connect to.
"""

import os
import socket

LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """A port of loopback that is free now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return probe.getsockname()[1]


def worker_environment(
    rank: int, ranks: int, local_rank: int, local_size: int, node: int, nodes: int, port: int, run_id: str, role: str
) -> dict[str, str]:
    """Names and values for one worker; `local_size` is the number of ranks on its node.

    The master is this machine; `role` is "default" in torchrun.
    """
    threads = {} if local_size == 1 or "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": 1}
    variables = threads | {
        "RANK": rank,
        "LOCAL_RANK": local_rank,
        "GROUP_RANK": node,
        "ROLE_RANK": rank,
        "ROLE_NAME": role,
        "LOCAL_WORLD_SIZE": local_size,
        "WORLD_SIZE": ranks,
        "GROUP_WORLD_SIZE": nodes,
        "ROLE_WORLD_SIZE": ranks,
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": port,
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_USE_AGENT_STORE": False,
        "TORCHELASTIC_ERROR_FILE": "",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", 1),
    }
    return {name: str(value) for name, value in variables.items()}
