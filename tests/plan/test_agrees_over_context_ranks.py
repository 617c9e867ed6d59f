# pyright: reportPrivateImportUsage=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportCallIssue=false, reportOptionalMemberAccess=false
"""The planner against the simulator where ranks share every sequence: torch's ring attention, in context_step.py."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor.experimental._context_parallel import _attention as ring
from torch.nn.parallel import DistributedDataParallel

from lablib import launch
from lablib.hardware import find_cluster
from lablib.models.gpt import GPT, GPTConfig, next_token_loss
from tests.plan.agreement import agrees, thorough
from tests.plan.context_step import ContextJob, Model, places, predicted, train


@pytest.fixture(autouse=True)
def defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's options of the ring are one object for the process; another test may have left them changed."""
    for name, value in vars(ring._ContextParallelOptions()).items():
        monkeypatch.setattr(ring._cp_options, name, value)


def context_parallel(**sizes) -> None:
    job = ContextJob(**sizes)
    run = launch(partial(train, job), ranks=job.context, cluster=job.cluster, fidelity="shapes")
    # The first rank keeps most. What travelled is communication to the memory tracker until an operator copies it.
    agrees(run, predicted(job), [0], together=True)


_SIZES = {
    # Layers, width, heads, vocabulary, and tokens of a rank.
    "even": {"config": GPTConfig(2, 512, 4, 1000, 2048, tied_head=False)},
    "a large head": {"config": GPTConfig(1, 256, 4, 50304, 256), "dtype": torch.float32},
    "launches": {"config": GPTConfig(3, 128, 4, 512, 64, tied_head=False)},
    "long": {"config": GPTConfig(1, 256, 8, 512, 4096), "dtype": torch.float32, "batch": 2, "cluster": "dgx-h100"},
    "slow wires": {"config": GPTConfig(2, 512, 16, 1000, 1024), "cluster": "pcie-a100", "recompute": "full"},
}


_OFTEN = {("even", 2), ("a large head", 4), ("launches", 4), ("long", 2), ("slow wires", 4)}
_CASES = [
    pytest.param(sizes, ranks, id=f"{name}-{ranks}", marks=[] if (name, ranks) in _OFTEN else pytest.mark.thorough)
    for name, sizes in _SIZES.items()
    for ranks in (2, 4, 8)
]


@pytest.mark.parametrize("micro_batches", [thorough(1), 2])
@pytest.mark.parametrize(("sizes", "context"), _CASES)
def test_a_ring_and_what_merges_its_rounds(sizes, context, micro_batches):
    config = replace(sizes["config"], max_seq_len=sizes["config"].max_seq_len * context)
    context_parallel(**sizes | {"config": config}, context=context, micro_batches=micro_batches)


def test_a_ring_between_nodes():
    nodes = find_cluster("dgx-a100").replace(devices_per_node=4)  # two of them: 8 ranks, which take 8 rounds each
    context_parallel(config=GPTConfig(2, 512, 8, 1000, 8192), context=8, cluster=nodes)


_CONFIG = GPTConfig(2, 32, 4, 64, 48)


def gradients(recompute: str) -> list[Tensor]:
    model = DistributedDataParallel(Model(ContextJob(_CONFIG, 3, dtype=torch.float64, recompute=recompute)))
    mine = places(_CONFIG.max_seq_len)
    next_token_loss(model(mine[None], mine), mine[None]).backward()
    return [p.grad for p in model.parameters()]


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_the_program_computes_what_one_device_does(recompute):
    model, tokens = GPT(_CONFIG, dtype=torch.float64), torch.arange(_CONFIG.max_seq_len)[None]
    next_token_loss(model(tokens), tokens).backward()
    for found in launch(gradients, recompute, ranks=3).values:
        for grad, param in zip(found, model.parameters(), strict=True):
            torch.testing.assert_close(grad, param.grad, rtol=1e-4, atol=1e-7)  # rounds are merged in 32 bits
