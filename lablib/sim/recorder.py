"""Record transfers: a subscriber to the engine's events (lablib/engine/events.py).

Each communication becomes one `Transfer` and two spans per participant: one on its communication stream, and one from
its call until the last member's, if it had to wait.
"""

from collections.abc import Mapping

from lablib.engine.events import Events, Transferred
from lablib.record.timeline import WAIT
from lablib.run import Transfer
from lablib.sim.ranks.rank import Rank


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
                event.group,
                event.name,
                event.ranks,
                event.cost.algorithm,
                event.size_bytes,
                event.cost.sent_bytes,
                event.start_s,
                event.end_s,
                issued_s,
                event.dtype,
                event.number,
                event.cost.route,
            )
        )
