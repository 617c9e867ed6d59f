"""Seconds from a moved control of the bubble simulator to what is sent to the browser, in processor time.

python benchmarks/bubble_simulator_speed.py [--repeats 7]
"""

import argparse
import statistics
import time

from lablib.widgets import bubble_simulator
from lablib.widgets.explorer import Explorer

SIZES = ((8, 32), (16, 512))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    for stages, microbatches in SIZES:
        shown = bubble_simulator(stages=stages, microbatches=microbatches)
        assert isinstance(shown, Explorer)
        for name, values in (("send_percent", (10, 20)), ("moment", (10, 11))):
            spent = []
            for turn in range(args.repeats + 1):
                began = time.process_time()
                shown.controls[name].value = values[turn % 2]  # pyright: ignore[reportAttributeAccessIssue]
                spent.append(time.process_time() - began)
            print(f"{stages} x {microbatches}, {name}: {1000 * statistics.median(spent[1:]):.0f} ms")


if __name__ == "__main__":
    main()
