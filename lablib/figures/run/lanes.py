"""Lanes of a timeline: for each rank compute on top, its communication streams thinner below."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lablib.record.rank_text import ranks_in_words
from lablib.record.timeline import WAIT
from lablib.run import COMPUTE, Timeline

MAX_RANKS, RANKS_IF_MORE = 16, 8  # drawn by default
MAX_CHOSEN = 64  # drawn at most
_HEIGHT = {True: 1.0, False: 0.66}  # of a compute lane and of another, in units of y
_BETWEEN_LANES, _BETWEEN_RANKS = 0.08, 0.42


@dataclass(frozen=True, slots=True)
class Lane:
    """One row: its centre and height on the y axis (y grows downwards), and its label."""

    rank: int
    stream: str
    y: float
    height: float
    label: str


def ranks_to_show(known: Sequence[int], ranks: Iterable[int] | None) -> list[int]:
    """The ranks to draw.

    Args:
        known: all ranks, in order.
        ranks: the choice, of which at most the first 32 and the last 32 are drawn; None: all up to 16, otherwise the
            first 4 and the last 4.

    Raises ValueError: for a rank that does not exist.
    """
    if not known:
        raise ValueError("a timeline of 0 ranks has no lanes to draw: give the timeline of a run")
    if ranks is None:
        return _ends(known, len(known) if len(known) <= MAX_RANKS else RANKS_IF_MORE)
    chosen = sorted(set(ranks))
    unknown = [r for r in chosen if r not in known]
    if unknown or not chosen:
        got = f"got {unknown}" if unknown else "got none"
        has_all = len(known) == known[-1] - known[0] + 1
        where = f"between {known[0]} and {known[-1]}" if has_all else f"among {ranks_in_words(known)}"
        raise ValueError(f"ranks must be {where}: {got}; leave it out to see some of them.")
    return _ends(chosen, MAX_CHOSEN)


def _ends(ranks: Sequence[int], maximum: int) -> list[int]:
    """All of them, or half of `maximum` from each end."""
    return list(ranks) if len(ranks) <= maximum else [*ranks[: maximum // 2], *ranks[-(maximum // 2) :]]


def lanes_of(timelines: Sequence[Timeline], ranks: Sequence[int]) -> list[Lane]:
    """The lanes of the chosen ranks, top to bottom, with every stream that any of the timelines uses there.

    A group in which a rank only waited has an empty lane.
    """
    streams: dict[int, set[str]] = {rank: {COMPUTE} for rank in ranks}
    for timeline in timelines:
        for span in timeline:
            if span.rank in streams:
                streams[span.rank].add(span.stream.replace(WAIT, "comm:", 1) if span.is_waiting else span.stream)
    lanes: list[Lane] = []
    y = 0.0
    for rank in ranks:
        for stream in sorted(streams[rank], key=lambda name: (name != COMPUTE, name)):
            height = _HEIGHT[stream == COMPUTE]
            lanes.append(Lane(rank, stream, y + height / 2, height, _label(rank, stream)))
            y += height + _BETWEEN_LANES
        y += _BETWEEN_RANKS
    return lanes


def extent(lanes: Sequence[Lane]) -> tuple[float, float]:
    """The top and the bottom of the lanes on the y axis, with a margin."""
    return lanes[0].y - lanes[0].height / 2 - 0.25, lanes[-1].y + lanes[-1].height / 2 + 0.25


def pixels(lanes: Sequence[Lane]) -> int:
    """A height at which every lane can be read: few rows are tall."""
    top, bottom = extent(lanes)
    return int((bottom - top) * (30 if len(lanes) <= 10 else 24 if len(lanes) <= 24 else 19))


def _label(rank: int, stream: str) -> str:
    """ "rank 3" for its compute stream, the group's name for another."""
    if stream == COMPUTE:
        return f"<b>rank {rank}</b>"
    name = stream.removeprefix("comm:").removeprefix("compute:").replace(":", " ")
    return f"<span style='font-size:11px;color:#5A5A5A'>{name}</span>"
