"""Actions a second of a replay, and what many micro-batches cost by it and by the steady state.

python benchmarks/replay_speed.py [--stages 16] [--micro-batches 512] [--repeats 7]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from lablib.pipeline import Costs, replay
from lablib.pipeline.closed_form import StageTime, makespan_s
from lablib.pipeline.schedules import make
from lablib.pipeline.steady_state import steady_state

SCHEDULES = {"1f1b": 1, "interleaved": 4, "breadth-first": 4, "zb-h1": 1, "zb-v": 2}  # and chunks


def median_s(run: Callable[[], Any], repeats: int) -> float:
    """Processor seconds, the median of several runs after the first."""
    passes = []
    for _ in range(repeats + 1):
        began = time.process_time()
        run()
        passes.append(time.process_time() - began)
    return statistics.median(passes[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, default=16)
    parser.add_argument("--micro-batches", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    costs, rates = Costs(forward_s=1.0, backward_s=2.0, send_s=0.05), {}
    for name, chunks in SCHEDULES.items():
        plan = make(name, args.stages, args.micro_batches, chunks)
        rates[name] = plan.num_actions / median_s(partial(replay, plan, costs), args.repeats)
        print(f"{name:14} {plan.num_actions:8,} actions   {rates[name]:11,.0f} a second")
    for count in (args.micro_batches, 100 * args.micro_batches, 10_000 * args.micro_batches):
        found = median_s(lambda: steady_state(partial(make, "1f1b", args.stages), count, costs), 3)  # noqa: B023
        print(f"steady state of 1f1b, {count:9,} micro-batches: {1e3 * found:5.0f} ms")
    stage = StageTime(1.0, 1.0, 1.0)
    formula_s = median_s(lambda: [makespan_s("1f1b", 16, 512, 1, stage, send_s=0.05) for _ in range(10_000)], 3)
    slowest = min(rates, key=lambda name: rates[name])
    print(
        f"replay of {args.stages} stages x {args.micro_batches} micro-batches: {rates[slowest]:,.0f} actions a second "
        f"({slowest}) to {max(rates.values()):,.0f}; formula {formula_s * 100:.1f} us   target: 500,000"
    )


if __name__ == "__main__":
    main()
