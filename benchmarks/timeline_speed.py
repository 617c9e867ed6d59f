"""Seconds that a large timeline takes: to ask, to draw, to write for Perfetto.

    python benchmarks/timeline_speed.py [--spans 200000] [--ranks 64] [--repeats 3]

The spans are made up: on each rank forward, recompute, backward and optimizer alternate, with a collective of all
ranks after every 50 operations. Each question is asked of a fresh timeline, so that none profits from what another has
computed. Printed are medians of the host's seconds and of the processor's: where others use the machine as well, the
latter say more.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from lablib.figures import figure_timeline
from lablib.run import COMPUTE, Span, Timeline

PHASES = ("forward", "forward", "recompute", "backward", "backward", "optimizer")
LINE = "train.py:12: loss.backward()"


def spans_of(num_spans: int, num_ranks: int) -> tuple[Span, ...]:
    """Ranks of equal work: 50 operations of 1 to 5 microseconds, then a collective that the next ones hide."""
    a_rank = num_spans // num_ranks
    spans = []
    for rank in range(num_ranks):
        now_s = free_s = 0.0
        for index in range(a_rank):
            phase = PHASES[index // 200 % len(PHASES)]
            if index % 51 == 50:
                start_s = max(now_s, free_s)
                free_s = start_s + 80e-6
                spans.append(
                    Span(rank, "comm:world", "all_reduce", phase, start_s, free_s, 0.0, 25e6, "bfloat16", LINE)
                )
                continue
            end_s = now_s + (1 + index % 5) * 1e-6
            spans.append(Span(rank, COMPUTE, "aten.mm", phase, now_s, end_s, 2e9, 1e6, "bfloat16", LINE))
            now_s = end_s + (0.5e-6 if index % 7 == 0 else 0.0)
    return tuple(spans)


def medians_s(
    question: Callable[[Timeline], object], spans: tuple[Span, ...], ranks: int, repeats: int
) -> tuple[float, float]:
    """Median host and processor seconds of one question, each time to a new timeline of the same spans."""
    host, processor = [], []
    for _ in range(repeats):
        timeline = Timeline.of(spans, ranks)
        began, began_cpu = time.perf_counter(), time.process_time()
        question(timeline)
        host.append(time.perf_counter() - began)
        processor.append(time.process_time() - began_cpu)
    return statistics.median(host), statistics.median(processor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spans", type=int, default=200_000)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    spans = spans_of(args.spans, args.ranks)
    figure_timeline(Timeline.of(spans[:100], args.ranks))  # imports
    print(f"{len(spans):,} spans on {args.ranks} ranks, host and processor seconds, median of {args.repeats}")
    middle_s = Timeline.of(spans, args.ranks).makespan_s / 2
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        rows: list[tuple[str, Callable[[Timeline], object], str]] = [
            ("states of every rank", lambda t: [t.states(r) for r in range(t.num_ranks)], ""),
            ("busy_s of every rank", lambda t: [t.busy_s(r) for r in range(t.num_ranks)], ""),
            ("exposed_s of every rank", lambda t: [t.exposed_s(r) for r in range(t.num_ranks)], ""),
            ("select of every rank", lambda t: [t.select(r, COMPUTE) for r in range(t.num_ranks)], ""),
            ("figure_timeline, ranks chosen for you", figure_timeline, "2 s"),
            ("figure_timeline, every rank", lambda t: figure_timeline(t, ranks=range(t.num_ranks)), "2 s"),
            ("figure of between(...), a tenth", lambda t: figure_timeline(t.between(middle_s, 1.2 * middle_s)), "2 s"),
            ("to_perfetto", lambda t: t.to_perfetto(path), "5 s"),
        ]
        for label, question, target in rows:
            host_s, processor_s = medians_s(question, spans, args.ranks, args.repeats)
            print(f"  {label:38} {host_s:7.3f} {processor_s:7.3f} s" + (f"   target: under {target}" if target else ""))
        print(f"  the Perfetto file has {path.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
