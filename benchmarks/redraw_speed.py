"""Seconds from a slider's move to the new figure, as a learner waits for them.

    python benchmarks/redraw_speed.py [--repeats 12]

The memory calculator's `micro_batch` is moved for a model of 12 layers and one of 96. Printed are medians of the
processor's seconds: where others use the machine as well, they say more than the clock. The first move, which imports
and caches, is left out.
"""

import argparse
import statistics
import time

from lablib.widgets import memory_calculator

MODELS = ("gpt2", "gpt3-175b")


def redraw_s(model: str, repeats: int) -> list[float]:
    """Processor seconds of each move."""
    slider = memory_calculator(model=model).controls["micro_batch"]
    seconds = []
    for value in range(2, repeats + 3):
        started = time.process_time()
        slider.value = value
        seconds.append(time.process_time() - started)
    return seconds[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=12)
    repeats = parser.parse_args().repeats
    for model in MODELS:
        print(f"{model:12} {statistics.median(redraw_s(model, repeats)) * 1e3:6.0f} ms")


if __name__ == "__main__":
    main()
