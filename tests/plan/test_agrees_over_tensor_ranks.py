# pyright: reportPrivateImportUsage=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportCallIssue=false, reportOptionalMemberAccess=false
"""The planner against the simulator over tensor ranks, with and without sequence parallelism: tensor_step.py."""

from functools import partial

import pytest
import torch
from torch import Tensor

from lablib import launch
from tests.plan.agreement import agrees, agrees_on_communication
from tests.plan.tensor_step import Model, TensorJob, predicted, train


def tensor_parallel(**sizes) -> None:
    job = TensorJob(**sizes)
    # Alone, rank 0 does to the bit what it does among its like (tests/sim/test_phantoms.py). Two ranks run both.
    simulate = None if job.tensor == 2 else [0]
    run = launch(partial(train, job), ranks=job.tensor, cluster=job.cluster, fidelity="shapes", simulate=simulate)
    # What a rank gathered from the others and kept is communication to the memory tracker, activation to the planner.
    prediction = predicted(job)
    agrees(run, prediction, [0], together=job.sequence_parallel)
    agrees_on_communication(run, prediction, [0], "tensor", has_exposed=True)


_SIZES = {
    "even": {"layers": 2, "hidden": 1024, "heads": 8, "vocab": 8192, "seq": 1024, "tensor": 4},
    "a large head": {"layers": 1, "hidden": 512, "heads": 8, "vocab": 50304, "seq": 512, "tensor": 2},
    "launches": {"layers": 3, "hidden": 256, "heads": 8, "vocab": 1000, "seq": 64, "tensor": 8},
    "long": {"layers": 2, "hidden": 512, "heads": 8, "vocab": 1024, "seq": 4096, "tensor": 8, "dtype": torch.float32},
    "slow wires": {
        **{"layers": 2, "hidden": 1024, "heads": 16, "vocab": 1000, "seq": 2048, "tensor": 8},
        **{"cluster": "pcie-a100", "recompute": "full"},
    },
    "between nodes": {
        **{"layers": 2, "hidden": 2048, "heads": 16, "vocab": 8192, "seq": 248, "tensor": 8},
        **{"cluster": "perlmutter", "recompute": "full"},
    },
}


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("sequence_parallel", [False, True], ids=["tensor", "sequence"])
@pytest.mark.parametrize("sizes", list(_SIZES.values()), ids=list(_SIZES))
def test_products_over_ranks_and_what_lies_between_them(sizes, sequence_parallel, micro_batches):
    tensor_parallel(**sizes, sequence_parallel=sequence_parallel, micro_batches=micro_batches)


def gradients(sequence_parallel: bool) -> list[Tensor]:
    torch.manual_seed(3)
    model = Model(TensorJob(2, 32, 4, 64, 16, tensor=4, sequence_parallel=sequence_parallel)).double()
    loss = model(torch.arange(16)[None])
    loss.backward()
    layers = [p.grad for layer in model.layers for p in (layer.qkv.weight, layer.out.weight, layer.up.weight)]
    return [loss.detach(), *layers, model.head.logits.weight.grad, model.embedding.tokens.weight.grad]


def test_the_program_computes_the_same_with_tokens_over_ranks():
    whole, split = (launch(gradients, is_split, ranks=4).values for is_split in (False, True))
    for rank in range(4):
        torch.testing.assert_close(split[rank], whole[rank], rtol=1e-6, atol=1e-8)  # the loss is in 32 bits
