"""One training step of GPT-3 175B on 64 simulated GPUs, 8 x 8 tensor x pipeline, in shapes: host seconds and bytes.

The program is plain torch.distributed: Megatron's tensor parallelism (column, row, vocabulary), 1F1B over the stages,
every layer recomputed in backward, BF16 weights with FP32 masters under AdamW. It prints what the simulator says of the
cluster (step time, MFU, memory of each stage), and what the simulation took here.

Source: Narayanan et al., "Efficient large-scale language model training on GPU clusters", SC21, arXiv 2104.04473.
"""

import argparse
import resource
import time
from collections.abc import Callable
from functools import partial
from statistics import mean
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lablib import launch, phase


class CopyToTensorParallel(torch.autograd.Function):
    """Megatron's f: nothing forward, an all-reduce backward."""

    @staticmethod
    def forward(ctx, x: Tensor, group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad: Tensor):
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class ReduceFromTensorParallel(torch.autograd.Function):
    """Megatron's g: an all-reduce forward, nothing backward."""

    @staticmethod
    def forward(ctx, x: Tensor, group) -> Tensor:
        x = x.contiguous()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad: Tensor):
        return grad, None


class Layer(nn.Module):
    """One transformer layer; this rank holds 1/t of its heads and of its MLP."""

    def __init__(self, hidden: int, heads: int, group):
        super().__init__()
        t = dist.get_world_size(group)
        self.heads, self.group = heads // t, group
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden // t), nn.Linear(hidden // t, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden // t), nn.Linear(4 * hidden // t, hidden)

    def forward(self, x: Tensor) -> Tensor:
        b, s, _ = x.shape
        h = CopyToTensorParallel.apply(self.norm1(x), self.group)
        q, k, v = self.qkv(h).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, -1)
        x = x + ReduceFromTensorParallel.apply(self.out(h), self.group)
        h = F.gelu(self.up(CopyToTensorParallel.apply(self.norm2(x), self.group)))
        return x + ReduceFromTensorParallel.apply(self.down(h), self.group)


class Embedding(nn.Module):
    """Rows of the vocabulary split over the tensor-parallel ranks; learned positions on each."""

    def __init__(self, vocab: int, seq: int, hidden: int, group):
        super().__init__()
        rows = vocab // dist.get_world_size(group)
        self.first, self.rows, self.group = dist.get_rank(group) * rows, rows, group
        self.tokens, self.positions = nn.Embedding(rows, hidden), nn.Embedding(seq, hidden)

    def forward(self, ids: Tensor) -> Tensor:
        elsewhere = (ids < self.first) | (ids >= self.first + self.rows)
        x = self.tokens((ids - self.first).masked_fill(elsewhere, 0)).masked_fill(elsewhere[..., None], 0)
        x = ReduceFromTensorParallel.apply(x, self.group)
        return x + self.positions(torch.arange(ids.shape[1]))


class Head(nn.Module):
    """Final norm, logits of this rank's part of the vocabulary, and their cross-entropy."""

    def __init__(self, vocab: int, hidden: int, group):
        super().__init__()
        rows = vocab // dist.get_world_size(group)
        self.first, self.rows, self.group = dist.get_rank(group) * rows, rows, group
        self.norm, self.logits = nn.LayerNorm(hidden), nn.Linear(hidden, rows, bias=False)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        logits = self.logits(CopyToTensorParallel.apply(self.norm(x), self.group)).float()
        largest = logits.detach().amax(-1)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=self.group)
        logits = logits - largest[..., None]
        total = ReduceFromTensorParallel.apply(logits.exp().sum(-1), self.group)
        elsewhere = (targets < self.first) | (targets >= self.first + self.rows)
        mine = logits.gather(-1, (targets - self.first).masked_fill(elsewhere, 0)[..., None]).squeeze(-1)
        hit = ReduceFromTensorParallel.apply(mine.masked_fill(elsewhere, 0), self.group)
        return (total.log() - hit).mean()


class Stage(nn.Module):
    """What one pipeline stage holds: its layers, the embedding on the first, the head on the last."""

    def __init__(self, config, stage: int, num_stages: int, group):
        super().__init__()
        hidden, heads, vocab, seq = config["hidden"], config["heads"], config["vocab"], config["seq"]
        self.recompute = config.get("recompute", True)
        self.embedding = Embedding(vocab, seq, hidden, group) if stage == 0 else None
        self.layers = nn.ModuleList(Layer(hidden, heads, group) for _ in range(config["layers"] // num_stages))
        self.head = Head(vocab, hidden, group) if stage == num_stages - 1 else None

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        return self.head(x, targets) if self.head is not None else x


def one_f_one_b(
    model: Callable[[Tensor | None], Tensor],
    shape: tuple[int, ...],
    micro_batches: int,
    stage: int,
    stages: int,
    stride: int,
) -> None:
    """The schedule 1F1B on this rank. Neighbours of a stage are `stride` ranks away.

    Args:
        model: this stage, from what the stage before sends (None on the first) to what it sends on, or the loss.
        shape: of what is sent, in BF16.
        micro_batches: how many.
        stage, stages: this rank's, of how many.
        stride: from a rank to the one that holds the same part of the next stage.
    """
    rank = dist.get_rank()
    before = rank - stride if stage > 0 else None
    after = rank + stride if stage < stages - 1 else None
    held: list[tuple[Tensor | None, Tensor]] = []

    def exchange(sends, receives) -> list[Tensor]:
        """Send and receive at once; what has no partner is left out."""
        buffers = [torch.empty(shape, dtype=torch.bfloat16) for peer in receives if peer is not None]
        peers = [peer for peer in receives if peer is not None]
        ops = [dist.P2POp(dist.isend, x.contiguous(), peer) for x, peer in sends if peer is not None]
        ops += [dist.P2POp(dist.irecv, b, peer) for b, peer in zip(buffers, peers, strict=True)]
        for work in dist.batch_isend_irecv(ops) if ops else []:
            work.wait()
        return buffers

    def forward(received: list[Tensor]) -> Tensor:
        x = received[0].requires_grad_() if received else None
        with phase("forward"):
            y = model(x)
        held.append((x, y))
        return y.detach()

    def backward(received: list[Tensor]) -> Tensor | None:
        x, y = held.pop(0)
        y.backward(received[0] if received else None)
        return x.grad if x is not None else None

    warmup = min(stages - stage - 1, micro_batches)
    for _ in range(warmup):
        exchange([(forward(exchange([], [before])), after)], [])
    received = exchange([], [before]) if warmup < micro_batches else []
    for i in range(micro_batches - warmup):
        grad: Any = exchange([(forward(received), after)], [after])  # one name: the gradient sent before is let go
        grad = backward(grad)
        is_last = i == micro_batches - warmup - 1
        received = exchange([(grad, before)], [before] if not is_last else [])
    for _ in range(warmup):
        exchange([(backward(exchange([], [after])), before)], [])
    assert not held


def step(config, tensor: int, pipeline: int, micro_batches: int) -> None:
    """One training step of one rank. Ranks of one tensor-parallel group are neighbours (one node)."""
    rank = dist.get_rank()
    stage = rank // tensor
    tp = [dist.new_group(range(s * tensor, (s + 1) * tensor), group_desc=f"tp{s}") for s in range(pipeline)][stage]
    with phase("setup"):
        model = Stage(config, stage, pipeline, tp).to(torch.bfloat16)
        masters = [p.detach().float() for p in model.parameters()]
        optimizer = torch.optim.AdamW(masters, lr=1e-4, foreach=True)
        # A first step makes the optimizer's state: what follows is a step like all others.
        for master in masters:
            master.grad = torch.zeros_like(master)
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
    micro_batch = config.get("micro_batch", 1)
    ids = torch.zeros(micro_batch, config["seq"], dtype=torch.long)
    shape = (micro_batch, config["seq"], config["hidden"])
    one_f_one_b(lambda x: model(ids if x is None else x, ids), shape, micro_batches, stage, pipeline, tensor)

    with phase("optimizer"):
        for master, p in zip(masters, model.parameters(), strict=True):
            assert p.grad is not None
            master.grad, p.grad = p.grad.float(), None
        optimizer.step()
        optimizer.zero_grad()
        for master, p in zip(masters, model.parameters(), strict=True):
            p.data.copy_(master)


GPT3 = {"layers": 96, "hidden": 12288, "heads": 96, "vocab": 51200, "seq": 2048}
SMALL = {"layers": 8, "hidden": 64, "heads": 8, "vocab": 512, "seq": 32}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cluster", default="dgx-a100")
    parser.add_argument("--tensor", type=int, default=8)
    parser.add_argument("--pipeline", type=int, default=8)
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--small", action="store_true", help="a model of toy size")
    parser.add_argument("--one-a-stage", action="store_true", help="simulate one rank of each tensor-parallel group")
    options = parser.parse_args()
    ranks = options.tensor * options.pipeline
    program = partial(step, SMALL if options.small else GPT3, options.tensor, options.pipeline, options.micro_batches)
    began_s = time.process_time()
    simulate = range(0, ranks, options.tensor) if options.one_a_stage else None  # its neighbours do the same
    run = launch(program, ranks=ranks, cluster=options.cluster, fidelity="shapes", simulate=simulate)
    cpu_s = time.process_time() - began_s
    peak_host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    summary = run.summary(timeline=run.timeline.without("setup"))
    print(summary.sentence())
    print(f"step {summary.step_time_s!r} s")
    if not options.one_a_stage:
        assert summary.mfu is not None and summary.hfu is not None
        print(f"mean over ranks: MFU {mean(summary.mfu):.1%}, HFU {mean(summary.hfu):.1%}")
    print("stage   peak GB   of which")
    for stage in range(options.pipeline):
        rank = stage * options.tensor
        held = sorted(run.memory.at_peak(rank).items(), key=lambda item: -item[1])
        parts = ", ".join(f"{category} {size_bytes / 1e9:.2f}" for category, size_bytes in held if size_bytes)
        print(f"{stage:5}   {run.memory.peak_bytes(rank) / 1e9:7.2f}   {parts}")
    print(
        f"simulated in {run.wall_s:.0f} s ({cpu_s:.0f} s of CPU), {peak_host / 1e9:.2f} GB of this machine in all; "
        f"{len(run.timeline):,} spans, {len(run.memory):,} blocks, {len(run.traffic):,} communications"
    )


if __name__ == "__main__":
    main()
