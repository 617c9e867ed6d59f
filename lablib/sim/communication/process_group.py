"""The simulator's `torch.distributed.ProcessGroup`: collectives, messages, its names, and coalesced calls.

torch 2.13 calls `all_gather_single` and `reduce_scatter_single` where 2.11 calls `_allgather_base` and
`_reduce_scatter_base`; the class has both names. tests/sim/test_torch_contract.py lists the methods that torch calls.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from lablib.sim.communication.messages import Messages
from lablib.sim.communication.nccl_limits import NcclLimits
from lablib.sim.communication.nccl_order import NcclOrder
from lablib.sim.communication.work import SimWork
from lablib.sim.ranks.rank import Rank
from lablib.torch_compat import set_group_desc

_CPU = torch.device("cpu")


class SimProcessGroup(Messages):
    """One rank's end of a group. Arguments: see `Collectives`."""

    def limit_to_nccl(self, limits: NcclLimits, is_eager: bool, note: Callable[[str], None]) -> None:
        """Reject calls that NCCL would reject, here and on all other members with this limit.

        `is_eager`: whether NCCL's group would have its device, as by `init_process_group(device_id=...)`.
        """
        self._nccl = limits
        self._note = lambda warning: note(warning) if warning else None
        if self._group.payload is None:
            self._group.payload = NcclOrder(self._group.simulated_ranks, self._group.label, is_eager)

    @contextmanager
    def phantoms_alike(self) -> Iterator[None]:
        """Assume within this context that phantoms give the same values as simulated members, for equality checks."""
        self._phantoms_are_alike = True
        try:
            yield
        finally:
            self._phantoms_are_alike = False

    # ---- identity ----

    def size(self) -> int:
        return self._group.size

    def getBackendName(self) -> str:
        return "sim"

    @property
    def rank_clock(self) -> Rank:
        """Clock and spans of this rank so far, for metrics during a run (lablib/train/communication.py)."""
        return self._rank_state

    @property
    def pg_name(self) -> str:
        return self._name

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def _device_types(self) -> list[torch.device]:
        return self.accepts.devices if self.accepts else [_CPU]

    def __repr__(self) -> str:
        return f"SimProcessGroup({self._group.label}, rank {self._member} of {self.size()})"

    def _set_group_desc(self, desc: str) -> None:
        """Set the label from the description that torch takes from `new_group` or a mesh."""
        set_group_desc(self, desc)
        if desc not in ("", "undefined", "default_pg"):
            self._labels.describe(self._group, desc)

    def shutdown(self) -> None:
        self._labels.give_back(self._group)

    def abort(self) -> None:
        pass

    # ---- coalescing: all calls in between give one work ----

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: torch.device) -> SimWork:
        works, self._coalesced = self._coalesced or [], None
        return self._together(works)
