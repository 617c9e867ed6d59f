"""Time of an optimizer's step for each parameter, over that of torch's foreach AdamW: the ratio of medians.

python benchmarks/optimizer_speed.py [--layers 4] [--width 512] [--repeats 15]

Weights of a GPT's layers (four matrices a layer and two vectors). The two take turns, so that a busy machine slows
both; processor time of one thread. Directions and axes that are renewed now and then are renewed before.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lablib.optim.adafactor import Adafactor
from lablib.optim.adam8bit import Adam8bit
from lablib.optim.adam_bf16 import AdamBF16
from lablib.optim.adamw import AdamW
from lablib.optim.galore import GaLore
from lablib.optim.lamb import LAMB
from lablib.optim.lion import Lion
from lablib.optim.muon import Muon
from lablib.optim.q_galore import QGaLore
from lablib.optim.soap import SOAP
from lablib.optim.sophia import SophiaG

Make = Callable[[list[Tensor]], torch.optim.Optimizer]
TARGETS = {"AdamW": 1.5, "Adafactor": 1.5, "LAMB": 1.5, "Lion": 1.5, "SophiaG": 1.5, "Adam8bit": 3.0}


def weights(num_layers: int, width: int) -> list[Tensor]:
    """Parameters with gradients."""
    shapes = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width), (width,), (width,)]
    params: list[Tensor] = [nn.Parameter(torch.randn(shape)) for _ in range(num_layers) for shape in shapes]
    for param in params:
        param.grad = torch.randn_like(param)
    return params


def step_s(optimizer: torch.optim.Optimizer) -> float:
    """Processor seconds of one step."""
    began = time.process_time()
    optimizer.step()
    return time.process_time() - began


def compare(make: Make, params: list[Tensor], repeats: int) -> tuple[float, float]:
    """Median seconds of a step: of this optimizer, and of torch's AdamW over the same parameters."""
    ours, torchs = make(params), torch.optim.AdamW(params, foreach=True)
    times: list[list[float]] = [[], []]
    for i in range(repeats + 2):  # the first ones make states, directions and axes
        for optimizer, into in zip((ours, torchs), times, strict=True):
            seconds = step_s(optimizer)
            if i >= 2:
                into.append(seconds)
    return statistics.median(times[0]), statistics.median(times[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(1)
    params = weights(args.layers, args.width)
    numel = sum(param.numel() for param in params)
    matrices = [param for param in params if param.ndim == 2]
    rare: dict[str, Any] = {"rank": args.width // 4, "update_proj_gap": 10_000}
    kinds: tuple[type[torch.optim.Optimizer], ...] = (AdamW, Adafactor, LAMB, Lion, SophiaG, Adam8bit, AdamBF16)
    cases: dict[str, tuple[Make, list[Tensor]]] = {kind.__name__: (kind, params) for kind in kinds}
    cases |= {
        "GaLore": (lambda params: GaLore(params, **rare), params),
        "QGaLore": (lambda params: QGaLore(params, **rare), params),
        "Muon": (Muon, matrices),
        "torch.optim.Muon": (torch.optim.Muon, matrices),
        "SOAP": (lambda params: SOAP(params, precondition_frequency=10_000), params),
    }
    print(f"{numel / 1e6:.1f} million parameters, one thread")
    for name, (make, trained) in cases.items():
        ours, torchs = compare(make, trained, args.repeats if name in TARGETS else 5)
        size = sum(param.numel() for param in trained)
        target = f"   target {TARGETS[name]}" if name in TARGETS else ""
        print(
            f"{name:17} {ours / size * 1e9:8.2f} ns a parameter, {ours / torchs:6.2f} times AdamW's{target}", flush=True
        )


if __name__ == "__main__":
    main()
