"""Time of each quantizer over that of copying the same tensor: the ratio of medians.

python benchmarks/quantizer_speed.py [--numel 6553600] [--repeats 25]

A DDP bucket of 25 MiB of float32, copied into memory that is there already. A copy, quantizing, its message, reading
that and dequantizing take turns, so that a busy machine slows all; processor time of one thread.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from lablib.compress import Asymmetric, Fp8, Int4, Int8, Quantizer, Rotated
from lablib.precision.formats import E5M2

QUANTIZERS: dict[str, Quantizer] = {
    "int8": Int8(),
    "int4": Int4(),
    "asymmetric int8": Asymmetric(),
    "asymmetric int4": Asymmetric(bits=4),
    "fp8 e4m3": Fp8(),
    "fp8 e5m2": Fp8(format=E5M2),
    "int8 stochastic": Int8(rounding="stochastic"),
    "int4 stochastic": Int4(rounding="stochastic"),
    "rotated int4 (64)": Rotated(),
}


def measured(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median processor seconds of each call; one after another, round by round."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for round_ in range(repeats + 2):  # the first ones find memory
        for name, call in calls.items():
            began = time.process_time()
            call()
            if round_ > 1:
                times[name].append(time.process_time() - began)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--numel", type=int, default=25 * 2**18)
    parser.add_argument("--repeats", type=int, default=25)
    args = parser.parse_args()
    torch.set_num_threads(1)
    x = torch.randn(args.numel)
    place = torch.empty_like(x)
    print(f"{args.numel:,} numbers, one thread; times a copy\n{'':18}  quantize  message  read  dequantize")
    for name, quantizer in QUANTIZERS.items():
        quantized = quantizer.quantize(x)
        message = quantized.message()
        seconds = measured(
            {
                "copy": lambda: place.copy_(x),
                "quantize": lambda quantizer=quantizer: quantizer.quantize(x),
                "message": quantized.message,
                "read": lambda quantizer=quantizer, message=message: quantizer.from_message(message, x.numel()),
                "dequantize": lambda quantizer=quantizer, quantized=quantized: quantizer.dequantize(quantized),
            },
            args.repeats,
        )
        ratios = {what: each / seconds["copy"] for what, each in seconds.items()}
        there, write, read, back = (ratios[what] for what in ("quantize", "message", "read", "dequantize"))
        print(f"{name:18}  {there:8.2f}  {write:7.2f}  {read:4.2f}  {back:10.2f}", flush=True)


if __name__ == "__main__":
    main()
