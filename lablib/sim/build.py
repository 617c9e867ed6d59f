"""Build a simulation: ranks with their clocks, the network between them, and their process groups.

Each communication becomes one `Transfer`, and for each participant a span on its communication stream; a participant
that had to wait has a second span, from its call to the call of the last member.
"""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from lablib.cost import GroupNetwork
from lablib.engine.conditions import Conditions
from lablib.engine.cores import Cores
from lablib.engine.events import Events, Transferred
from lablib.engine.group import Group
from lablib.engine.network import Network
from lablib.engine.scheduler import Scheduler
from lablib.faults import Fault
from lablib.hardware.cluster import Cluster
from lablib.record.rank_text import short_ranks
from lablib.record.timeline import WAIT
from lablib.run import Transfer
from lablib.sim.communication.delivery import follow
from lablib.sim.communication.group_labels import GroupLabels
from lablib.sim.communication.group_orders import GroupOrders
from lablib.sim.communication.nccl_limits import NcclLimits
from lablib.sim.communication.process_group import SimProcessGroup
from lablib.sim.communication.store import SimStore
from lablib.sim.faults.inject import Faults
from lablib.sim.memory.memory_tracker import MemoryTrackers
from lablib.sim.ranks.rank import Rank
from lablib.sim.ranks.turns import Turns
from lablib.sim.report import error_of


class Recorder:
    """The transfers of a run, and the communication spans of its ranks. `transfers`: in order of their ends."""

    def __init__(self, ranks: Mapping[int, Rank], events: Events):
        self._ranks = ranks
        self.transfers: list[Transfer] = []
        events.subscribe(Transferred, self._note)

    def _note(self, event: Transferred) -> None:
        last_s = max(part.issue_s for part in event.parts)
        came = {part.place: part.issue_s for part in event.parts}
        issued_s = tuple(came.get(place, last_s) for place in range(len(event.ranks)))  # phantoms join with the last
        for part in event.parts:
            rank = self._ranks[part.rank]
            what = (part.name, part.phase)
            tie = (part.source, event.number, part.place)
            rank.communicate(f"{WAIT}{event.group}", *what, part.issue_s, last_s, 0.0, *tie)
            rank.communicate(part.stream, *what, event.start_s, event.end_s, event.size_bytes, *tie)
        self.transfers.append(
            Transfer(
                *(event.group, event.name, event.ranks, event.cost.algorithm, event.size_bytes, event.cost.sent_bytes),
                *(event.start_s, event.end_s, issued_s, event.dtype, event.number, event.cost.route),
            )
        )


class Parts:
    """The parts of one simulation, from the arguments of `run_sim`.

    Attributes:
        ranks: the simulated ranks, in order; `by_number` has them by number.
        simulated: their numbers; None: all.
        nccl_notes: the calls that may hang on NCCL, where groups are limited to it.
        began_s: real time of the construction.
    """

    def __init__(
        self,
        num_ranks: int,
        cluster: Cluster,
        is_traced: bool,
        fidelity: str,
        faults: Sequence[Fault],
        simulate: Sequence[int] | None,
        like: str | None,
    ):
        self.num_ranks, self.fidelity, self._like = num_ranks, fidelity, like
        self.simulated = None if simulate is None else tuple(sorted(simulate))
        self.faults = Faults(faults, cluster) if faults else None
        self.cluster = self.faults.cluster if self.faults else cluster
        self.ranks: list[Rank] = []
        cores: dict[int, Cores] = {}
        for number in range(num_ranks) if self.simulated is None else self.simulated:
            node = cluster.node(number)
            first = node * cluster.devices_per_node
            local_size = min(cluster.devices_per_node, num_ranks - first)
            make_rank = self.faults.rank if self.faults else Rank
            rank = make_rank(number, num_ranks, number - first, local_size, node, is_traced)
            if cluster.shared_cores:
                rank.cores = cores.setdefault(node, Cores(cluster.shared_cores, local_size))
            self.ranks.append(rank)
        self.by_number = {rank.rank: rank for rank in self.ranks}
        self._network = Network()
        self._scheduler = Scheduler(self.ranks, self._network)
        self._events = Events()
        self.recorder = Recorder(self.by_number, self._events)
        follow(self._events)
        self.turns = Turns(self.ranks, self._scheduler, partial(error_of, self))
        if self.faults:
            self.faults.turns = self.turns
        self.store = SimStore(self.turns)
        self.groups: dict[tuple[str, tuple[int, ...]], Group] = {}
        self.group_orders = GroupOrders()
        self._labels = GroupLabels()
        self.nccl_notes: dict[str, None] = {}
        self.trackers = MemoryTrackers()
        self.began_s = time.perf_counter()

    def make_group(self, options: Any, _: Any) -> SimProcessGroup:
        """Make the current rank's end of a group for torch; the ends of one group share a `Group`."""
        members = tuple(options.global_ranks_in_group) or tuple(range(self.num_ranks))
        key = (str(options.group_id), members)
        if key not in self.groups:
            clocks = {rank: self.by_number[rank] for rank in members if rank in self.by_number}
            name = short_ranks(members) if options.global_ranks_in_group else "world"
            self.groups[key] = Group(
                label=self._labels.take(clocks, name),
                clocks=clocks,
                network=GroupNetwork(self.cluster, members),
                wires=self._network,
                scheduler=self._scheduler,
                events=self._events,
                conditions=self.faults or Conditions(),
            )
        rank = self.by_number[self.turns.current]
        group = SimProcessGroup(self.groups[key], options.group_rank, rank, self.turns, key[0], self._labels)
        if self._like == "nccl":  # with a device, as in the workers of lablib/real
            group.limit_to_nccl(NcclLimits(), True, lambda note: self.nccl_notes.setdefault(note))
        return group
