"""How many plans a second the planner predicts, on one core: one by one, as arrays, and a whole search.

python benchmarks/plan_speed.py [--repeats 5]

Plans are those of GPT-3 175B on 512 A100s, no two of them the same: splits, micro-batches, ZeRO, recomputation,
schedule; each round asks for another global batch. Of each the step time and the peak memory are read. Seconds are the
processor's, so that other work on the machine does not count.
"""

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from lablib.plan import Parallel, predict, predict_many, search

MODEL, CLUSTER, NODES, BATCH = "gpt3-175b", "dgx-a100", 64, 1536
LLM_ANALYSIS, CALCULON = 3450, 106  # configurations a second, as measured when this project was planned


def configurations(batch: int) -> list[dict[str, Any]]:
    """Every possible plan of a search, in an order of chance, as arguments of `predict`."""
    found = search(MODEL, CLUSTER, batch, nodes=NODES, schedule=["1f1b", "interleaved", "zb-h1"]).plans
    plans = [found.arguments(int(i)) for i in np.flatnonzero(found.is_possible)]
    random.Random(batch).shuffle(plans)
    return plans


def seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def one_by_one_per_s(batch: int, count: int = 4000) -> float:
    plans = configurations(batch)[:count]

    def ask() -> None:
        for plan in plans:
            found = predict(**plan)
            assert found.step_time_s > 0 and found.peak_memory_bytes > 0

    return len(plans) / seconds(ask)


def first_per_s(count: int = 1000) -> float:
    """The same in a process that has predicted nothing yet."""
    axes = [(t, p, m, z) for t in (1, 2, 4, 8) for p in (1, 2, 4, 8, 16, 32) for m in (1, 2, 4) for z in (0, 1, 3)]
    plans = [(Parallel(512 // (t * p), t, p, zero_stage=z), m, r) for t, p, m, z in axes for r in ("none", "full")]
    plans = [(split, m, r) for split, m, r in plans if BATCH % (split.data * m) == 0][:count]

    def ask() -> None:
        for split, micro_batch, recompute in plans:
            assert predict(MODEL, CLUSTER, split, BATCH, micro_batch=micro_batch, recompute=recompute).peak_memory_bytes

    return len(plans) / seconds(ask)


def as_arrays_per_s(round_: int) -> tuple[int, float]:
    """100,000 plans of one kind: every split and micro-batch, with some hundred global batches."""
    tensor, pipeline, context, micro = (
        each.ravel()
        for each in np.meshgrid([1, 2, 4, 8], [1, 2, 4, 8, 16, 32, 64], [1, 2], [1, 2, 4, 8, 16], indexing="ij")
    )
    keep = tensor * pipeline * context <= 512
    count = -(-100_000 // keep.sum())
    tensor, pipeline, context, micro = (np.tile(each[keep], count) for each in (tensor, pipeline, context, micro))
    batch = 512 * 16 * np.repeat(np.arange(1, count + 1) + count * round_, keep.sum())
    columns = {"tensor": tensor, "pipeline": pipeline, "context": context, "micro_batch": micro, "batch": batch}
    data = 512 // (tensor * pipeline * context)

    def ask() -> None:
        found = predict_many(MODEL, CLUSTER, data=data, **columns, zero_stage=1, recompute="full")
        assert found.is_possible.all()

    return len(tensor), len(tensor) / seconds(ask)


def growth(repeats: int) -> float:
    """Seconds of a prediction of 65,536 micro-batches over those of one of 16, medians."""

    def of(num_microbatches: int) -> float:
        split = Parallel(8, 8, 8)
        batch = 8 * num_microbatches
        return statistics.median(
            seconds(lambda: [predict(MODEL, CLUSTER, split, batch, recompute="full") for _ in range(200)])
            for _ in range(repeats)
        )

    return of(65536) / of(16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # one core
    first = first_per_s()
    print(f"predict, the first plans of a process: {first:,.0f} a second")
    one = statistics.median(one_by_one_per_s(BATCH * (1 + k)) for k in range(repeats))
    print(f"predict: {one:,.0f} a second; llm-analysis {LLM_ANALYSIS:,}, Calculon {CALCULON}")
    print(f"    {one / LLM_ANALYSIS:.1f} times llm-analysis, {one / CALCULON:.0f} times Calculon")
    rounds = [as_arrays_per_s(k) for k in range(repeats)]
    many = statistics.median(rate for _, rate in rounds)
    print(f"predict_many, {rounds[0][0]:,} plans: {many:,.0f} a second, {many / one:.0f} times predict")
    tried = len(search(MODEL, CLUSTER, BATCH, nodes=NODES).plans)
    search_s = statistics.median(
        seconds(lambda: search(MODEL, CLUSTER, BATCH, nodes=NODES).best) for _ in range(repeats)
    )
    print(f"search, {tried:,} plans of {MODEL} on {NODES} nodes of {CLUSTER}: {search_s:.2f} s")
    ratio = growth(repeats)
    print(f"predict with 65,536 micro-batches: {ratio:.2f} times as long as with 16")
    print(
        f"predict {one:,.0f}/s (target 3,500), predict_many {many:,.0f}/s (200,000), search {search_s:.2f} s (10 s), "
        f"65,536 micro-batches {ratio:.2f} times 16 (1)"
    )


if __name__ == "__main__":
    main()
