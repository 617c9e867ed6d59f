"""Process groups of a warm worker: a new default group for every program, made between programs.

After each program all its groups are destroyed and the default group is made again, so that an unreceived message
cannot reach the next program. Each generation of groups has its own prefix of the store, because the store keeps the
addresses of the one before.

NCCL is the exception: making its communicator takes a good part of a second, and it keeps no unreceived messages (the
GPU has finished all work when a program ends), so its default group stays and only the program's own groups are
destroyed. It is made with the rank's GPU given, so that it connects before a program begins: then messages share the
communicator of the collectives and run one at a time (for the consequences for rings see message_circles.py).

Time limits of communication, never below the time limit of the launch.

torch gives every group a limit: 10 minutes with NCCL, 30 with gloo (torch/distributed/constants.py, torch 2.13). A rank
that waits longer in a collective fails; with NCCL a watchdog ends its process. But in a launch with a limit of an hour,
one rank may compute for twenty minutes while the others wait. The launch's own limit should come first, as its error
names the ranks that had not returned and the line of each.

Compare the order of `new_group` calls over real ranks, before a group is made.

The first member writes its call into the store, under the name of the group. Later callers compare, members or not.
"""

import json
import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # noqa: F401 - now, as its functions keep the default group of the moment

from lablib.process.group_calls import GroupCall
from lablib.real.frames import program_line
from lablib.real.gpu.warm_up import warm_up
from lablib.real.workers.peers import check_new_groups
from lablib.real.workers.rendezvous import MeetingFile
from lablib.torch_compat import current, place, set_group_timeout


class Groups:
    """The default group of this rank, and its renewal."""

    def __init__(self, backend: str, device: torch.device, meeting: MeetingFile):
        self._backend, self._device, self._meeting = backend, device, meeting
        self.timeouts = Timeouts(backend)
        self._rank, self._ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if backend == "gloo":  # NCCL asks every caller for a secret number, which is in the store
            check_new_groups()
            check_group_orders()

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


_LATER_S = 60.0  # after the launch's own limit
_ENDLESS = timedelta(days=365)
_BY_BACKEND = {"gloo": "gloo_timeout", "nccl": "nccl_timeout"}


class Timeouts:
    """The limits of this process's groups, with torch's own as the minimum."""

    def __init__(self, backend: str):
        self._name = _BY_BACKEND[backend]
        module, name = place(self._name)
        own = getattr(module, name)
        self._own = own if isinstance(own, timedelta) else timedelta(minutes=10)  # None in a torch without NCCL

    def allow(self, timeout_s: float | None) -> timedelta:
        """Let existing and new groups wait as long as a launch of `timeout_s` lasts (None: no limit).

        Returns the new limit of the default group, and of every group that is made without one.
        """
        longest_s = _ENDLESS.total_seconds()
        allowed_s = longest_s if timeout_s is None else min(timeout_s + _LATER_S, longest_s)
        limit = max(self._own, timedelta(seconds=allowed_s))
        setattr(*place(self._name), limit)
        if dist.is_initialized():
            set_group_timeout(limit)
        return limit


def check_group_orders() -> None:
    """Check each later call of `new_group` in this process. Call it once."""
    name_of = current("process_group_name")

    def name(ranks: Sequence[int], use_hashed_name: bool) -> Any:
        name = name_of(ranks, use_hashed_name)
        if ranks and not use_hashed_name:
            _check(GroupCall(dist.get_rank(), tuple(ranks), program_line()), int(name))
        return name

    setattr(*place("process_group_name"), name)


def _check(call: GroupCall, number: int) -> None:
    store, key = current("default_store")(), f"lablib/new_group/{number}"
    if call.rank in call.members:
        text = store.compare_set(key, "", json.dumps([call.rank, call.members, call.line]))
    elif store.check([key]):
        text = store.get(key)
    else:
        return
    rank, members, line = json.loads(text)
    call.check(GroupCall(rank, tuple(members), line), number)
