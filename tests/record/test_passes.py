"""What no phase names is forward where a backward pass follows, else "compute"."""

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from lablib import launch, parallel
from lablib.record.allocations import Allocation, Allocations
from lablib.record.passes import UNNAMED, Passes, allocations_with_phases, passes_of, with_phases
from lablib.run import Span

LETTERS = {"?": UNNAMED, "B": "backward", "O": "optimizer", "S": "setup"}


def spans(program: str, rank: int = 0) -> list[Span]:
    return [Span(rank, "compute", "op", LETTERS[letter], float(i), i + 1.0) for i, letter in enumerate(program)]


def letters(found: list[Span]) -> str:
    return "".join({"forward": "F", "compute": "X"}.get(span.phase, span.phase[0].upper()) for span in found)


@pytest.mark.parametrize(
    ("program", "named"),
    [
        ("??", "XX"),  # no backward: a ring of additions
        ("??BB", "FFBB"),
        ("?BB?", "FBBX"),  # the division after backward
        ("?B?O?B?O", "FBXOFBXO"),  # clipping between backward and step, twice
        ("?B?BO", "FBFBO"),  # two micro-batches
        ("?OBO", "FOBO"),  # zero_grad before backward
        ("S?B?", "SFBX"),
        ("B", "B"),
        ("", ""),
    ],
)
def test_the_order_of_the_passes_tells(program, named):
    assert letters(with_phases(spans(program))) == named


@given(st.text("?BOS", max_size=30), st.text("?BOS", max_size=30))
def test_ranks_do_not_disturb_each_other_and_only_unnamed_work_gets_a_name(one, other):
    together = with_phases([*spans(one, 0), *spans(other, 1)])
    assert letters(together) == letters(with_phases(spans(one))) + letters(with_phases(spans(other)))
    for given_, found in zip(one + other, letters(together), strict=True):
        assert found in "FX" if given_ == "?" else found == given_


@given(st.text("?BOS", max_size=30))
def test_forward_is_followed_by_a_backward_and_work_between_backward_and_step_is_none(program):
    named = letters(with_phases(spans(program)))
    for place, letter in enumerate(named):
        later, before = named[place:].strip("FXS"), named[:place].strip("FXS")
        if letter == "F":
            assert "B" in later and not (before.endswith("B") and later.startswith("O"))
        if letter == "X":
            assert "B" not in later or (before.endswith("B") and later.startswith("O"))


def test_storages_get_the_phase_of_the_work_that_made_them():
    work = spans("?B?", 1)
    blocks = Allocations.of([Allocation(1, "other", 8, s.start_s, 9.0, "op", s.phase, "line") for s in work])
    found = allocations_with_phases(blocks, passes_of(work))
    assert [block.phase for block in found] == ["forward", "backward", "compute"]
    assert [block.size_bytes for block in found] == [8, 8, 8] and {block.source for block in found} == {"line"}
    assert [block.phase for block in allocations_with_phases(blocks, {})] == ["compute", "backward", "compute"]
    assert not Passes(()).is_forward([0.0])[0]


def ring() -> None:
    parallel.ring_all_reduce(torch.ones(1000))


def step() -> None:
    w = torch.ones(64, 64, requires_grad=True)
    (w @ w).sum().backward()
    assert w.grad is not None
    parallel.ring_all_reduce(w.grad.view(-1))
    w.grad.div_(dist.get_world_size())


@pytest.mark.parametrize("backend", ["sim", "gloo"])
def test_additions_of_a_ring_are_not_forward(backend):
    timeline = launch(ring, ranks=2, backend=backend).timeline
    assert {span.phase for span in timeline.select(stream="compute")} == {"compute"}
    phases = [span.phase for span in launch(step, ranks=2, backend=backend).timeline.select(0, "compute")]
    assert [p for p, before in zip(phases, [""] + phases[:-1], strict=True) if p != before] == [
        "forward",
        "backward",
        "compute",
    ]


def test_the_memory_of_a_run_has_the_phases_of_its_timeline():
    run = launch(step, ranks=2)
    assert {block.phase for block in run.memory.allocations} == {"forward", "backward", "compute"}
    assert UNNAMED not in {span.phase for span in run.timeline}
