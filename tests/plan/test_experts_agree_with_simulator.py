"""The planner against the simulator that runs a mixture of experts: time within 5%, memory within 2%.

The program is plain torch.distributed: experts spread over all ranks, tokens exchanged by all_to_all_single, the rest
of the model under torch's DDP. It runs with shapes alone, so every expert gets as many rows: routing is even.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from lablib import launch
from lablib.models import Experts, Transformer
from lablib.models.gpt import GPTConfig
from lablib.models.llama import LlamaConfig, model_of
from lablib.plan import IDEAL, STACKS, Parallel, predict
from tests.plan.agreement import thorough
from tests.plan.gpt_step import one_step


class Exchange(torch.autograd.Function):
    """An all-to-all of rows; its gradient travels back the same way."""

    @staticmethod
    def forward(ctx, rows: Tensor, sent: list[int], arriving: list[int]) -> Tensor:
        ctx.sent, ctx.arriving = sent, arriving
        out = rows.new_empty(sum(arriving), rows.shape[1])
        dist.all_to_all_single(out, rows, arriving, sent)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        return Exchange.forward(ctx, grad.contiguous(), ctx.arriving, ctx.sent), None, None


class Mixture(nn.Module):
    """In the place of an MLP. Rows are in the order of experts, which is the order of ranks, while they travel.

    `others`: rows that each rank but the first gets from every rank; None: all get as many.
    """

    def __init__(self, d_model: int, experts: Experts, dtype: torch.dtype, others: int | None = None):
        super().__init__()
        self.others = others
        local = experts.num_experts // dist.get_world_size()
        self.num_active = experts.num_active
        self.router = nn.Linear(d_model, experts.num_experts, bias=False, dtype=dtype)
        self.up, self.up_bias, self.down, self.down_bias = (
            nn.Parameter(torch.empty(local, *shape, dtype=dtype))
            for shape in ((d_model, experts.d_ff), (1, experts.d_ff), (experts.d_ff, d_model), (1, d_model))
        )

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_RD, k = x_BTD.flatten(0, 1), self.num_active
        weights_Rk, chosen_Rk = self.router(x_RD).softmax(-1).topk(k)
        order = chosen_Rk.flatten().argsort()
        place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        rank, ranks = dist.get_rank(), dist.get_world_size()
        sent = [len(order) // ranks if self.others is None else self.others] * ranks
        sent[0] = len(order) - sum(sent[1:])
        made = self.work(Exchange.apply(x_RD.index_select(0, order // k), sent, [sent[rank]] * ranks))
        mine = Exchange.apply(made, [sent[rank]] * ranks, sent).index_select(0, place)
        del made
        return (mine.unflatten(0, (-1, k)) * weights_Rk.unsqueeze(-1)).sum(1).view_as(x_BTD)

    def work(self, rows: Tensor) -> Tensor:
        ranks, local = dist.get_world_size(), len(self.up)
        rows = rows.unflatten(0, (ranks, local, -1)).transpose(0, 1).flatten(1, 2)
        inner = F.gelu(torch.baddbmm(self.up_bias, rows, self.up), approximate="tanh")
        rows = torch.baddbmm(self.down_bias, inner, self.down)
        return rows.unflatten(1, (ranks, -1)).transpose(0, 1).flatten(0, 2)


class GatedMixture(Mixture):
    """Of a Llama: without biases, gated by SiLU."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.up_bias = self.down_bias = None
        self.up_gate = nn.Parameter(torch.empty_like(self.up))

    def work(self, rows: Tensor) -> Tensor:
        ranks, local = dist.get_world_size(), len(self.up)
        rows = rows.unflatten(0, (ranks, local, -1)).transpose(0, 1).flatten(1, 2)
        rows = (F.silu(rows @ self.up_gate) * (rows @ self.up)) @ self.down
        return rows.unflatten(1, (ranks, -1)).transpose(0, 1).flatten(0, 2)


class Checkpointed(nn.Module):
    def __init__(self, block: nn.Module):
        super().__init__()
        self.block = block

    def forward(self, x_BTD: Tensor) -> Tensor:
        return checkpoint(self.block, x_BTD, use_reentrant=False)


def train(
    config: GPTConfig | LlamaConfig,
    experts: Experts,
    dtype: torch.dtype,
    batch: int,
    micro_batches: int,
    recomputes: bool,
    others: int | None = None,
) -> None:
    def prepare():
        model = model_of(config, dtype=dtype)
        kind = GatedMixture if isinstance(config, LlamaConfig) else Mixture
        for block in model.blocks:
            block.mlp = kind(config.d_model, experts, dtype, others)
        if recomputes:
            model.blocks = nn.ModuleList(map(Checkpointed, model.blocks))
        if dist.get_world_size() > 1:
            own = [name for name, _ in model.named_parameters() if ".up" in name or ".down" in name]
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, own)
            model = DistributedDataParallel(model)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)

    one_step(prepare, batch, config.max_seq_len, micro_batches)


CASES = {
    # Cluster, ranks, sizes of the model, experts, sequences, micro-batches, dtype.
    "large experts": ("dgx-a100", 4, (2, 1024, 8, 8192, 512), (8, 2, 4096), 2, 2, "float32"),
    "a large head": ("dgx-a100", 4, (3, 256, 4, 8192, 2048), (8, 2, 1024), 2, 1, "float32"),
    "activations": ("dgx-a100", 8, (3, 512, 8, 512, 1024), (16, 4, 512), 4, 1, "float32"),
    "micro-batches": ("dgx-a100", 8, (3, 512, 8, 512, 1024), (16, 4, 512), 4, 3, "float32"),
    "small experts": ("dgx-h100", 16, (3, 512, 8, 512, 1024), (64, 8, 256), 4, 2, "bfloat16"),
    "one expert a rank": ("perlmutter", 8, (2, 1024, 16, 1024, 512), (8, 1, 2048), 4, 2, "bfloat16"),
    "launches": ("dgx-a100", 2, (2, 256, 4, 1024, 256), (32, 4, 128), 1, 1, "float32"),
    "slow wires": ("pcie-a100", 16, (4, 256, 4, 1024, 512), (32, 2, 512), 2, 3, "float32"),
    "one rank, odd sizes": ("dgx-a100", 1, (2, 512, 8, 1001, 500), (6, 2, 768), 3, 2, "float32"),
    "gated experts": ("dgx-a100", 4, (2, 1024, 8, 8192, 512), (8, 2, 2048), 2, 2, "float32"),
    "gated, small": ("dgx-h100", 8, (3, 1024, 8, 512, 1024), (16, 4, 512), 4, 1, "bfloat16"),
}


GATED = [CASES["gated experts"], CASES["gated, small"]]


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("case", list(CASES.values()), ids=list(CASES))
def test_experts_over_ranks(case, recompute):
    cluster, ranks, sizes, experts, batch, micro_batches, dtype = case
    config, mixture = GPTConfig(*sizes, d_ff=1), Experts(*experts)
    if case in GATED:
        config = LlamaConfig(*sizes, d_ff=1)
    program = partial(train, config, mixture, getattr(torch, dtype), batch, micro_batches, recompute == "full")
    # Alone, rank 0 does to the bit what it does among its like (tests/sim/test_phantoms.py). Two ranks run both.
    simulate = None if ranks == 2 else [0]
    run = launch(program, ranks=ranks, cluster=cluster, fidelity="shapes", simulate=simulate)
    prediction = predict(
        replace(Transformer.of(config), experts=mixture),
        cluster,
        Parallel(data=ranks, expert=ranks),
        batch=ranks * batch * micro_batches,
        micro_batch=batch,
        precision=dtype,
        recompute=recompute,
        stack=replace(STACKS["torch"], has_master=False),
        derating=IDEAL,
    )
    assert prediction.step_time_s == pytest.approx(run.timeline.without("setup").makespan_s, rel=0.05)
    assert prediction.stage_bytes[0] == pytest.approx(run.memory.peak_bytes(0), rel=0.02)
    exchanges_s = sum(
        span.end_s - span.start_s
        for span in run.timeline.without("setup").spans
        if span.rank == 0 and span.name == "all_to_all_single"
    )
    # Recomputation sends the tokens once more.
    assert prediction.communication["expert"][0] == pytest.approx(exchanges_s, rel=0.01)


@pytest.mark.parametrize("recompute", ["none", thorough("full")])
@pytest.mark.parametrize(
    ("cluster", "others"),
    [("dgx-h100", 1792), ("dgx-a100", 1024), pytest.param("pcie-a100", 1536, marks=pytest.mark.thorough)],
)
def test_a_rank_whose_experts_have_most_tokens_sets_time_and_memory(cluster, others, recompute):
    """8 ranks with 16,384 rows each to send: the first gets 16,384 - 7 `others` of every rank's, the mean is 2,048."""
    ranks, config, mixture = 8, GPTConfig(3, 512, 8, 1024, 1024, d_ff=1), Experts(16, 4, 1024)
    program = partial(train, config, mixture, torch.float32, 4, 2, recompute == "full", others)
    run = launch(program, ranks=ranks, cluster=cluster, fidelity="shapes")
    imbalance = (16384 - 7 * others) / 2048
    prediction = predict(
        replace(Transformer.of(config), experts=replace(mixture, imbalance=imbalance)),
        cluster,
        Parallel(data=ranks, expert=ranks),
        batch=ranks * 8,
        micro_batch=4,
        precision="float32",
        recompute=recompute,
        stack=replace(STACKS["torch"], has_master=False),
        derating=IDEAL,
    )
    assert prediction.step_time_s == pytest.approx(run.timeline.without("setup").makespan_s, rel=0.05)
    assert prediction.stage_bytes[0] == pytest.approx(run.memory.peak_bytes(0), rel=0.02)
