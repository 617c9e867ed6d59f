"""The simulated store takes the time of its closed forms, and those say what is published of one."""

import math
import random
from heapq import heappop, heappush
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.data.object_store import S3_10_GBIT, ObjectStore, in_flight_to_fill, requests_per_second

STORES = st.builds(
    ObjectStore,
    latency_s=st.floats(0, 1),
    request_bytes_per_s=st.floats(10, 1e3),
    link_bytes_per_s=st.floats(10, 1e4),
    max_in_flight=st.integers(1, 12),
)


class Request(NamedTuple):
    """Times of a simulated request in seconds."""

    start_s: float
    first_byte_s: float
    end_s: float


def read_seconds(store: ObjectStore, num_requests: int, request_bytes: int, in_flight: int) -> float:
    """Seconds of equal requests at a fixed latency: waves, the last one with the rest."""
    waves, rest = divmod(num_requests, k := store.in_flight(in_flight))
    sizes = [k] * waves + [rest] * (rest > 0)
    return sum(store.latency_s + num * request_bytes / store.rate(num) for num in sizes)


def simulate_reads(
    store: ObjectStore, sizes_bytes: list[int], in_flight: int = 1, latency: str = "fixed", seed: int = 0
) -> list[Request]:
    """Requests in order, the next begun when one ends: event by event. Transfers share the link equally."""
    rng, begun, now, most = random.Random(seed), 0, 0.0, store.in_flight(in_flight)
    waiting: list[tuple[float, int]] = []  # (second of the first byte, request)
    transfers: list[tuple[float, int]] = []  # (bytes of each transfer when this one ends, request)
    got = 0.0  # bytes of a transfer that began at 0 s
    starts, firsts, ends = ([0.0] * len(sizes_bytes) for _ in range(3))
    while begun < len(sizes_bytes) or waiting or transfers:
        while begun < len(sizes_bytes) and len(waiting) + len(transfers) < most:
            wait_s = rng.expovariate(1 / store.latency_s) if latency == "exponential" and store.latency_s else None
            heappush(waiting, (now + (store.latency_s if wait_s is None else wait_s), begun))
            starts[begun] = now
            begun += 1
        each = store.rate(len(transfers)) / len(transfers) if transfers else 0.0
        next_end = now + (transfers[0][0] - got) / each if transfers else math.inf
        next_first = waiting[0][0] if waiting else math.inf
        if next_first <= next_end:
            got += each * (next_first - now)
            now, request = heappop(waiting)
            firsts[request] = now
            heappush(transfers, (got + sizes_bytes[request], request))
        else:
            now = next_end
            got, request = heappop(transfers)
            ends[request] = now
    return [Request(*times) for times in zip(starts, firsts, ends, strict=True)]


@given(store=STORES, num=st.integers(0, 40), size=st.integers(1, 2_000), in_flight=st.integers(1, 16))
def test_the_simulation_at_fixed_latency_is_the_closed_form(store, num, size, in_flight):
    requests = simulate_reads(store, [size] * num, in_flight)
    assert max((one.end_s for one in requests), default=0) == pytest.approx(
        read_seconds(store, num, size, in_flight), rel=1e-6
    )


@given(
    store=STORES,
    sizes=st.lists(st.integers(1, 2_000), min_size=1, max_size=30),
    in_flight=st.integers(1, 16),
    latency=st.sampled_from(["fixed", "exponential"]),
    seed=st.integers(0, 9),
)
def test_no_rate_and_no_limit_is_exceeded(store, sizes, in_flight, latency, seed):
    requests = simulate_reads(store, sizes, in_flight, latency, seed)
    assert requests == simulate_reads(store, sizes, in_flight, latency, seed)
    total = max(one.end_s for one in requests)
    assert total * store.link_bytes_per_s >= sum(sizes) * (1 - 1e-9)
    for one, size in zip(requests, sizes, strict=True):
        assert one.start_s <= one.first_byte_s <= one.end_s
        assert (one.end_s - one.first_byte_s) * store.request_bytes_per_s >= size * (1 - 1e-6)
        if latency == "fixed":
            assert one.first_byte_s - one.start_s == pytest.approx(store.latency_s)
        # In flight at the moment it begins, itself among them; those that end then are over.
        others = sum(other.start_s <= one.start_s < other.end_s - 1e-9 for other in requests)
        assert others <= min(in_flight, store.max_in_flight)
    starts = [one.start_s for one in requests]
    assert starts == sorted(starts)


@pytest.mark.parametrize("in_flight", [1, 4, 15, 40])
@pytest.mark.parametrize("size", [100_000, 8_000_000, 100_000_000])
def test_random_latency_gives_the_product_form(in_flight, size):
    # 20,000 requests in order; the sum of their latencies deviates by 1 / sqrt(20,000) = 0.7%: four of these.
    num = 20_000
    requests = simulate_reads(S3_10_GBIT, [size] * num, in_flight, "exponential", seed=1)
    rate = num / max(one.end_s for one in requests)
    assert rate == pytest.approx(requests_per_second(S3_10_GBIT, size, in_flight), rel=0.03)


@given(store=STORES, size=st.integers(1, 2_000), in_flight=st.integers(1, 16))
def test_the_product_form_keeps_its_bounds(store, size, in_flight):
    rate = requests_per_second(store, size, in_flight)
    k = min(in_flight, store.max_in_flight)
    alone = store.latency_s + size / store.rate(1)
    assert rate <= min(k / alone, store.link_bytes_per_s / size) * (1 + 1e-9)
    # Fixed latency is the worst: all wait together.
    assert rate >= k / read_seconds(store, k, size, k) * (1 - 1e-9)
    if k == 1:
        assert rate == pytest.approx(1 / alone)


def test_figures_of_the_guide_follow():
    # AWS: one request for each 85 to 90 MB/s, about 15 to saturate 10 Gb/s: without latency, or for large objects.
    assert in_flight_to_fill(S3_10_GBIT, 10**12) == 15
    assert in_flight_to_fill(ObjectStore(0.0, 85e6, 1.25e9), 8_000_000) == 15
    # With 150 ms for ranges of 8 MB, waiting takes 23.4 more: 1.25e9 x 0.15 / 8e6.
    assert in_flight_to_fill(S3_10_GBIT, 8_000_000) == math.ceil(1.25e9 / 85e6 + 23.4375) == 39
    assert S3_10_GBIT.latency_s * S3_10_GBIT.request_bytes_per_s == 12_750_000
