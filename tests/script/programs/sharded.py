# pyright: basic, reportAttributeAccessIssue=false, reportArgumentType=false, reportOptionalMemberAccess=false
"""FSDP2 with mixed precision on a mesh of GPUs."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

DIM = 16


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.up = nn.Linear(DIM, 4 * DIM)
        self.down = nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def build():
    torch.manual_seed(1)
    return nn.Sequential(Block(), Block(), nn.Linear(DIM, 1))


def batch(step, rank, size):
    generator = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(size, DIM, generator=generator)
    return x, x.sum(1, keepdim=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--float32", action="store_true")
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device(f"cuda:{local_rank}")
    torch.cuda.set_device(device)
    dist.init_process_group(backend="nccl", device_id=device)
    mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("dp",))

    policy = MixedPrecisionPolicy()
    if not args.float32:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = build().to(device)
    for block in list(model)[:2]:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    assert all(isinstance(p, DTensor) and p.device == device for p in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)

    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for step in range(args.steps):
        x, y = batch(step, dist.get_rank(), args.batch_size)
        start.record()
        out = model(x.cuda())
        loss = nn.functional.mse_loss(out.float(), y.cuda())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 100.0)
        optimizer.step()
        optimizer.zero_grad()
        end.record()
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        torch.cuda.synchronize()
        if dist.get_rank() == 0:
            took = start.elapsed_time(end)
            print(f"step {step} loss {mean.item():.8f} norm {norm.full_tensor().item():.6f} ms {took:.6f}")
        else:
            norm.full_tensor()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
