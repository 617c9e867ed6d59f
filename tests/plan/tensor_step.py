# pyright: reportPrivateImportUsage=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportCallIssue=false, reportOptionalMemberAccess=false
"""One training step of a GPT whose layers are split over tensor ranks, with sequence parallelism too.

The layers are those of benchmarks/gpt3_step.py. With sequence parallelism what lies outside the products is split over
the tokens: an all-gather before a column-split product and a reduce-scatter after a row-split one, each the other's
backward (Korthikanti et al., 2022, arXiv 2205.05198, section 4.2.2). The gathered input is kept for backward, as
torch's own functions do, where Megatron would gather it again. Simplified: the gradients of norms and positions, of
which each rank then has its own tokens' part, are not summed over the ranks.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lablib import phase
from lablib.models.transformer import Transformer
from lablib.plan import IDEAL, STACKS, Parallel, Prediction, predict
from tests.script_module import script_module

gpt3 = script_module("benchmarks/gpt3_step.py")
# torch 2.13 has new names for the two.
all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True)
class TensorJob:
    """What is trained and how: sizes, `tensor` ranks, how many sequences at once and how often."""

    layers: int
    hidden: int
    heads: int
    vocab: int
    seq: int
    tensor: int
    micro_batch: int = 1
    micro_batches: int = 1
    sequence_parallel: bool = False
    recompute: str = "none"
    dtype: torch.dtype = torch.bfloat16
    cluster: str = "dgx-a100"


def gathered(x: Tensor) -> Tensor:
    """All ranks' tokens; dim 1, of one sequence, so that they lie one rank after another."""
    out = x.new_empty(x.shape[0], x.shape[1] * dist.get_world_size(), x.shape[2])
    all_gather(out, x.contiguous())
    return out


def scattered(x: Tensor) -> Tensor:
    """The sum over ranks, of which each has its own tokens."""
    out = x.new_empty(x.shape[0], x.shape[1] // dist.get_world_size(), x.shape[2])
    reduce_scatter(out, x.contiguous())
    return out


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return gathered(x)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return scattered(grad)


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return scattered(x)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return gathered(grad)


class SequenceLayer(gpt3.Layer):
    def forward(self, x: Tensor) -> Tensor:
        h = Gather.apply(self.norm1(x))
        b, s, _ = h.shape
        q, k, v = self.qkv(h).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, -1)
        x = x + Scatter.apply(self.out(h))
        return x + Scatter.apply(self.down(F.gelu(self.up(Gather.apply(self.norm2(x))))))


class SequenceEmbedding(gpt3.Embedding):
    def forward(self, ids: Tensor) -> Tensor:
        elsewhere = (ids < self.first) | (ids >= self.first + self.rows)
        x = self.tokens((ids - self.first).masked_fill(elsewhere, 0)).masked_fill(elsewhere[..., None], 0)
        x = Scatter.apply(x)
        first = dist.get_rank() * x.shape[1]
        return x + self.positions(torch.arange(first, first + x.shape[1]))


class SequenceHead(gpt3.Head):
    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        return self.loss(self.logits(Gather.apply(self.norm(x))), targets)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The cross-entropy of gpt3_step.py's head."""
        logits = logits.float()
        largest = logits.detach().amax(-1)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        logits = logits - largest[..., None]
        total = gpt3.ReduceFromTensorParallel.apply(logits.exp().sum(-1), self.group)
        elsewhere = (targets < self.first) | (targets >= self.first + self.rows)
        mine = logits.gather(-1, (targets - self.first).masked_fill(elsewhere, 0)[..., None]).squeeze(-1)
        hit = gpt3.ReduceFromTensorParallel.apply(mine.masked_fill(elsewhere, 0), self.group)
        return (total.log() - hit).mean()


class Model(nn.Module):
    def __init__(self, job: TensorJob):
        super().__init__()
        kinds = (SequenceEmbedding, SequenceLayer, SequenceHead)
        make = kinds if job.sequence_parallel else (gpt3.Embedding, gpt3.Layer, gpt3.Head)
        group = dist.group.WORLD
        self.recompute = job.recompute == "full"
        self.embedding = make[0](job.vocab, job.seq, job.hidden, group)
        self.layers = nn.ModuleList(make[1](job.hidden, job.heads, group) for _ in range(job.layers))
        self.head = make[2](job.vocab, job.hidden, group)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        return self.head(x, ids)


def train(job: TensorJob) -> None:
    """One step, without masters."""
    with phase("setup"):
        model = Model(job).to(job.dtype)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
        optimizer.zero_grad()
        ids = torch.zeros(job.micro_batch, job.seq, dtype=torch.long)
        dist.barrier()
    for _ in range(job.micro_batches):
        with phase("forward"):
            loss = model(ids)
        loss.backward()
        del loss
    with phase("optimizer"):
        optimizer.step()
        optimizer.zero_grad()


def predicted(job: TensorJob) -> Prediction:
    return predict(
        Transformer("gpt", job.layers, job.hidden, job.heads, job.vocab, job.seq, tied_head=False),
        job.cluster,
        Parallel(tensor=job.tensor, sequence_parallel=job.sequence_parallel),
        batch=job.micro_batch * job.micro_batches,
        micro_batch=job.micro_batch,
        recompute=job.recompute,
        precision=str(job.dtype).removeprefix("torch."),
        stack=replace(STACKS["torch-megatron"], has_master=False),
        derating=IDEAL,
    )
