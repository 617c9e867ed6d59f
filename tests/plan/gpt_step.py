# pyright: reportPrivateImportUsage=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportCallIssue=false, reportOptionalMemberAccess=false
"""One training step of this project's GPT or Llama under torch's own wrappers: DDP, ZeroRedundancyOptimizer, FSDP2.

Plain torch: nothing here knows of the simulator, but for the names of phases. The planner is asked for the same step
by `predicted`.
"""

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from lablib import Cluster, phase
from lablib.models.gpt import GPT, GPTConfig, next_token_loss
from lablib.models.llama import Llama, model_of
from lablib.models.llama_sizes import LlamaConfig
from lablib.models.transformer import Transformer
from lablib.plan import IDEAL, STACKS, Parallel, Prediction, predict

OPTIMIZERS = {
    "adamw": partial(torch.optim.AdamW, lr=1e-4, foreach=True),
    "sgd-momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9, foreach=True),
}


@dataclass(frozen=True)
class Job:
    """What is trained and how.

    Attributes:
        kind: "one" rank, "ddp", "zero1" or "fsdp".
        ranks, replicas: of the data axis; copies of the sharded whole (HSDP).
        batch, micro_batches: sequences of one rank that go through at once, and how many such turns a step has.
        is_mixed: of "fsdp": whether it computes in 16 bits, with parameters and sums in 32.
        recompute: "none", "full" (every block) or "selective" (attention's core).
    """

    config: GPTConfig | LlamaConfig
    kind: str = "one"
    ranks: int = 1
    batch: int = 1
    micro_batches: int = 1
    optimizer: str = "adamw"
    dtype: torch.dtype = torch.float32
    cluster: str | Cluster = "dgx-a100"
    recompute: str = "none"
    reshard: bool = True
    replicas: int = 1
    is_mixed: bool = False


class RecomputedAttention(nn.Module):
    """The attention of gpt.py whose core is made again in backward."""

    def __init__(self, attention: Any):
        super().__init__()
        self.query, self.key, self.value, self.out = attention.query, attention.key, attention.value, attention.out
        self.num_heads = attention.num_heads

    def forward(self, x):
        d_head = self.query.in_features // self.num_heads
        heads = [linear(x).unflatten(-1, (-1, d_head)).transpose(1, 2) for linear in (self.query, self.key, self.value)]
        core = partial(F.scaled_dot_product_attention, is_causal=True)
        y = checkpoint(core, *heads, use_reentrant=False)
        return self.out(y.transpose(1, 2).flatten(-2))


def build(job: Job) -> GPT | Llama:
    model = model_of(job.config, dtype=job.dtype)
    for i, block in enumerate(model.blocks):
        if job.recompute == "selective":
            block.attention = RecomputedAttention(block.attention)
        if job.recompute == "full":
            model.blocks[i] = checkpoint_wrapper(block)
    return model


def prepare(job: Job) -> tuple[Any, torch.optim.Optimizer]:
    model, make = build(job), OPTIMIZERS[job.optimizer]
    if job.kind == "fsdp":
        names = ("replicate", "shard") if job.replicas > 1 else ("shard",)
        shape = (job.replicas, job.ranks // job.replicas) if job.replicas > 1 else (job.ranks,)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        how: Any = {"mesh": mesh}
        if job.is_mixed:
            how["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for block in model.blocks:
            fully_shard(block, **how, reshard_after_forward=job.reshard)
        fully_shard(model, **how, reshard_after_forward=None if job.reshard else False)
    if job.kind in ("ddp", "zero1"):
        model = DistributedDataParallel(model)
    if job.kind == "zero1":
        with warnings.catch_warnings():  # importing it warns of TorchScript, which it does not use
            warnings.simplefilter("ignore", DeprecationWarning)
            from torch.distributed.optim import ZeroRedundancyOptimizer
        return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-4, foreach=True)
    return model, make(model.parameters())


def train(job: Job) -> None:
    one_step(partial(prepare, job), job.batch, job.config.max_seq_len, job.micro_batches)


def one_step(make: Callable[[], tuple[Any, torch.optim.Optimizer]], batch: int, length: int, turns: int) -> None:
    """One step. Another before it, in setup, makes the optimizer's state and DDP's buckets."""
    with phase("setup"):
        model, stepper = make()
        tokens = torch.zeros(batch, length, dtype=torch.long)
        next_token_loss(model(tokens), tokens).backward()
        stepper.step()
        stepper.zero_grad()
        dist.barrier()
    for i in range(turns):
        is_summed_later = isinstance(model, DistributedDataParallel) and i < turns - 1
        with model.no_sync() if is_summed_later else nullcontext():
            with phase("forward"):
                loss = next_token_loss(model(tokens), tokens)
            loss.backward()
            del loss
    with phase("optimizer"):
        stepper.step()
        stepper.zero_grad()


def predicted(job: Job, block: str = "sequential", overlaps: bool = True) -> Prediction:
    stack = replace(STACKS["torch"], has_master=False, data_overlap=overlaps, has_wide_shards=job.is_mixed)
    zero_stage = {"fsdp": 3, "zero1": 1}.get(job.kind, 0)
    return predict(
        replace(Transformer.of(job.config), block=block),
        job.cluster,
        Parallel(data=job.ranks, zero_stage=zero_stage, reshard_after_forward=job.reshard, replicas=job.replicas),
        batch=job.ranks * job.batch * job.micro_batches,
        micro_batch=job.batch,
        optimizer=job.optimizer,
        precision="bfloat16" if job.is_mixed else str(job.dtype).removeprefix("torch."),
        recompute=job.recompute,
        stack=stack,
        derating=IDEAL,
    )
