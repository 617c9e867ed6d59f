"""One step of Llama 3 405B on 16,384 simulated H100s, of which 128 run: host seconds, and the planner beside it.

    python benchmarks/llama3_405b_step.py [--data 128] [--simulate 128] [--small]

The program is plain torch.distributed: tensor parallelism with sequence parallelism over 8 neighbours, 1F1B over 16
stages, gradients reduce-scattered over 128 replicas, AdamW on the shard, parameters gathered again. `simulate=` runs
one replica; the other 127 are taken to do the same at the same time (lablib/engine/group.py).

Source: Llama Team, "The Llama 3 Herd of Models", 2024, arXiv 2407.21783, sections 3.2 (sizes) and 3.3.2 (parallelism:
16 sequences of 8,192 tokens for each replica; 126 layers, one less on the first stage and on the last).
Simplified: 1F1B where Meta interleaves; the gradients of all layers are reduced after the last backward.
"""

import argparse
import resource
import time
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from gpt3_step import Head, one_f_one_b
from torch import Tensor, nn

from lablib import launch, phase
from lablib.plan import IDEAL, Parallel, predict

LLAMA = {"layers": 126, "hidden": 16384, "heads": 128, "kv_heads": 8, "ffn": 53248, "vocab": 128256, "seq": 8192}
SMALL = {"layers": 30, "hidden": 64, "heads": 16, "kv_heads": 8, "ffn": 128, "vocab": 512, "seq": 64}


class Gather(torch.autograd.Function):
    """The whole sequence from its parts, [b, s/t, h] -> [b, s, h]; backward, the sum of the gradients, scattered."""

    @staticmethod
    def forward(ctx, x: Tensor, group) -> Tensor:
        ctx.group = group
        whole = x.new_empty(x.shape[0] * dist.get_world_size(group), *x.shape[1:])
        dist.all_gather_single(whole, x.contiguous(), group=group)
        return whole

    @staticmethod
    def backward(ctx, grad: Tensor):
        part = grad.new_empty(grad.shape[0] // dist.get_world_size(ctx.group), *grad.shape[1:])
        dist.reduce_scatter_single(part, grad.contiguous(), group=ctx.group)
        return part, None


class Scatter(torch.autograd.Function):
    """The sum over ranks, scattered over the sequence; backward, the gradients of the parts, gathered."""

    @staticmethod
    def forward(ctx, x: Tensor, group) -> Tensor:
        ctx.group = group
        part = x.new_empty(x.shape[0] // dist.get_world_size(group), *x.shape[1:])
        dist.reduce_scatter_single(part, x.contiguous(), group=group)
        return part

    @staticmethod
    def backward(ctx, grad: Tensor):
        whole = grad.new_empty(grad.shape[0] * dist.get_world_size(ctx.group), *grad.shape[1:])
        dist.all_gather_single(whole, grad.contiguous(), group=ctx.group)
        return whole, None


class Layer(nn.Module):
    """One layer, [s/t, b, h] -> [s/t, b, h]; this rank holds 1/t of its heads and of its gated MLP."""

    def __init__(self, config, group):
        super().__init__()
        hidden, t = config["hidden"], dist.get_world_size(group)
        self.heads, self.kv_heads, self.group = config["heads"] // t, config["kv_heads"] // t, group
        self.d_head = hidden // config["heads"]
        self.norm1, self.norm2 = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.qkv = nn.Linear(hidden, (self.heads + 2 * self.kv_heads) * self.d_head, bias=False)
        self.out = nn.Linear(self.heads * self.d_head, hidden, bias=False)
        self.gate_up = nn.Linear(hidden, 2 * config["ffn"] // t, bias=False)
        self.down = nn.Linear(config["ffn"] // t, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.qkv(Gather.apply(self.norm1(x), self.group))
        s, b, _ = h.shape
        sizes = [heads * self.d_head for heads in (self.heads, self.kv_heads, self.kv_heads)]
        q, k, v = (part.reshape(s, b, -1, self.d_head).permute(1, 2, 0, 3) for part in h.split(sizes, -1))
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + Scatter.apply(self.out(h.permute(2, 0, 1, 3).reshape(s, b, -1)), self.group)
        gate, up = self.gate_up(Gather.apply(self.norm2(x), self.group)).chunk(2, -1)
        return x + Scatter.apply(self.down(F.silu(gate) * up), self.group)


class Stage(nn.Module):
    """The layers of one stage, the embedding on the first, the head on the last."""

    def __init__(self, config, stage: int, stages: int, group):
        super().__init__()
        pieces, first, last = config["layers"] + 2, stage == 0, stage == stages - 1
        rows = config["vocab"] // dist.get_world_size(group)
        self.group, self.rows, self.first_row = group, rows, dist.get_rank(group) * rows
        self.embedding = nn.Embedding(rows, config["hidden"]) if first else None
        self.layers = nn.ModuleList(Layer(config, group) for _ in range(pieces // stages - first - last))
        self.head = Head(config["vocab"], config["hidden"], group) if last else None

    def forward(self, x: Tensor | None, ids: Tensor) -> Tensor:
        if self.embedding is not None:
            elsewhere = (ids < self.first_row) | (ids >= self.first_row + self.rows)
            tokens = self.embedding((ids - self.first_row).masked_fill(elsewhere, 0))
            x = Scatter.apply(tokens.masked_fill(elsewhere[..., None], 0), self.group)
        assert x is not None
        for layer in self.layers:
            x = layer(x)
        return self.head(Gather.apply(x, self.group), ids) if self.head is not None else x


def step(config, tensor: int, pipeline: int, data: int, micro_batches: int) -> None:
    """One step of one rank: tensor changes fastest, then pipeline, then data."""
    rank, size = dist.get_rank(), tensor * pipeline
    stage, replica = rank // tensor % pipeline, rank // size
    with phase("setup"):
        first = replica * size + stage * tensor
        tp = dist.new_group(range(first, first + tensor), group_desc="tp", use_local_synchronization=True)
        dp = dist.new_group(range(rank % size, data * size, size), group_desc="dp", use_local_synchronization=True)
        model = Stage(config, stage, pipeline, tp).to(torch.bfloat16)
        num = sum(p.numel() for p in model.parameters())
        gradients = torch.zeros(-(-num // data) * data)  # FP32; each rank updates 1/data of them
        master = torch.zeros(gradients.numel() // data)
        optimizer = torch.optim.AdamW([master], lr=1e-4, foreach=True)
        master.grad = torch.zeros_like(master)
        optimizer.step()  # makes the optimizer's state
        dist.barrier()
    ids = torch.zeros(config["seq"], 1, dtype=torch.long)
    shape = (config["seq"] // tensor, 1, config["hidden"])
    one_f_one_b(lambda x: model(x, ids), shape, micro_batches, stage, pipeline, tensor)
    with phase("optimizer"):
        at = 0
        for p in model.parameters():
            assert p.grad is not None
            gradients[at : at + p.numel()] += p.grad.reshape(-1)
            at, p.grad = at + p.numel(), None
        dist.reduce_scatter_single(master.grad, gradients, group=dp)
        optimizer.step()
        updated = torch.empty(gradients.numel(), dtype=torch.bfloat16)
        dist.all_gather_single(updated, master.to(torch.bfloat16), group=dp)
        at = 0
        for p in model.parameters():
            p.data.copy_(updated[at : at + p.numel()].view(p.shape))
            at += p.numel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=int, default=128)
    parser.add_argument("--micro-batches", type=int, default=16)
    parser.add_argument("--small", action="store_true", help="a model of toy size")
    parser.add_argument("--whole", action="store_true", help="run every rank: nobody is a phantom")
    options = parser.parse_args()
    tensor, pipeline, data = 8, 16, options.data
    config = SMALL if options.small else LLAMA
    ranks = tensor * pipeline * data
    run = launch(
        partial(step, config, tensor, pipeline, data, options.micro_batches),
        ranks=ranks,
        fidelity="shapes",
        simulate=None if options.whole else range(tensor * pipeline),
    )
    host_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    began_s = time.perf_counter()
    summary = run.summary(timeline=run.timeline.without("setup"))
    print(summary.sentence())
    print(
        f"memory: stage 0 {run.memory.peak_bytes(0) / 1e9:.1f} GB, the last {run.memory.peak_bytes(120) / 1e9:.1f} GB"
    )
    print(
        f"{ranks:,} ranks, {len(run.timeline.ranks):,} of them run, in {run.wall_s:.0f} s with "
        f"{host_bytes / 1e9:.1f} GB of this machine; {len(run.timeline):,} spans, {len(run.traffic):,} communications; "
        f"summary in {time.perf_counter() - began_s:.0f} s"
    )
    if not options.small:
        axes = Parallel(data=data, tensor=tensor, pipeline=pipeline, zero_stage=1)
        batch = options.micro_batches * data
        plan = predict("llama-3-405b", "dgx-h100", axes, batch, seq_len=config["seq"], derating=IDEAL)
        print(f"the planner: step {plan.step_time_s:.2f} s; simulated {summary.step_time_s:.2f} s")


if __name__ == "__main__":
    main()
