"""Microseconds to price one operator of a GPT's training step: computed each time, and remembered.

python benchmarks/pricing_speed.py [--repeats 9]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lablib.hardware import DEVICES
from lablib.models.gpt import GPT, GPTConfig, next_token_loss
from lablib.operators import Pricer, op_cost
from lablib.operators.op import is_free

DEVICE = DEVICES["H100-80GB-SXM"]


class Recorder(TorchDispatchMode):
    """Holds every call that starts a kernel."""

    def __init__(self):
        super().__init__()
        self.calls: list[tuple[Any, tuple, dict, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not is_free(func):
            self.calls.append((func, args, kwargs or {}, out))
        return out


def train_step() -> None:
    model = GPT(GPTConfig(num_layers=2, d_model=64, num_heads=4, vocab_size=256, max_seq_len=64))
    tokens = torch.zeros(2, 64, dtype=torch.long)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    next_token_loss(model(tokens), tokens).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def each_us(price: Callable[..., Any], calls: list, repeats: int) -> float:
    """Microseconds a call, the median of several passes after the first."""
    passes = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        for call in calls:
            price(*call)
        passes.append((time.perf_counter() - began) / len(calls) * 1e6)
    return statistics.median(passes[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    with Recorder() as recorder:
        train_step()
    calls = recorder.calls
    computed_us = each_us(lambda *call: op_cost(*call, device=DEVICE), calls, args.repeats)
    remembered_us = each_us(Pricer(DEVICE).cost, calls, args.repeats)
    print(
        f"{len(calls)} operators: computed {computed_us:.1f} us each, remembered {remembered_us:.1f} us   target: 5 us"
    )


if __name__ == "__main__":
    main()
