"""Checkpoint interval that loses the least time: Young's and Daly's formulas, the exact expectation, and a simulation.

A run computes for tau seconds, saves for delta seconds, and so on. A failure loses the work since the last checkpoint,
and the restart takes R seconds. Short intervals waste time in saves, long ones in lost work:

    overhead(tau)    delta / tau + (tau + delta) / (2 M)    approximately, without restarts
    Young            tau = sqrt(2 delta M)
    Daly             tau = sqrt(2 delta M) (1 + sqrt(delta / (2 M)) / 3 + delta / (18 M)) - delta   if delta < 2 M
                     tau = M                                                                        otherwise
    exact            T = M e^(R/M) (e^((tau + delta)/M) - 1) seconds for tau seconds of work

The exact expectation: failures arrive at the rate 1/M, also in saves and restarts, so an attempt of x seconds succeeds
with probability e^(-x/M), and x seconds without failure take M (e^(x/M) - 1) seconds on average. Its minimum solves
e^(-(tau + delta)/M) = 1 - tau/M, and Daly's formula is a series of that solution.

Legend: tau work between saves, delta a save that stops training (with an asynchronous save only the copy), M mean time
between failures of the whole run, R restart with loading, all in seconds.
Source: J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 1974, doi
10.1145/361147.361115; J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS
2006, doi 10.1016/j.future.2004.11.016 (expectation and interval).
Simplified: failures independent of each other and of age; a save takes the same time each time.
"""

import math
from dataclasses import dataclass
from random import Random

from lablib.signature import Checked, Count, NonNegative, Positive, checked

DAY_S = 86_400.0


@dataclass(frozen=True)
class FailureRate(Checked):
    """Failures that ended a run of `num_devices` within `days`."""

    num_failures: Count
    days: Positive
    num_devices: Count

    @checked
    def mean_time_s(self, num_devices: Count | None = None) -> float:
        """Mean time between failures of a run on `num_devices`; None: as many as observed."""
        share = (num_devices or self.num_devices) / self.num_devices
        return self.days * DAY_S / (self.num_failures * share)


# Llama Team, "The Llama 3 Herd of Models", 2024, arXiv 2407.21783, section 3.3.4 and table 5.
LLAMA3_FAILURES = FailureRate(num_failures=419, days=54, num_devices=16_384)


@checked
def young_interval_s(save_s: Positive, mean_time_s: Positive) -> float:
    """Young's interval tau between the end of a save and the beginning of the next."""
    return math.sqrt(2 * save_s * mean_time_s)


@checked
def daly_interval_s(save_s: Positive, mean_time_s: Positive) -> float:
    """Daly's interval tau, a series of the best one in save_s / mean_time_s."""
    if save_s >= 2 * mean_time_s:
        return mean_time_s
    ratio = save_s / (2 * mean_time_s)
    return young_interval_s(save_s, mean_time_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_s


@checked
def expected_overhead(
    interval_s: Positive, save_s: NonNegative, mean_time_s: Positive, restart_s: NonNegative = 0.0
) -> float:
    """Expected seconds lost per second of work: in saves, in work done twice, and in restarts.

    Infinity if an attempt practically never succeeds.
    """
    try:
        attempt = math.expm1((interval_s + save_s) / mean_time_s)
        return mean_time_s * math.exp(restart_s / mean_time_s) * attempt / interval_s - 1
    except OverflowError:
        return math.inf


@checked
def simulated_overhead(
    interval_s: Positive,
    save_s: NonNegative,
    mean_time_s: Positive,
    restart_s: NonNegative = 0.0,
    *,
    num_intervals: Count = 10_000,
    seed: int = 0,
) -> float:
    """The same from simulated failures, exponentially distributed, with the given number of intervals of work."""
    draw = Random(seed)
    now_s, done = 0.0, 0
    failure_s = draw.expovariate(1 / mean_time_s)
    needed_s = interval_s + save_s  # until the next checkpoint
    while done < num_intervals:
        if now_s + needed_s <= failure_s:
            now_s, done = now_s + needed_s, done + 1
            needed_s = interval_s + save_s
        else:
            now_s = failure_s
            failure_s += draw.expovariate(1 / mean_time_s)
            needed_s = restart_s + interval_s + save_s
    return now_s / (num_intervals * interval_s) - 1
