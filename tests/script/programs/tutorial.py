"""Data parallel training on CPUs with gloo, in the manner of an introduction to DDP."""

import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.optim as optim
from torch.nn.parallel import DistributedDataParallel as DDP


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(10, 10)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(10, 5)

    def forward(self, x):
        return self.net2(self.relu(self.net1(x)))


def demo_basic():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(42)
    model = DDP(ToyModel())
    loss_fn = nn.MSELoss()
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    torch.manual_seed(rank)
    for _ in range(int(sys.argv[1])):
        optimizer.zero_grad()
        outputs = model(torch.randn(20, 10))
        loss = loss_fn(outputs, torch.randn(20, 5))
        loss.backward()
        optimizer.step()
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    gathered = [torch.zeros(()) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, loss.detach())
    facts = [None] * dist.get_world_size()
    dist.all_gather_object(facts, {"rank": rank, "local": os.environ["LOCAL_RANK"], "sum": weights.sum().item()})
    if rank == 0:
        print("backend", dist.get_backend(), "losses", " ".join(f"{loss.item():.9f}" for loss in gathered))
        print("weights", f"{weights.double().norm().item():.9f}", facts)
    dist.destroy_process_group()


if __name__ == "__main__":
    demo_basic()
