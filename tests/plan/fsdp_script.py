# pyright: basic, reportAttributeAccessIssue=false, reportArgumentType=false
"""A script for GPUs: one training step of a GPT under FSDP2, whose communication has streams of its own.

fsdp_script.py LAYERS WIDTH VOCABULARY TOKENS BATCH MICRO_BATCHES TIED RESHARDS
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from lablib import phase
from lablib.models.gpt import GPT, GPTConfig, next_token_loss


def main() -> None:
    layers, width, vocab, seq, batch, micro_batches, is_tied, reshards = map(int, sys.argv[1:])
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}")
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    with phase("setup"):
        model = GPT(GPTConfig(layers, width, 8, vocab, seq, tied_head=bool(is_tied))).to(device)
        for block in model.blocks:
            fully_shard(block, reshard_after_forward=bool(reshards))
        fully_shard(model, reshard_after_forward=None if reshards else False)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
        tokens = torch.zeros(batch, seq, dtype=torch.long, device=device)
        next_token_loss(model(tokens), tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier(device_ids=[device.index])
        torch.cuda.synchronize()
    for _ in range(micro_batches):
        with phase("forward"):
            loss = next_token_loss(model(tokens), tokens)
        loss.backward()
        del loss
    with phase("optimizer"):
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
