"""Reads of shards in an object store: latency per request, and requests in flight that hide it.

Object storage keeps data sets that no disk holds, behind a network: a request (GET of an object, or of a range of its
bytes) waits l seconds for its first byte, then gets at most b bytes per second; all requests of a machine together get
at most the B of its link. With k in flight and requests of s bytes:

    one request             l + s / b             half of it is waiting where s = l b: 13 MB at 150 ms and 85 MB/s
    n, fixed latency        waves of k, each l + s / min(b, B / k); the last wave has the rest
    n, random latency       X = sum_j p_j min(j b, B) / s requests a second, with j of k transferring, k - j waiting:
                            p_j ~ l^(k-j) / (k-j)!  prod_(i=1..j) s / min(i b, B)
    to fill the link        k = B (l / s + 1 / b)         (Little's law)

With a fixed latency all requests of a wave wait together and the link idles; with random ones waits and transfers
overlap. Small records by range reads wait l each: training reads whole shards in order, without random access.

Cost: O(k). tests/data/test_object_store.py has the waves of a fixed latency, and a simulation of both.
Source: F. Baskett, K. Chandy, R. Muntz, F. Palacios, "Open, closed, and mixed networks of queues with different classes
of customers", JACM 1975 (product form of waiting and shared stations, for any distribution). Figures of `S3_10_GBIT`:
AWS, Amazon S3 User Guide (its source: github.com/awsdocs/amazon-s3-userguide, doc_source/optimizing-performance*.md):
first byte after roughly 100 to 200 ms ("Best practices design patterns"; below 512 kB "often in the tens of
milliseconds", "Timeouts and Retries"); 85 to 90 MB/s a request, about 15 of them for 10 Gb/s, ranges of 8 to 16 MB
("Horizontal Scaling and Request Parallelization").
Simplified: no errors, retries or limit on requests a second (S3: 5,500 a prefix); latency does not grow with load.
"""

import math
from dataclasses import dataclass
from typing import Annotated

from lablib.signature import Checked, Count, NonNegative, Positive, checked

BytesPerSecond = Annotated[Positive, "for transfers that take no time give a large rate, 1e15"]


@dataclass(frozen=True, slots=True)
class ObjectStore(Checked):
    """An object store and the link of one machine."""

    latency_s: NonNegative  # mean seconds l to a request's first byte
    request_bytes_per_s: BytesPerSecond  # rate b of one request
    link_bytes_per_s: BytesPerSecond  # rate B of all together
    max_in_flight: Count = 1024  # requests that the store or the client allows at once

    def rate(self, num_transfers: int) -> float:
        """Bytes per second of `num_transfers` together."""
        return min(num_transfers * self.request_bytes_per_s, self.link_bytes_per_s)

    @checked
    def in_flight(self, wanted: Count) -> int:
        """Requests in flight when so many are wanted."""
        return min(wanted, self.max_in_flight)


S3_10_GBIT = ObjectStore(latency_s=0.15, request_bytes_per_s=85e6, link_bytes_per_s=1.25e9)


@checked
def requests_per_second(store: ObjectStore, request_bytes: Count, in_flight: Count) -> float:
    """Equal requests per second in the long run, latency random with the store's mean: product form."""
    k = store.in_flight(in_flight)
    if not store.latency_s:
        return store.rate(k) / request_bytes
    # Logarithms of the weights: factorials of a thousand requests are more than a float can hold.
    logs = [k * math.log(store.latency_s) - math.lgamma(k + 1)]
    for j in range(1, k + 1):
        waiting = math.log(k - j + 1) - math.log(store.latency_s)
        logs.append(logs[-1] + waiting + math.log(request_bytes / store.rate(j)))
    weights = [math.exp(log - max(logs)) for log in logs]
    busy = math.fsum(weight * store.rate(j) for j, weight in enumerate(weights))
    return busy / math.fsum(weights) / request_bytes


@checked
def in_flight_to_fill(store: ObjectStore, request_bytes: Count) -> int:
    """The fewest requests in flight that fill the link: B (l / s + 1 / b), rounded up."""
    exact = store.link_bytes_per_s * (store.latency_s / request_bytes + 1 / store.request_bytes_per_s)
    return max(1, math.ceil(exact - 1e-9))
