"""Cores that ranks share, in exact fractions of a second: closed forms, the gaps, and the bounds of list scheduling."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.engine.cores import Cores

# Any number does for a second: here fractions, so that equal means equal.
F: Any = Fraction
WORK = st.lists(st.integers(1, 20), min_size=1, max_size=30)


def test_work_goes_on_in_the_gaps_of_the_core_on_which_it_is_done_first():
    cores = Cores(2)
    assert cores.work(0, 6) == 6  # core 0
    assert cores.work(0, 4) == 4  # core 1
    assert cores.work(8, 3) == 11  # core 0 again
    assert cores.work(6, 3) == 9  # core 1: free since 4
    assert cores.work(5, 4) == 12  # core 0 from 6 to 8 and from 11 to 13, or core 1 from 5 to 6 and from 9 to 12


def test_what_has_a_core_to_itself_does_not_wait():
    cores = Cores(2)
    cores.work(0, 10)
    assert [cores.work(F(start), F(1, 3)) for start in (1, 5)] == [F(4, 3), F(16, 3)]


def test_no_work_is_done_at_once_and_takes_no_core():
    cores = Cores(1)
    cores.work(0, 10)
    assert cores.work(3, 0) == 3
    assert cores.work(0, 1) == 11


def test_processes_that_work_together_take_a_core_each_while_there_are_some():
    assert Cores(4).work_together(0, 3, processes=2) == 3
    cores = Cores(2)
    assert cores.work_together(0, 3, processes=8) == 3  # measured with all of them: they share these cores already
    assert cores.work(0, 1) == 4


def test_messages_of_all_ranks_at_once_take_what_one_was_measured_to_take_then():
    cores = Cores(2, ranks=4)
    assert [cores.message(0, 6) for _ in range(4)] == [6] * 4
    assert cores.message(0, 6) == 9  # a fifth has no core before
    assert Cores(4, ranks=2).message(0, 6) == 6


@given(works=WORK, count=st.integers(1, 4))
def test_ready_work_is_done_within_the_bounds_of_list_scheduling(works, count):
    cores = Cores(count)
    last = max(cores.work(0, F(work)) for work in works)
    assert max(F(sum(works), count), max(works)) <= last <= F(sum(works), count) + max(works)


@given(
    tasks=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), min_size=1, max_size=30), count=st.integers(1, 3)
)
def test_no_core_does_two_things_at_once_and_none_is_idle_while_work_waits(tasks, count):
    cores = Cores(count)
    done = [(start, work, cores.work(start, work)) for start, work in tasks]
    assert all(end >= start + work for start, work, end in done)
    horizon = max(end for *_, end in done)
    busy = sum(end - start for core in cores._cores for start, end in zip(core._starts, core._ends, strict=True))
    assert busy == sum(work for _, work, _ in done) <= count * horizon
    for core in cores._cores:
        assert all(end < start for end, start in zip(core._ends, core._starts[1:], strict=False))
    for start, work, end in done:
        if end > start + work:  # it waited: each core was busy at some time since
            assert all(
                any(s < end and e > start for s, e in zip(c._starts, c._ends, strict=True)) for c in cores._cores
            )


def test_a_node_without_cores_is_refused():
    with pytest.raises(ValueError, match="1 core or more: got 0"):
        Cores(0)
