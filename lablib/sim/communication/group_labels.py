"""Unique labels of the process groups of a rank: each label names a communication stream.

dist.new_group([0, 1])                              "0,1"
dist.new_group([0, 1])                              "0,1 (2)"
dist.new_group([0, 1], group_desc="tp")             "tp", also for other ranks' groups with that description
"""

from collections.abc import Collection

from lablib.engine.group import Group
from lablib.record.rank_text import numbered


class GroupLabels:
    """The labels in use, by rank, the groups with a description, and the destroyed groups."""

    def __init__(self) -> None:
        self._of_rank: dict[int, set[str]] = {}
        self._described: set[Group] = set()
        self._destroyed: set[Group] = set()

    def take(self, ranks: Collection[int], name: str) -> str:
        """A label for a group of these ranks: its name, numbered if one of them has a group of that name."""
        taken = [self._of_rank.setdefault(rank, set()) for rank in ranks]
        label = numbered(name, lambda label: any(label in labels for labels in taken))
        for labels in taken:
            labels.add(label)
        return label

    def describe(self, group: Group, name: str) -> None:
        """Set the description of a group. All members give the same, and the first call counts."""
        if group not in self._described:
            self._described.add(group)
            self._free(group)
            group.label = self.take(group.simulated_ranks, name)

    def give_back(self, group: Group) -> None:
        """Free the label of a destroyed group: no collective of it can begin any more."""
        if group not in self._destroyed:
            self._destroyed.add(group)
            self._free(group)

    def _free(self, group: Group) -> None:
        for rank in group.simulated_ranks:
            self._of_rank[rank].discard(group.label)
