"""What the clock and the memory tracker cost the host: microseconds for each operator, beyond the untimed run.

    python benchmarks/clock_overhead.py [--rounds 7] [--steps 3]

One training step of a small GPT (forward, backward, AdamW) on one simulated rank, with `trace=False` and with the
clock, in turn and in one process; the step is small, so that operators are quick and what is added to them is seen. It
counts the processor seconds of the program's own thread: not the launch, and not what else the machine does. The split
leaves parts of the clock out and takes differences of medians.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from lablib import launch
from lablib.models import GPT, GPTConfig
from lablib.sim.lines import Lines
from lablib.sim.memory.memory_tracker import MemoryTracker

TARGET_US = 25.0
CONFIG = GPTConfig(num_layers=4, d_model=32, num_heads=2, vocab_size=64, max_seq_len=16)


def make_step() -> Callable[[], None]:
    model = GPT(CONFIG)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    tokens = torch.randint(0, CONFIG.vocab_size, (2, CONFIG.max_seq_len + 1))

    def step() -> None:
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()

    return step


def timed(num_steps: int) -> float:
    """Processor seconds of some steps, after two that nobody counts."""
    step = make_step()
    for _ in range(2):
        step()
    began = time.thread_time()
    for _ in range(num_steps):
        step()
    return time.thread_time() - began


class Counter(TorchDispatchMode):
    """Counts operators."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def num_operators() -> int:
    step = make_step()
    step()
    with Counter() as counter:
        step()
    return counter.count


@contextmanager
def without(*parts: str) -> Iterator[None]:
    """The clock without the memory tracker, or without lines of the program."""
    tracker = patch.object(MemoryTracker, "saw", lambda *_: None)
    lines = patch.object(Lines, "here", lambda *_: "")
    with tracker if "tracker" in parts else patch.object(MemoryTracker, "saw", MemoryTracker.saw):
        with lines if "lines" in parts else patch.object(Lines, "here", Lines.here):
            yield


VARIANTS = {
    "trace=False": (False, ()),
    "clock, memory tracker and lines": (True, ()),
    "clock and memory tracker": (True, ("lines",)),
    "clock and lines": (True, ("tracker",)),
    "clock": (True, ("tracker", "lines")),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    count = num_operators()
    seconds: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for _ in range(args.rounds):
        for name, (trace, parts) in VARIANTS.items():
            with without(*parts):
                seconds[name].append(launch(timed, args.steps, ranks=1, trace=trace).values[0])
    each_us = {name: statistics.median(took) / (count * args.steps) * 1e6 for name, took in seconds.items()}
    print(f"{count} operators a step, {args.steps} steps, median of {args.rounds} rounds; us for each operator")
    for name, us in each_us.items():
        print(f"  {name:24} {us:6.1f}   added {us - each_us['trace=False']:6.1f}")
    whole, plain = each_us["clock, memory tracker and lines"], each_us["trace=False"]
    tracker, lines = (whole - each_us[name] for name in ("clock and lines", "clock and memory tracker"))
    print(f"the memory tracker adds {tracker:.1f}, the lines {lines:.1f}")
    print(f"added in all: {whole - plain:.1f} us for each operator   target: {TARGET_US:.0f}")


if __name__ == "__main__":
    main()
