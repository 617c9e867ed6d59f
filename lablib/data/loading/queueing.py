"""Waiting time of a device for batches, in closed form: loader and device as a queue with a bounded buffer.

Turn it round: every batch that the device takes is an order to load another one. Orders arrive when the device ends
steps, 1 / S a second; k workers serve them, each 1 / L a second; at most K = k P + 1 are open (the last belongs to the
batch in the device). When all K are open nothing is loaded, and the device waits. If both times are exponential this
is the queue M/M/k/K, and with a = L / S

    open orders n      p_n = p_0 a^n / n!                      n <= k
                       p_n = p_0 (a^k / k!) (a / k)^(n - k)    k < n <= K
    idle share         p_K                                     all orders are open
    k = 1              p_K = (1 - r) / (1 - r^(K + 1)), r = S / L;   1 / (K + 1) if r = 1

    constant times     idle share 1 - S / max(S, L / k) for any prefetch (D/D)
    any times          at least the share of their means: 1 - S / max(S, L / k)

So jitter costs even a loader that is fast enough, and prefetch buys that back: with L = S as 1 / (P + 2), with L < S
exponentially, r^-(P + 1).

Cost: O(k P) for the shares.
Source: L. Kleinrock, "Queueing Systems", volume 1, 1975, chapter 3 (M/M/1/K and M/M/m/K from birth and death rates);
jobs and holes reversed: W. Gordon and G. Newell, "Cyclic Queuing Systems with Restricted Length Queues", 1967.
Simplified: exponential times jitter more than most loaders' (deviation = mean); workers share their orders, and workers
that take turns, as torch's, wait more.
"""

import math

from lablib.signature import Count, Positive, checked


@checked
def open_orders(load_s: Positive, step_s: Positive, workers: Count = 1, prefetch: Count = 2) -> list[float]:
    """The probability of n = 0 ... K open orders, with exponential times of means L and S, k workers, P orders each."""
    # Logarithms: a^n of a slow loader is more than a float can hold.
    ratio, weights = math.log(load_s) - math.log(step_s), [0.0]
    for number in range(1, workers * prefetch + 2):
        weights.append(weights[-1] + ratio - math.log(min(number, workers)))
    top = max(weights)
    shares = [math.exp(weight - top) for weight in weights]
    return [share / math.fsum(shares) for share in shares]


@checked
def idle_share_exponential(load_s: Positive, step_s: Positive, workers: Count = 1, prefetch: Count = 2) -> float:
    """Part of the time in which the device waits for a batch, in [0, 1]: M/M/k/K. Arguments as `open_orders`."""
    return open_orders(load_s, step_s, workers, prefetch)[-1]


@checked
def idle_share_constant(load_s: Positive, step_s: Positive, workers: Count = 1) -> float:
    """The same if every load takes L and every step S seconds; also the least for any times with these means."""
    return 1 - step_s / max(step_s, load_s / workers)
