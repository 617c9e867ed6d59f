"""The table of collectives: what is said of one agrees with what its algorithms do."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.cost import GroupNetwork, collective_cost
from lablib.cost.collectives import CALLS, COLLECTIVES
from lablib.hardware import find_cluster
from lablib.hardware.cluster import LIBRARIES

NAMES = st.sampled_from(sorted(COLLECTIVES))


@given(NAMES, st.integers(1, 40), st.integers(0, 10**6))
def test_the_mean_of_what_must_be_sent_is_that_of_the_places(name, n, shard):
    row, size = COLLECTIVES[name], n * shard
    mean = Fraction(sum(Fraction(row.must_send(size, n, place)) for place in range(n)), n)
    assert float(mean) == pytest.approx(row.mean_sent(size, n), rel=1e-12)


@given(NAMES, st.integers(2, 24), st.integers(0, 10**6), st.data())
def test_no_algorithm_sends_less_in_all_than_must_be_sent(name, n, shard, data):
    """In all: which rank sends is the algorithm's choice."""
    net, size, root = GroupNetwork(find_cluster("dgx-h100"), range(n)), n * shard, data.draw(st.integers(0, n - 1))
    least = sum(COLLECTIVES[name].must_send(size, n, (rank - root) % n) for rank in range(n))
    for algorithm in COLLECTIVES[name].algorithms:
        if algorithm.fits(net):
            sent = sum(collective_cost(name, size, net, algorithm.name, root).sent_bytes)
            assert sent >= least * (1 - 1e-12)
            if algorithm.name in ("ring", "tree", "direct"):
                assert sent == pytest.approx(least, rel=1e-12)


def what_ranks_hold(name: str, n: int, shard: int, root: int) -> tuple[list[int], list[int], int]:
    """What each rank gives and wants by the definition of the collective, and the bytes of the whole."""
    whole = n * shard
    at_root = [whole if rank == root else 0 for rank in range(n)]
    match name:
        case "all_reduce" | "all_to_all":
            return [whole] * n, [whole] * n, whole
        case "broadcast" | "reduce":
            return [whole] * n, [0] * n, whole
        case "all_gather":
            return [shard] * n, [whole] * n, whole
        case "reduce_scatter":
            return [whole] * n, [shard] * n, whole
        case "gather":
            return [shard] * n, at_root, whole
        case "scatter":
            return at_root, [shard] * n, whole
    return [0] * n, [0] * n, 0


@given(NAMES, st.integers(1, 24), st.integers(0, 10**6), st.data())
def test_what_a_call_is_about_follows_from_all_its_ranks_or_from_some_of_them(name, n, shard, data):
    sent, received, whole = what_ranks_hold(name, n, shard, data.draw(st.integers(0, n - 1)))
    known = data.draw(st.lists(st.integers(0, n - 1), min_size=1, unique=True))
    payload = COLLECTIVES[name].payload
    assert payload(sent, received, n) == whole
    assert payload([sent[i] for i in known], [received[i] for i in known], n) == pytest.approx(whole, rel=1e-12)


def test_every_call_is_of_one_collective_and_every_library_is_known():
    assert CALLS["all_gather_into_tensor"] == ("all_gather", ("dtype", "shape"))
    assert len(CALLS) == sum(len(row.calls) for row in COLLECTIVES.values())
    assert {library for row in COLLECTIVES.values() for library in row.libraries} == set(LIBRARIES) - {""}


def test_names_of_a_rows_algorithms_are_distinct_and_rails_are_flat():
    for row in COLLECTIVES.values():
        names = [each.name for each in row.algorithms + row.in_the_switch]
        assert len(set(names)) == len(names)
        for each in row.algorithms + row.in_the_switch:
            assert not any(flat.across for flat in each.across) and bool(each.across) == (each.name in TWO_LEVELS)


TWO_LEVELS = ("hierarchical", "nvls-tree")
