"""The staircase of a matrix product on a GPU beside the cost model's: seconds and useful share for each width N.

python benchmarks/tile_quantization.py [--rows 2304] [--depth 4096] [--from 1024] [--to 4096] [--step 64] [--repeats 20]

float16 products [M, K] x [K, N]; of each width the median of CUDA events, the widths in random order, so that a clock
that sinks under load does not look like a step. Also one width that is odd, and its padded neighbour.
"""

import argparse
import random
import statistics
import sys

import torch

from lablib.hardware import DEVICES
from lablib.kernels.tile_quantization import Product, waste


def measured_s(m: int, n: int, k: int, repeats: int) -> float:
    """Median seconds of one product on the GPU."""
    a, b = (torch.randn(shape, device="cuda", dtype=torch.float16) for shape in ((m, k), (k, n)))
    out = torch.empty(m, n, device="cuda", dtype=torch.float16)
    took = []
    for index in range(repeats + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        torch.mm(a, b, out=out)
        end.record()
        end.synchronize()
        if index >= 3:
            took.append(start.elapsed_time(end) / 1e3)
    return statistics.median(took)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rows", 2304), ("depth", 4096), ("from", 1024), ("to", 4096), ("step", 64), ("repeats", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = vars(parser.parse_args())
    if not torch.cuda.is_available():
        sys.exit("no GPU here: the staircase is the cost model's alone (lablib/kernels/tile_quantization.py).")
    words = torch.cuda.get_device_name().split()
    device = next((device for name, device in DEVICES.items() if any(name.startswith(f"{w}-") for w in words)), None)
    if device is None:
        sys.exit(f"the cost model has no figures for this GPU: {' '.join(words)}; it knows {', '.join(DEVICES)}.")
    sizes = [*range(args["from"], args["to"] + 1, args["step"]), 50257, 50304]
    random.Random(0).shuffle(sizes)
    found = {n: measured_s(args["rows"], n, args["depth"], args["repeats"]) for n in sizes}
    rate = device.matmul_rate("float16")
    print(f"{torch.cuda.get_device_name()} as {device.name}, [{args['rows']}, {args['depth']}] x [{args['depth']}, N]")
    print("     N  measured us  modelled us  useful, measured  modelled  tiles  waves")
    for n, time_s in sorted(found.items()):
        model = waste(Product(args["rows"], n, args["depth"], "float16", device))
        share = 2 * args["rows"] * n * args["depth"] / (rate * time_s)
        cut = model.tiling
        print(
            f"{n:6} {time_s * 1e6:12.1f} {model.time_s * 1e6:12.1f} {share:17.1%} {model.useful:9.1%} "
            f"{cut.tiles:6} {cut.waves:6}"
        )


if __name__ == "__main__":
    main()
