"""Check that every rank makes every process group, in the same order.

torch names groups with a counter on each rank, and the members of a group are matched by its name. So every rank must
call `new_group` for every group, members or not, unless `use_local_synchronization=True`, which names a group after its
members. If two ranks give one name to different groups, gloo and NCCL connect the wrong ranks, or hang.
"""

from dataclasses import dataclass

from lablib.errors import CollectiveMismatchError, Wait

_ORDINALS = ("first", "second", "third")


@dataclass(frozen=True, slots=True)
class GroupCall:
    """A call of `new_group` on one rank: the rank, the members of the group, and the line of the program."""

    rank: int
    members: tuple[int, ...]
    line: object

    def check(self, earlier: "GroupCall", number: int) -> None:
        """Compare with a call of another rank for the group of the same number (from 1).

        Only members use the name of a group: a call for a group of other ranks has no effect. Raises
        CollectiveMismatchError: the groups differ, and one of the two ranks would connect to the wrong ranks.
        """
        if self.members == earlier.members:
            return
        calls = (earlier, self)
        makes = [call.rank in call.members for call in calls]
        is_expected = [call.rank in other.members for call, other in zip(calls, calls[::-1], strict=True)]
        if all(makes) or (makes[0] and is_expected[1]) or (makes[1] and is_expected[0]):
            place = _ORDINALS[number - 1] if number <= len(_ORDINALS) else f"as number {number}"
            raise CollectiveMismatchError(
                "Ranks called new_group in different orders: every rank must make all groups in the same order, "
                "members or not; call new_group on all ranks, or pass use_local_synchronization=True.",
                [Wait(call.rank, f"made {list(call.members)} {place}", str(call.line)) for call in calls],
            )
