"""Seconds from a moved control of the placement calculator to what is sent to the browser, in processor time.

python benchmarks/placement_speed.py [--repeats 7]
"""

import argparse
import statistics
import time

from lablib.parallel import Mesh
from lablib.studies import placements
from lablib.widgets import placement_calculator
from lablib.widgets.explorer import Explorer

MOVES = {
    "order": ("tensor, pipeline, data", "pipeline, tensor, data", "data, tensor, pipeline"),
    "network": ("torus", "dragonfly", "RoCE at 15 us"),
    "data": (2, 4, 8),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    for data in (1, 4, 8):
        shown = placement_calculator()
        assert isinstance(shown, Explorer)
        shown.controls["data"].value = data  # pyright: ignore[reportAttributeAccessIssue]
        for name, values in MOVES.items():
            spent = []
            for turn in range(args.repeats + len(values)):
                began = time.process_time()
                shown.controls[name].value = values[turn % len(values)]  # pyright: ignore[reportAttributeAccessIssue]
                spent.append(time.process_time() - began)
            first, again = spent[: len(values)], spent[len(values) :]
            slowest, usual = 1000 * max(first), 1000 * statistics.median(again)
            print(f"{16 * data} ranks, {name}: first {slowest:.0f} ms, again {usual:.0f} ms")
    began = time.process_time()
    found = placements("mixtral-8x7b", Mesh(data=2, pipeline=2, expert=4, tensor=4), "dgx-h100", 64, zero_stage=1)
    print(f"all {len(found)} orders of four axes, 64 ranks: {time.process_time() - began:.2f} s")


if __name__ == "__main__":
    main()
