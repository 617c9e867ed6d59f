"""Process groups of a warm worker: a new default group for every program, made between programs.

After each program all its groups are destroyed and the default group is made again, so that an unreceived message
cannot reach the next program. Each generation of groups has its own prefix of the store, because the store keeps the
addresses of the one before.

NCCL is the exception: making its communicator takes a good part of a second, and it keeps no unreceived messages (the
GPU has finished all work when a program ends), so its default group stays and only the program's own groups are
destroyed. It is made with the rank's GPU given, so that it connects before a program begins: then messages share the
communicator of the collectives and run one at a time (for the consequences for rings see message_circles.py).
"""

import os

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # noqa: F401 - now, as its functions keep the default group of the moment

from lablib.real.gpu.warm_up import warm_up
from lablib.real.group_orders import check_group_orders
from lablib.real.workers.peers import check_new_groups
from lablib.real.workers.rendezvous import MeetingFile
from lablib.real.workers.timeouts import Timeouts
from lablib.torch_compat import current


class Groups:
    """The default group of this rank, and its renewal."""

    def __init__(self, backend: str, device: torch.device, meeting: MeetingFile):
        self._backend, self._device, self._meeting = backend, device, meeting
        self._timeouts = Timeouts(backend)
        self._rank, self._ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if backend == "gloo":  # NCCL asks every caller for a secret number, which is in the store
            check_new_groups()
            check_group_orders()

    def allow(self, timeout_s: float | None) -> None:
        """Set the communication timeout of the next program to its launch's; None: no limit."""
        self._timeouts.allow(timeout_s)

    def renew(self) -> None:
        """Leave only a default group, in its initial state. Communicates: every rank calls it at the same point.

        Raises RuntimeError: the ranks could not connect to each other.
        """
        if self._backend == "nccl" and dist.is_initialized():
            for group in list(current("process_world").pg_map):
                if group is not dist.group.WORLD:
                    dist.destroy_process_group(group)
            return
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group(
            self._backend,
            store=self._meeting.next_generation(),
            rank=self._rank,
            world_size=self._ranks,
            device_id=self._device if self._backend == "nccl" else None,  # given: NCCL connects now, not at first use
        )
        if self._backend == "nccl":
            warm_up(self._device)  # fails here, not in a program, if NCCL cannot work on this machine
