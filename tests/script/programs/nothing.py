"""The shortest script that uses everything once."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.nn.Linear(2, 2).cuda()(torch.ones(2, device="cuda")).sum().backward()
dist.destroy_process_group()
