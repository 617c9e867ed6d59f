"""Time of each quantizer over that of copying the same tensor: the ratio of medians.

python benchmarks/quantizer_speed.py [--numel 6553600] [--repeats 15]

A DDP bucket of 25 MiB of float32. A copy into memory that is there already, and one into new memory (`clone`), as codes
and numbers need it, too. All take turns, so that a busy machine slows all; processor time of one thread.
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
    for round_ in range(repeats + 1):  # the first finds memory
        for name, call in calls.items():
            began = time.process_time()
            call()
            if round_:
                times[name].append(time.process_time() - began)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--numel", type=int, default=25 * 2**18)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(1)
    x = torch.randn(args.numel)
    place = torch.empty_like(x)
    calls: dict[str, Callable[[], Any]] = {"copy": lambda: place.copy_(x), "clone": x.clone}
    for name, quantizer in QUANTIZERS.items():
        quantized = quantizer.quantize(x)
        message = quantized.message()
        calls[f"{name} there"] = lambda quantizer=quantizer: quantizer.quantize(x)
        calls[f"{name} message"] = quantized.message
        calls[f"{name} back"] = lambda quantizer=quantizer, quantized=quantized: quantizer.dequantize(quantized)
        calls[f"{name} read"] = lambda quantizer=quantizer, m=message: quantizer.from_message(m, x.numel())
    seconds = measured(calls, args.repeats)
    copy_s, clone_s = seconds["copy"], seconds["clone"]
    print(
        f"{args.numel:,} numbers: copy {copy_s * 1e3:.2f} ms, clone {clone_s * 1e3:.2f} ms; over the copy (the clone)"
    )
    print(f"{'':18} quantize        dequantize      message, read")
    for name in QUANTIZERS:
        there, back = (seconds[f"{name} {what}"] for what in ("there", "back"))
        other = (seconds[f"{name} message"] + seconds[f"{name} read"]) / copy_s
        print(
            f"{name:18} {there / copy_s:5.2f} ({there / clone_s:4.2f})   {back / copy_s:5.2f} ({back / clone_s:4.2f})   "
            f"{other:5.2f}"
        )


if __name__ == "__main__":
    main()
