"""Valid plans that no schedule makes: any pieces on any ranks, backwards whole or split, in any order that runs."""

from typing import Any

from hypothesis import strategies as st

from lablib.pipeline import Action, Kind, Plan
from lablib.pipeline.deadlock import given, needed
from lablib.pipeline.schedules import SCHEDULES, make


def any_plan(name: str, p: int, m: int, v: int = 1) -> Plan:
    """The schedule at the nearest size that it is defined for."""
    v = v if SCHEDULES[name].takes_chunks else 1
    m = -(-m // p) * p if name == "interleaved" and v > 1 else max(m, 2 * p) if name == "dualpipe-v" else m
    return make(name, p, m, v)


@st.composite
def plans(draw: Any, max_ranks: int = 4, max_pieces: int = 6, max_microbatches: int = 4) -> Plan:
    """A plan for up to so many ranks, of which some may have no piece."""
    p, m = draw(st.integers(1, max_ranks)), draw(st.integers(1, max_microbatches))
    rank_of = draw(st.lists(st.integers(0, p - 1), min_size=1, max_size=max_pieces))
    split = draw(st.lists(st.booleans(), min_size=len(rank_of) * m, max_size=len(rank_of) * m))
    left = {
        Action(piece, kind, microbatch)
        for piece in range(len(rank_of))
        for microbatch in range(m)
        for kind in (Kind.F, *((Kind.I, Kind.W) if split[piece * m + microbatch] else (Kind.B,)))
    }
    random = draw(st.randoms(use_true_random=False))
    rows: list[list[Action]] = [[] for _ in range(p)]
    done: set[Any] = {None}
    while left:
        ready = sorted(
            action for action in left if needed(action, len(rank_of)) in done and _is_forward_done(action, left)
        )
        action = random.choice(ready)
        left.remove(action)
        done.add(given(action))
        rows[rank_of[action.stage]].append(action)
    return Plan("drawn", p, m, tuple(map(tuple, rows)), tuple(rank_of))


def _is_forward_done(action: Action, left: set[Action]) -> bool:
    return action.kind is Kind.F or Action(action.stage, Kind.F, action.microbatch) not in left
