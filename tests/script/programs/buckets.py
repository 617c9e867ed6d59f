"""DDP in its variants: the same steps on "cpu" under `launch` and on "cuda" in script mode."""

import json
import os
import sys
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def layers(widths: list[int], dtypes: list[str], device: torch.device) -> nn.Sequential:
    """Linear layers, each in a dtype of its own, made where they are used."""
    torch.manual_seed(0)
    pairs = zip(widths[:-1], widths[1:], dtypes, strict=True)
    return nn.Sequential(*[nn.Linear(i, o, device=device, dtype=getattr(torch, dtype)) for i, o, dtype in pairs])


def forward(model: nn.Sequential, x: torch.Tensor) -> torch.Tensor:
    for layer in model.children():
        x = layer(x.to(next(layer.parameters()).dtype)).relu()
    return x


class Chain(nn.Module):
    def __init__(self, model: nn.Sequential):
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return forward(self.model, x)


def train(
    device: str, widths: list[int], dtypes: list[str], steps: int, no_sync: bool, foreach: bool, **options: Any
) -> list[float]:
    """A few steps; the virtual milliseconds do not depend on `device`, nor does memory."""
    place = torch.device(device)
    model = DistributedDataParallel(Chain(layers(widths, dtypes, place)), **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=foreach)
    losses = []
    for _ in range(steps):
        x = torch.ones(4, widths[0], device=place)
        with model.no_sync() if no_sync else nullcontext():
            model(x).float().square().mean().backward()
        loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [loss.item() for loss in losses]


if __name__ == "__main__":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    print(json.dumps(train("cuda", **json.loads(sys.argv[1]))))
