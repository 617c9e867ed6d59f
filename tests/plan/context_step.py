# pyright: reportPrivateImportUsage=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportCallIssue=false, reportOptionalMemberAccess=false
"""One training step of this project's GPT whose sequences are shared by context ranks: torch's own ring attention.

Each rank has chunks r and 2c - 1 - r of 2c (head and tail), of every sequence, and DDP sums the gradients. What travels
and what is merged is left to torch's functions behind `context_parallel`, at their defaults: keys and values gathered
once a pass, partial results merged in 32 bits, the gradients of keys and values sent round the ring. torch's public
wrapper serves the GPU's attention kernels only; here the CPU's stand in its place, which the simulator prices alike.
"""

from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor.experimental._context_parallel import _attention as ring
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from lablib import phase
from lablib.models.gpt import GPT, GPTConfig, next_token_loss
from lablib.models.transformer import Transformer
from lablib.plan import IDEAL, STACKS, Parallel, Prediction, predict

_FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


@dataclass(frozen=True)
class ContextJob:
    """What is trained and how; `config.max_seq_len` tokens, of which each of `context` ranks has its share."""

    config: GPTConfig
    context: int
    batch: int = 1
    micro_batches: int = 1
    dtype: torch.dtype = torch.bfloat16
    cluster: str = "dgx-a100"
    recompute: str = "none"


class Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, group) -> Tensor:
        out, logsumexp, *_ = ring._templated_ring_attention(group, 2, _FORWARD, q, k, v, is_causal=True)
        ctx.group = group
        ctx.save_for_backward(q, k, v, out, logsumexp)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):
        q, k, v, out, logsumexp = ctx.saved_tensors
        tensors = (q, k, v, out, logsumexp, True)
        grads = ring._templated_ring_attention_backward(
            ctx.group, 2, _BACKWARD, grad, "grad_out", *tensors, dropout_p=0.0
        )
        return *grads[:3], None


def _attend(self, x: Tensor) -> Tensor:
    """The attention of gpt.py with the ring at its heart."""
    d_head = self.query.in_features // self.num_heads
    q, k, v = (linear(x).unflatten(-1, (-1, d_head)).transpose(1, 2) for linear in (self.query, self.key, self.value))
    return self.out(Ring.apply(q, k, v, self.group).transpose(1, 2).flatten(-2))


def places(seq_len: int) -> Tensor:
    """Where this rank's tokens stand in the sequence: its chunk from the head, its chunk from the tail."""
    rank, chunks = dist.get_rank(), torch.arange(seq_len).chunk(2 * dist.get_world_size())
    return torch.cat([chunks[rank], chunks[-1 - rank]])


class Model(GPT):
    """The GPT that is given the places of its tokens."""

    def __init__(self, job: ContextJob):
        super().__init__(job.config, dtype=job.dtype)
        group = dist.new_group()  # the ring's wires do not wait for DDP's
        self.recompute = job.recompute == "full"
        for block in self.blocks:
            block.attention.group = group
            block.attention.forward = _attend.__get__(block.attention)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        x = self.token_embedding(tokens) + self.position_embedding(positions)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return self.head(self.final_norm(x))


def train(job: ContextJob) -> None:
    """One step. Two before it, in setup, make the optimizer's state and DDP's buckets."""
    with phase("setup"):
        model = DistributedDataParallel(Model(job))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
        positions = places(job.config.max_seq_len)
        tokens = torch.zeros(job.batch, len(positions), dtype=torch.long)
        for _ in range(2):  # at the second, DDP packs its buckets anew
            next_token_loss(model(tokens, positions), tokens).backward()
            optimizer.step()
            optimizer.zero_grad()
        dist.barrier()
    for i in range(job.micro_batches):
        with model.no_sync() if i < job.micro_batches - 1 else nullcontext():
            with phase("forward"):
                loss = next_token_loss(model(tokens, positions), tokens)
            loss.backward()
            del loss
    with phase("optimizer"):
        optimizer.step()
        optimizer.zero_grad()


def predicted(job: ContextJob) -> Prediction:
    return predict(
        Transformer.of(job.config),
        job.cluster,
        Parallel(context=job.context),
        batch=job.batch * job.micro_batches,
        micro_batch=job.batch,
        recompute=job.recompute,
        precision=str(job.dtype).removeprefix("torch."),
        stack=replace(STACKS["torch"], has_master=False),
        derating=IDEAL,
    )
