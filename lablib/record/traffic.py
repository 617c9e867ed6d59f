"""Traffic between the ranks of a run: every collective, and every matched send and receive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lablib.record.draw import draw
from lablib.record.rank_text import short_ranks
from lablib.signature import checked
from lablib.text.markup import table_html
from lablib.text.units import plural

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import plotly.graph_objects as go

_MAX_RANKS = 20_000  # a larger matrix does not fit into a laptop's memory
Routes = Mapping[tuple[int, int], float]  # (from, to) -> bytes, global ranks


@dataclass(frozen=True, slots=True)
class Transfer:
    """One communication call: a collective of a group, or one matched send and receive.

    `tensor_bytes` is the size of the whole tensor, S of the cost model (lablib/cost/collective.py); with n ranks:

        all_reduce, reduce, broadcast     the tensor that each rank holds
        all_gather, gather                the output of a rank (the root): the n shards together
        reduce_scatter, scatter           the input of a rank (the root): the n shards together
        all_to_all                        the input or output of a rank; with uneven splits, the largest
        send                              the message
        barrier                           0; also for a call that a fault kept from ending

    A call on several tensors counts them together.
    """

    group: str  # name of the process group ("world", or the name given to `new_group`)
    name: str  # "all_reduce", "broadcast", ..., or "send" for a matched send and receive
    ranks: tuple[int, ...]  # global ranks of the participants (sender first, for a send)
    algorithm: str  # "ring", "tree", "hierarchical" or "direct"; on real backends the library's name
    tensor_bytes: float  # size of the whole tensor, as in the table above
    sent_bytes: tuple[float, ...]  # bytes sent by each of `ranks` under that algorithm, in the same order
    start_s: float  # start_s, end_s: times of the transfer (first start, last end), seconds since the launch
    end_s: float
    # time of the call on each of `ranks`, in the same order; empty if unknown. A transfer starts when the last has
    # joined: the others wait until then, unless they are busy.
    issued_s: tuple[float, ...] = ()
    dtype: str = ""  # of its tensors, "float32"; "" if they differ, for none, and if unknown (real backends)
    id: int | None = None  # its number in the run, equal to `transfer_id` of its spans. None: unknown.
    # function that returns the bytes between each pair of ranks; None if unknown, as on real backends
    route: Callable[[], Routes] | None = field(default=None, compare=False, repr=False)

    @property
    def is_routed(self) -> bool:
        """Whether the bytes between each pair of ranks are known."""
        return self.route is not None or self.name == "send" or not any(self.sent_bytes)

    @property
    def routes(self) -> Routes:
        """(from, to) -> bytes between two ranks. If unknown, as if each rank sent to the next of the group.

        The bytes from each rank add up to its `sent_bytes`.
        """
        if self.route is not None:
            return self.route()
        n = len(self.ranks)
        # A rank's message to itself (n = 1, or a send to itself) is not counted.
        following = (*self.ranks[1:], self.ranks[0]) if n else ()
        return {(a, b): sent for a, b, sent in zip(self.ranks, following, self.sent_bytes, strict=True) if sent}


@dataclass(frozen=True)
class Traffic:
    """Every communication of a run, in the order of starts; `notes` are shown below each of its figures."""

    transfers: tuple[Transfer, ...] = ()
    notes: tuple[str, ...] = ()

    @checked
    def sent_bytes(self, rank: int | None = None) -> float:
        """Bytes sent by `rank` over the whole run; None: by all ranks together."""
        return sum(
            sent
            for transfer in self.transfers
            for member, sent in zip(transfer.ranks, transfer.sent_bytes, strict=True)
            if rank is None or member == rank
        )

    @checked
    def matrix(self, num_ranks: int | None = None) -> np.ndarray:
        """Bytes from each rank (row) to each other one (column), as an array [ranks, ranks].

        Args:
            num_ranks: number of ranks; None: up to the last one in a communication.

        Raises:
            ValueError: if a transfer names a rank beyond `num_ranks`.
        """
        import numpy as np

        last = max((rank for transfer in self.transfers for rank in transfer.ranks), default=-1)
        size = last + 1 if num_ranks is None else num_ranks
        if not 0 <= size <= _MAX_RANKS:
            raise ValueError(f"num_ranks is 0 to {_MAX_RANKS:,}, for a matrix of them: got {size}; try 8")
        if last >= size:
            raise ValueError(f"num_ranks must cover every rank of the traffic: got {size}, found rank {last}.")
        total = np.zeros((size, size))
        for routes, count in self._routes():
            pairs = np.array(list(routes), dtype=int).reshape(-1, 2)
            total[pairs[:, 0], pairs[:, 1]] += count * np.fromiter(routes.values(), float, len(routes))
        return total

    def _routes(self) -> Iterator[tuple[Routes, int]]:
        """The routes of all transfers, equal ones once, with their counts."""
        # A training step repeats few collectives often, and routes of a thousand ranks take long to compute.
        known = Counter(transfer.route for transfer in self.transfers if transfer.route is not None)
        for route, count in known.items():
            yield route(), count
        for transfer in self.transfers:
            if transfer.route is None:
                yield transfer.routes, 1

    @property
    def devices_per_node(self) -> int | None:
        """Number of ranks per node, if the run was simulated; otherwise None."""
        networks = (getattr(transfer.route, "network", None) for transfer in self.transfers)
        return next((network.cluster.devices_per_node for network in networks if network is not None), None)

    def figure(self, **options: Any) -> go.Figure:
        """Bytes between each pair of ranks, as a heat map."""
        return draw("figure_traffic_matrix", self, **options)

    @checked
    def count(self, name: str) -> int:
        """Number of calls of this name ("all_reduce", "send", ...)."""
        return sum(transfer.name == name for transfer in self.transfers)

    def table(self) -> pd.DataFrame:
        """One row per communication: group, op, ranks, algorithm, bytes of the tensor and sent, start, seconds."""
        import pandas as pd

        rows = [
            {
                "group": t.group,
                "name": t.name,
                "ranks": short_ranks(t.ranks),
                "algorithm": t.algorithm,
                "tensor_bytes": t.tensor_bytes,
                "sent_bytes": sum(t.sent_bytes),
                "start_s": t.start_s,
                "seconds": t.end_s - t.start_s,
            }
            for t in self.transfers
        ]
        names = ("group", "name", "ranks", "algorithm", "tensor_bytes", "sent_bytes", "start_s", "seconds")
        return pd.DataFrame(rows, columns=names)

    def __len__(self) -> int:
        return len(self.transfers)

    def __repr__(self) -> str:
        return f"Traffic({plural(len(self.transfers), 'communications')}, {self.sent_bytes():.4g} bytes sent)"

    def _repr_html_(self) -> str:
        return table_html(self.table(), max_rows=20)
