"""Processor time of one call of each kernel, from the Python function to Triton's launch; no kernel runs.

    python benchmarks/kernel_launch_speed.py [--calls 2000]

Tensors are on the CPU, each launch takes the path of CUDA tensors, and Triton's `JITFunction.run` is replaced by a
function that does nothing. The figures hold checks, allocations, autograd and our wrapper of the launch. For scale,
torch's eager operator on the same small tensors is next to each, with its arithmetic.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from triton import JITFunction
from triton import language as tl

from lablib.kernels.bias_gelu import bias_gelu
from lablib.kernels.cross_entropy import cross_entropy
from lablib.kernels.flash_attention import flash_attention
from lablib.kernels.jit import Kernel
from lablib.kernels.layer_norm import layer_norm
from lablib.kernels.matmul import matmul, matmul_kernel
from lablib.kernels.rms_norm import rms_norm
from lablib.kernels.softmax import softmax
from lablib.kernels.vector_add import vector_add


def skip_the_launch() -> None:
    """Let launches of CPU tensors take the path of CUDA tensors up to Triton's own code, and stop there."""
    check = Kernel._checked

    def on_cuda(kernel: Kernel, args: tuple, kwargs: dict) -> torch.device:
        check(kernel, args, kwargs)
        return torch.device("cuda", 0)

    Kernel._checked = on_cuda
    JITFunction.run = lambda *args, **kwargs: None
    torch.cuda.device = lambda device: nullcontext()


def microseconds(call: Callable[[], object], calls: int, repeats: int = 7) -> float:
    """Median over repeats of the mean processor time of one call."""
    call()
    means = []
    for _ in range(repeats):
        began = time.thread_time()
        for _ in range(calls):
            call()
        means.append((time.thread_time() - began) / calls)
    return statistics.median(means) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000, help="calls per repeat, 7 repeats")
    calls = parser.parse_args().calls
    skip_the_launch()
    torch.set_num_threads(1)
    x, w, b = torch.randn(64, 64), torch.randn(64), torch.randn(64)
    q = torch.randn(1, 2, 64, 16)
    labels = torch.zeros(64, dtype=torch.int64)
    sizes = 64, 64, 64, 64, 1, 64, 1, "none", tl.float32, 64, 64, 32, 8
    cases: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "matmul_kernel[grid](...)": (lambda: matmul_kernel[(1,)](x, x, None, x, *sizes), lambda: None),
        "vector_add": (lambda: vector_add(w, b), lambda: w + b),
        "softmax": (lambda: softmax(x), lambda: torch.softmax(x, -1)),
        "bias_gelu": (lambda: bias_gelu(x, b), lambda: F.gelu(x + b)),
        "rms_norm": (lambda: rms_norm(x, w), lambda: F.rms_norm(x, (64,), w)),
        "layer_norm": (lambda: layer_norm(x, w, b), lambda: F.layer_norm(x, (64,), w, b)),
        "cross_entropy": (lambda: cross_entropy(x, labels), lambda: F.cross_entropy(x, labels)),
        "matmul": (lambda: matmul(x, x), lambda: x @ x),
        "flash_attention": (lambda: flash_attention(q, q, q), lambda: F.scaled_dot_product_attention(q, q, q)),
    }
    print(f"{'':26}{'us per call':>12}{'torch eager':>13}")
    for name, (ours, torchs) in cases.items():
        print(f"{name:26}{microseconds(ours, calls):12.1f}{microseconds(torchs, calls):13.1f}")


if __name__ == "__main__":
    main()
