# pyright: reportPrivateImportUsage=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportCallIssue=false, reportOptionalMemberAccess=false
"""A whole step over data, tensor and pipeline ranks in any order, for the simulator: benchmarks/gpt3_step.py's layers.

Tensor ranks share every product, stages run 1F1B, torch's DDP sums the gradients in the last micro-batch's backward.
The groups come from the mesh, so that the order of its axes is the placement, and nothing else changes.
"""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from lablib import phase
from lablib.models.transformer import Transformer
from lablib.parallel.mesh.mesh import Mesh
from lablib.plan import IDEAL, STACKS
from tests.plan.tensor_step import gpt3


@dataclass(frozen=True)
class PlacedJob:
    layers: int
    hidden: int
    heads: int
    vocab: int
    seq: int
    micro_batches: int

    @property
    def model(self) -> Transformer:
        return Transformer("gpt", self.layers, self.hidden, self.heads, self.vocab, self.seq, tied_head=False)

    def options(self) -> dict[str, Any]:
        """Of the planner: this program's software, and nothing that real machines lose."""
        stack = replace(STACKS["torch-megatron"], has_master=False, data_overlap=True)
        return {"stack": stack, "derating": IDEAL, "seq_len": self.seq, "sequence_parallel": False}


class LastReduces(torch.nn.Module):
    """A stage under DDP that sums gradients in the last of its backward passes only."""

    def __init__(self, stage: torch.nn.Module, group: Any, num_passes: int):
        super().__init__()
        self.whole, self.left = DistributedDataParallel(stage, process_group=group), num_passes

    def forward(self, *inputs: Any) -> Any:
        self.left -= 1
        with nullcontext() if not self.left else self.whole.no_sync():
            return self.whole(*inputs)


def placed_step(job: PlacedJob, mesh: Mesh) -> None:
    """One step of one rank."""
    at = mesh.coordinates(dist.get_rank())
    config = {"hidden": job.hidden, "heads": job.heads, "vocab": job.vocab, "seq": job.seq, "layers": job.layers}
    with phase("setup"):
        tensor, data = mesh.group("tensor"), mesh.group("data")
        stage = gpt3.Stage(config | {"recompute": False}, at["pipeline"], mesh.sizes["pipeline"], tensor)
        stage = LastReduces(stage.to(torch.bfloat16), data, job.micro_batches)
        optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-4, foreach=True)
        for p in stage.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
        optimizer.zero_grad()
        ids = torch.zeros(1, job.seq, dtype=torch.long)
        dist.barrier()
    gpt3.one_f_one_b(
        lambda x: stage(ids if x is None else x, ids),
        (1, job.seq, job.hidden),
        job.micro_batches,
        at["pipeline"],
        mesh.sizes["pipeline"],
        mesh.stride("pipeline"),
    )
    with phase("optimizer"):
        optimizer.step()
        optimizer.zero_grad()
