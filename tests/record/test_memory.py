"""The records of memory against their definitions, on allocations made by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib import Allocation, Memory
from lablib.hardware import find_cluster
from lablib.record.memory import CATEGORIES, NEVER, Allocations

STEP = [
    Allocation(0, "parameter", 400, 0.0, 9e-3, "aten.empty", "forward", "train.py:3: model = Model()", 1, NEVER),
    Allocation(0, "activation", 900, 1e-3, 5e-3, "aten.gelu", "forward", "model.py:12: h = gelu(x)", 2, 6),
    Allocation(0, "activation", 600, 2e-3, 4e-3, "aten.gelu", "forward", "model.py:12: h = gelu(x)", 3, 5),
    Allocation(0, "gradient", 100, 3e-3, 9e-3, "aten.mm", "backward", "train.py:9: loss.backward()", 4, NEVER),
    Allocation(1, "other", 50, 0.0, 9e-3, "aten.randn", "forward", "train.py:4: x = torch.randn(8)", 1, NEVER),
]
MEMORY = Memory(STEP, 2)

allocations = st.lists(
    st.builds(
        lambda category, size, start, length: Allocation(0, category, size, float(start), float(start + length)),
        st.sampled_from(CATEGORIES),
        st.integers(1, 1000),
        st.integers(0, 6),
        st.integers(1, 6),
    ),
    max_size=12,
)


@given(allocations)
def test_the_peak_is_the_largest_sum_of_what_is_alive_at_one_moment(some):
    memory = Memory(some, 1)
    held = [sum(b.size_bytes for b in some if b.start_s <= t < b.end_s) for t in range(13)]
    assert memory.peak_bytes() == memory.peak_bytes(0) == max(held)
    assert [sum(memory.at(0, t).values()) for t in range(13)] == held
    assert sum(memory.at_peak(0).values()) == sum(h.size_bytes for h in memory.allocations_at_peak(0)) == max(held)
    assert sum(memory.at(0, memory.peak_at_s(0)).values()) == (max(held) if some else 0)


@given(allocations)
def test_the_curve_after_each_moment_is_what_is_held_then(some):
    memory = Memory(some, 1)
    times_s, held = memory.curve(0)
    assert list(held) == list(CATEGORIES) and all(len(column) == len(times_s) for column in held.values())
    for t in range(13):
        last = np.searchsorted(times_s, t, side="right") - 1
        now = {name: int(column[last]) if last >= 0 else 0 for name, column in held.items()}
        assert now == memory.at(0, t)


def test_where_time_stands_still_the_order_of_events_decides():
    one_by_one = [Allocation(0, "other", 8, 0.0, 0.0, start_event=2 * i + 1, end_event=2 * i + 2) for i in range(5)]
    assert Memory(one_by_one, 1).peak_bytes() == 8
    together = [Allocation(0, "other", 8, 0.0, 0.0, start_event=i + 1, end_event=10 + i) for i in range(5)]
    assert Memory(together, 1).peak_bytes() == 40


def test_without_numbers_what_dies_goes_before_what_is_born():
    assert Memory([Allocation(0, "other", 8, 0.0, 1.0), Allocation(0, "other", 8, 1.0, 2.0)], 1).peak_bytes() == 8


def test_what_outlives_its_rank_is_held_at_the_end_and_what_died_is_not():
    assert MEMORY.at(0, 1.0) == dict.fromkeys(CATEGORIES, 0) | {"parameter": 400, "gradient": 100}


def test_the_peak_has_a_rank_a_moment_a_phase_and_its_holdings():
    assert (MEMORY.peak_bytes(), MEMORY.peak_rank(), MEMORY.peak_at_s(), MEMORY.peak_phase()) == (
        2000, 0, 3e-3, "backward",
    )  # fmt: skip
    assert MEMORY.peak_bytes(1) == 50
    held = [(h.source, h.name, h.category, h.size_bytes, h.num_allocations) for h in MEMORY.allocations_at_peak()]
    assert held == [
        ("model.py:12: h = gelu(x)", "aten.gelu", "activation", 1500, 2),
        ("train.py:3: model = Model()", "aten.empty", "parameter", 400, 1),
        ("train.py:9: loss.backward()", "aten.mm", "gradient", 100, 1),
    ]


def test_the_peak_in_words():
    assert MEMORY.explain() == (
        "At its peak (3 ms, in backward) rank 0 held 2 kB: "
        "75% activation, made in model.py:12: h = gelu(x) (gelu, 2 allocations, 1.5 kB); "
        "20% parameter, made in train.py:3: model = Model() (empty, 400 B); "
        "5% gradient, made in train.py:9: loss.backward() (mm, 100 B)."
    )
    assert Memory((), 1).explain(0) == "Rank 0 allocated nothing that was counted."


def test_tables_by_rank_and_by_phase():
    table = MEMORY.table()
    assert list(table.columns) == ["peak_bytes", "peak_at_s", *CATEGORIES]
    assert table.loc[0].to_dict() == {"peak_bytes": 2000, "peak_at_s": 3e-3} | MEMORY.at_peak(0)
    assert list(table["other"]) == [0, 50]
    phases = MEMORY.by_phase(0)
    assert phases.loc["forward"].to_list() == [1900, 1900, 3] and phases.loc["backward"].to_list() == [2000, 100, 1]


def test_a_rank_that_needs_more_than_a_device_has_is_noted():
    device = find_cluster("dgx-h100").device
    assert MEMORY.notes(device) == []
    [note] = Memory([Allocation(r, "parameter", 95 * 10**9 + r, 0.0, 1.0) for r in range(3)], 4).notes(device)
    assert note.startswith(f"rank 2 (so do 2 more ranks) needs 95 GB at its peak, an {device.name} has 80 GB")


def test_a_rank_that_alone_needs_more_is_noted_alone():
    device = find_cluster("dgx-h100").device
    sizes = (int(device.memory_bytes), 10**12)
    held = [Allocation(rank, "parameter", size, 0.0, 1.0) for rank, size in enumerate(sizes)]
    [note] = Memory(held, 2).notes(device)
    assert note.startswith("rank 1 needs 1 TB at its peak")


def test_no_blocks_are_a_memory_too():
    for memory in (Memory(), Memory((), 3)):
        assert (memory.peak_bytes(), len(memory), memory.peak_at_s(), memory.allocations_at_peak()) == (0, 0, 0.0, [])
        assert len(memory.table()) == memory.num_ranks and len(memory.by_phase()) == 0
        assert memory.notes(find_cluster("laptop").device) == []


@given(allocations, st.integers(0, 12), st.integers(0, 12))
def test_columns_are_read_like_a_tuple_of_blocks(some, first, last):
    columns = Allocations.of(some)
    assert list(columns) == some and columns == tuple(some) and Allocations.of(columns) is columns
    assert list(columns[first:last]) == some[first:last]
    assert [columns[i] for i in range(-len(some), len(some))] == some * 2
    with pytest.raises(IndexError):
        columns[len(some)]


def test_the_blocks_of_a_rank_are_found_in_any_order():
    assert list(Allocations.of(STEP).of_rank(1)) == [STEP[4]]
    assert list(Allocations.of(STEP[::-1]).of_rank(0)) == STEP[3::-1]
    assert Memory(STEP[::-1], 2).peak_bytes() == 2000


def test_a_category_that_nobody_knows_is_refused():
    with pytest.raises(ValueError, match="an allocation's category is one of parameter, .*: got 'weights'"):
        Memory([Allocation(0, "weights", 1, 0.0, 1.0)], 1)
