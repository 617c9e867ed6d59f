"""Which programs hang with NCCL once messages outgrow its buffers: replayed calls, held against ranks that block."""

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib import launch
from lablib.errors import DeadlockError, NotOnNcclWarning
from lablib.real import launch as real_launch
from lablib.real.gpu.message_circles import circle_note, waiting_circle
from lablib.real.measurement.calls import Call
from lablib.real.measurement.measure import Measurement

Script = list[tuple[str, int]]  # what one rank does: ("send", to), ("recv", from), ("all", 0)


def calls_of(scripts: list[Script], batched: bool = False) -> list[list[Call]]:
    """The calls of ranks that do this, as a recorder writes them down."""
    recorded = []
    for rank, script in enumerate(scripts):
        mine = []
        for kind, other in script:
            name = "all_reduce" if kind == "all" else kind
            source, target = {"send": (rank, other), "recv": (other, rank), "all": (-1, -1)}[kind]
            members = tuple(range(len(scripts)))
            call = Call(name, name, "world", "0", members, 0, source, target, 0, 4.0, 4.0, thread=1)
            call.batch = int(batched and kind != "all")
            mine.append(call)
        recorded.append(mine)
    return recorded


@given(st.integers(2, 9), st.booleans())
def test_a_ring_of_sends_and_receives_is_a_circle_and_a_ring_of_batches_is_none(ranks, sends_first):
    scripts = [[("send", (rank + 1) % ranks), ("recv", (rank - 1) % ranks)] for rank in range(ranks)]
    scripts = scripts if sends_first else [script[::-1] for script in scripts]
    assert waiting_circle(calls_of(scripts)) == list(range(ranks))
    assert waiting_circle(calls_of(scripts, batched=True)) == []
    scripts[0] = scripts[0][::-1]  # one that begins the other way breaks the circle
    assert waiting_circle(calls_of(scripts)) == []


def follow(scripts: list[Script]) -> None:
    for kind, other in scripts[dist.get_rank()]:
        x = torch.zeros(1)
        {"send": dist.send, "recv": dist.recv, "all": lambda x, _: dist.all_reduce(x)}[kind](x, other)


@settings(max_examples=25)
@given(st.data(), st.integers(2, 4))
def test_a_circle_is_found_exactly_where_ranks_that_block_have_one(data, ranks):
    """On the simulator `send` and `recv` return when the message has passed: one at a time, without buffers."""
    pairs = st.tuples(st.integers(0, ranks - 1), st.integers(0, ranks - 1)).filter(lambda pair: pair[0] != pair[1])
    scripts: list[Script] = [[] for _ in range(ranks)]
    for source, target in data.draw(st.lists(pairs, min_size=1, max_size=5)):
        scripts[source].append(("send", target))
        scripts[target].append(("recv", source))
    scripts = [data.draw(st.permutations(script)) for script in scripts]
    try:
        launch(follow, scripts, ranks=ranks)
        hangs = False
    except DeadlockError:
        hangs = True
    assert bool(waiting_circle(calls_of(scripts))) == hangs


def test_a_message_that_nobody_takes_is_no_circle():
    assert waiting_circle(calls_of([[("send", 1)], []])) == [] == waiting_circle([])


def test_a_run_with_a_circle_says_so_and_warns(monkeypatch, run_of):
    calls = calls_of([[("send", 1), ("recv", 1)], [("send", 0), ("recv", 0)]])
    measured = [Measurement(start_ns=1, calls=mine) for mine in calls]
    monkeypatch.setattr(real_launch, "require_gpus", lambda *ranks: None)
    with pytest.warns(NotOnNcclWarning, match=r"ranks 0, 1 send .* dist.batch_isend_irecv") as warned:
        run = run_of(measured)
    assert run.notes == (circle_note(calls),) and len(warned) == 1
    assert run_of(measured, "gloo").notes == (), "gloo makes them at the same time"
