"""Worker processes as torchrun starts them: its elastic agent, on this machine, with a rendezvous of our own.

The agent gives each worker the environment that `torchrun` would (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR,
MASTER_PORT, ...) and notices their deaths. It runs in a thread of this process and never restarts a worker
(`max_restarts=0`): a program that lost a rank is over. Nothing of it listens (see rendezvous.py).

Simplified: one machine. For several, `torchrun` itself is the launcher (docs/security.md says what it opens).
"""

import logging
import os
import signal
import sys
import threading
from pathlib import Path

from torch.distributed.elastic.agent.server.api import RunResult, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

from lablib.inside import RANK_VARIABLE
from lablib.real.rendezvous import LOOPBACK, OneMachine

_THREAD = "lablib-elastic-agent"
_LOOPBACK_INTERFACE = "lo0" if sys.platform == "darwin" else "lo"
# Loopback, also where the user's environment names an interface for runs on several machines: nothing of a launch is
# to be reached from outside. Connections are made at once, so that they can be checked (peers.py).
_ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": _LOOPBACK_INTERFACE,
    "NCCL_SOCKET_IFNAME": _LOOPBACK_INTERFACE,
    "TORCH_GLOO_LAZY_INIT": "0",
    "KINETO_LOG_LEVEL": "99",  # the profiler's own log lines are not for users
}
# What a worker does first. It writes to files from then on, so that an import that fails can be read (see capture.py).
_START = """
import os, sys
for descriptor, stream in (1, "stdout"), (2, "stderr"):
    path = os.path.join({directory!r}, "rank" + os.environ["RANK"] + "." + stream)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, descriptor)
    os.close(file)
os.environ.update({environment!r}, {rank}=os.environ["RANK"])
sys.path.append({root!r})
from lablib.real.worker import main
main({address!r}, os.path.join({directory!r}, "store"))
"""


class Agent:
    """The elastic agent of one set of workers.

    Args:
        ranks: how many workers to start.
        address: the socket path at which they report to the launcher.
        directory: where their output (see capture.py) and the file in which they meet are kept; what the agent writes.
    """

    def __init__(self, ranks: int, address: str, directory: Path):
        self._directory = directory
        root = str(Path(__file__).resolve().parents[2])
        code = _START.format(
            directory=str(directory), environment=_ENVIRONMENT, rank=RANK_VARIABLE, root=root, address=address
        )
        spec = WorkerSpec(
            role="lablib",
            local_world_size=ranks,
            rdzv_handler=OneMachine(),
            entrypoint=sys.executable,
            args=("-P", "-c", code),
            max_restarts=0,
            local_addr=LOOPBACK,
        )
        self._agent = LocalElasticAgent(spec, DefaultLogsSpecs(str(directory / "agent")))
        self._result: RunResult | None = None
        self._error: BaseException | None = None
        # In a thread, so the agent leaves this process's signal handlers alone; a daemon, so it never delays an exit.
        self._thread = threading.Thread(target=self._run, name=_THREAD, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        _quiet_in_agent_threads()
        try:
            self._result = self._agent.run()  # pyright: ignore[reportAttributeAccessIssue] - hidden by a decorator
        except BaseException as error:  # reported by `failure`
            self._error = error
        finally:
            self._agent.get_worker_group().spec.rdzv_handler.shutdown()

    @property
    def has_ended(self) -> bool:
        """Whether every worker is gone (or never came)."""
        return not self._thread.is_alive()

    def pids(self) -> list[int]:
        """The process ids of the workers started so far."""
        return [worker.id for worker in self._agent.get_worker_group().workers if isinstance(worker.id, int)]

    def wait(self, timeout_s: float) -> None:
        """Wait until every worker has been seen to be gone, at most `timeout_s` seconds."""
        self._thread.join(timeout_s)

    def cause_of_death(self, rank: int) -> str:
        """How a worker ended, as far as the agent knows: "was ended by SIGKILL", "ended with exit code 3"."""
        failure = self._result.failures.get(rank) if self._result else None
        if failure is None:
            return f"could not be started ({self._error!r})" if self._error else "ended with exit code 0"
        if failure.exitcode < 0:
            return f"was ended by {signal.Signals(-failure.exitcode).name}"
        return f"ended with exit code {failure.exitcode}"

    def early_errors(self) -> str:
        """What the workers wrote to stderr before they reported."""
        logs = sorted(self._directory.glob("rank*.stderr"))
        return "\n".join(text for log in logs if (text := log.read_text(errors="replace").strip()))


def end_process(pid: int) -> None:
    """End a worker and the processes it started (a worker leads its own session). No error if it is gone already."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (
        ProcessLookupError,
        PermissionError,
    ):  # macOS answers EPERM for a process that is dead and not yet waited for
        pass


def _quiet_in_agent_threads() -> None:
    """Drop the agent's log lines about ended workers: the launcher raises an error that says more.

    Other elastic agents of this process (there are none in a notebook) keep their log.
    """
    for name in [*logging.root.manager.loggerDict, "torchelastic-events-null"]:
        if name.startswith(("torch.distributed.elastic", "torchelastic-events")):
            logger = logging.getLogger(name)
            if _is_not_agents not in logger.filters:
                logger.addFilter(_is_not_agents)


def _is_not_agents(record: logging.LogRecord) -> bool:
    return record.threadName != _THREAD
