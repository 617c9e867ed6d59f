"""What gloo does instead of the fastest algorithm: closed forms, counted from its source."""

from math import ceil, log2

import pytest

from lablib.cost import GroupNetwork, collective_cost
from lablib.hardware import Cluster, Link
from lablib.hardware.device import FREE

ALPHA, BETA, OVERHEAD = 3e-4, 1e-9, 1e-3


def network(n: int, library: str = "gloo") -> GroupNetwork:
    link = Link("loopback", ALPHA, 1 / BETA)
    cluster = Cluster("cpu", FREE, 64, link, link, collective_overhead_s=OVERHEAD, library=library)
    return GroupNetwork(cluster, range(n))


@pytest.mark.parametrize("n", [2, 3, 4, 7, 16])
@pytest.mark.parametrize("size", [0, 8, 4_000_000])
def test_each_of_gloos_collectives_takes_its_messages(n, size):
    segment_s = ALPHA + size / (2 * n) * BETA
    expected = {
        "all_reduce": 4 * (n - 1) * segment_s,
        "reduce_scatter": 4 * (n - 1) * segment_s,
        "all_gather": 2 * (n - 1) * segment_s,
        "broadcast": ceil(log2(n)) * (ALPHA + size * BETA),
        "barrier": ceil(log2(n)) * ALPHA,
    }
    for name, seconds in expected.items():
        size_bytes = 0 if name == "barrier" else size
        cost = collective_cost(name, size_bytes, network(n))
        assert cost.time_s == pytest.approx(OVERHEAD + seconds, rel=1e-12), name
        assert cost.latency_s == pytest.approx(cost.time_s - cost.transfer_s)


def test_segments_send_the_same_bytes_as_the_ring_but_a_reduce_scatter_those_of_an_all_reduce():
    size, n = 8e6, 4
    assert collective_cost("all_reduce", size, network(n)).sent_bytes == (2 * (n - 1) / n * size,) * n
    assert collective_cost("all_gather", size, network(n)).sent_bytes == ((n - 1) / n * size,) * n
    assert collective_cost("reduce_scatter", size, network(n)).sent_bytes == (2 * (n - 1) / n * size,) * n


def test_an_algorithm_asked_for_by_name_is_given_whatever_the_library():
    own, free = (collective_cost("all_reduce", 8, network(4, library), "tree") for library in ("gloo", ""))
    assert own == free and own.algorithm == "tree"


def test_without_a_library_the_fastest_is_taken():
    assert collective_cost("all_reduce", 8, network(8, "")).algorithm == "tree"
    assert collective_cost("all_reduce", 8, network(8)).algorithm == "segmented ring"


def test_one_rank_talks_to_nobody():
    assert collective_cost("all_reduce", 8e6, network(1)).time_s == 0.0
