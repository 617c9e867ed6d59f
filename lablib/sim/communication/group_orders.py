"""Compare the order in which simulated ranks call `new_group`, at each call."""

from collections.abc import Callable, Sequence
from typing import Any

from lablib.process.group_calls import GroupCall
from lablib.sim.source import program_line


class GroupOrders:
    """The groups that each rank has made, by the number of the rank's world and the number of the group in it."""

    def __init__(self) -> None:
        self._worlds: dict[int, int] = {}
        self._made: dict[tuple[int, int], dict[tuple[int, ...], list[GroupCall]]] = {}
        self._hashed: dict[tuple[int, ...], dict[str, list[GroupCall]]] = {}  # by members and name

    def checking(self, name_of: Callable[..., Any], rank: Callable[[], int]) -> Callable[..., Any]:
        """Wrap torch's function that names a group, which every rank calls for every group."""

        def name(ranks: Sequence[int], use_hashed_name: bool) -> Any:
            name = name_of(ranks, use_hashed_name)
            if ranks:
                call = GroupCall(rank(), tuple(ranks), program_line())
                if use_hashed_name:
                    self._hashed.setdefault(call.members, {}).setdefault(name, []).append(call)
                else:
                    self._check(call, int(name))
            else:  # init_process_group: restart the counter
                self._worlds[rank()] = self._worlds.get(rank(), 0) + 1
            return name

        return name

    def _check(self, call: GroupCall, number: int) -> None:
        made = self._made.setdefault((self._worlds.get(call.rank, 0), number), {})
        for earlier in (earlier for members, calls in made.items() if members != call.members for earlier in calls):
            call.check(earlier, number)
        made.setdefault(call.members, []).append(call)

    def cause_of_deadlock(self) -> str:
        """Describe a `use_local_synchronization=True` group to which its members gave different names; "" if none."""
        for members, names in self._hashed.items():
            apart = [calls[0] for calls in names.values() if len(calls) < len(members)]
            if len(apart) > 1:
                first, second = apart[:2]
                return (
                    "use_local_synchronization=True names a group after its members and the number of groups that a "
                    f"rank has already: the numbers of rank {first.rank} ({first.line}) and rank {second.rank} "
                    f"({second.line}) differ, so they made two groups {list(members)}; call new_group on all ranks."
                )
        return ""
