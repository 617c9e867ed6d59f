"""One function in every compiler of this machine: kernels, seconds of the first call, median of the later ones.

python benchmarks/compilers.py [--rows 1024] [--width 1024] [--repeats 20]

Eight element-wise operators after a matrix product, float32, one thread. Compare within one table: the machine may be
shared, and the first call of inductor holds the C++ compiler's time.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor

from lablib.kernels.compilers import compare


def layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """A product and what stands behind it, without a fused operator of torch's own."""
    y = x @ w + b
    y = y * torch.sigmoid(y) + x
    return F.relu(torch.tanh(y) * 0.5 + 1.0) - 1.0


def in_jax(x, w, b):
    import jax  # pyright: ignore[reportMissingImports]

    y = x @ w + b
    y = y * jax.nn.sigmoid(y) + x
    return jax.nn.relu(jax.numpy.tanh(y) * 0.5 + 1.0) - 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rows", 1024), ("width", 1024), ("repeats", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    torch.set_num_threads(1)
    x, w, b = (torch.randn(shape) for shape in ((args.rows, args.width), (args.width, args.width), (args.width,)))
    found = compare(layer, x, w, b, repeats=args.repeats, jax_fn=in_jax)
    eager_s = found[0].call_s
    for one in found:
        if one.skipped:
            print(f"{one.way:14} skipped: {one.skipped}")
            continue
        kernels = "?" if one.kernels is None else one.kernels
        print(
            f"{one.way:14} {kernels:>3} kernels, first call {one.first_call_s:8.3f} s, "
            f"later {one.call_s * 1e3:8.2f} ms, {one.call_s / eager_s:5.2f} times eager's"
        )


if __name__ == "__main__":
    main()
