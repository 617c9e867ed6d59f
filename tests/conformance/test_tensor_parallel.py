# pyright: reportPrivateImportUsage=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportOptionalMemberAccess=false
"""Tensor and sequence parallel on DTensor: every rank sees the whole batch and a shard of the layers.

Legend: B batch, S sequence, D width, V vocabulary, t ranks.
"""

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, parallel

from lablib import launch
from tests.conformance import reference


def mesh() -> Any:
    return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_columns_and_rows_give_the_gradients_of_one_device_in_one_all_reduce_a_direction(ranks: int):
    """The hidden width of 32 is cut into 3 or 5 uneven shards as well. Forward: one all-reduce a block (g)."""

    def program() -> reference.Gradients:
        model = reference.build()
        for block in model:
            # Shards of different sizes must stay DTensors between the layers: a local tensor forgets the whole size.
            parallel.parallelize_module(
                block,
                mesh(),
                {"up": parallel.ColwiseParallel(use_local_output=False), "down": parallel.RowwiseParallel()},
            )
        reference.loss_of(model(reference.batch())).backward()
        return reference.gradients(model)

    run = launch(program, ranks=ranks)
    for found in run.values:
        reference.assert_same(found, reference.one_device())
    in_forward = [s for s in run.timeline.select(rank=0, stream="comm", phase="forward") if s.name == "all_reduce"]
    assert len(in_forward) == (reference.NUM_BLOCKS if ranks > 1 else len(in_forward))


# ---- sequence parallel, vocabulary-parallel embedding and loss ----

VOCABULARY, WIDTH, SEQUENCE, ROWS = 24, 6, 6, 3


class Language(nn.Module):
    """Embedding, one block with a norm before it, a head: what a transformer has around attention."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.last_norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.double()

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        x = x + self.down(torch.tanh(self.up(self.norm(x))))
        return self.head(self.last_norm(x))


def tokens_and_targets(sequence: int = SEQUENCE) -> tuple[Tensor, Tensor]:
    drawn = torch.randint(0, VOCABULARY, (ROWS, sequence + 1), generator=torch.Generator().manual_seed(2))
    return drawn[:, :-1], drawn[:, 1:]


def language_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def on_one_device(sequence: int = SEQUENCE) -> reference.Gradients:
    model = Language()
    tokens, targets = tokens_and_targets(sequence)
    language_loss(model(tokens), targets).backward()
    return reference.gradients(model)


def plan(is_loss_parallel: bool) -> dict[str, Any]:
    """Activations between the layers are in shards of the sequence (dim 1), as DTensors: they know the whole size."""
    head_output = Shard(-1) if is_loss_parallel else Replicate()
    return {
        "embed": parallel.RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1), use_local_output=False),
        "norm": parallel.SequenceParallel(),
        "up": parallel.ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
        "down": parallel.RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
        "last_norm": parallel.SequenceParallel(),
        "head": parallel.ColwiseParallel(
            input_layouts=Shard(1), output_layouts=head_output, use_local_output=not is_loss_parallel
        ),
    }


def sequence_parallel(is_loss_parallel: bool, sequence: int = SEQUENCE) -> reference.Gradients:
    model = parallel.parallelize_module(Language(), mesh(), plan(is_loss_parallel))
    tokens, targets = tokens_and_targets(sequence)
    if is_loss_parallel:
        with parallel.loss_parallel():
            language_loss(model(tokens), targets).backward()
    else:
        language_loss(model(tokens), targets).backward()
    return reference.gradients(model)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("is_loss_parallel", [False, True])
def test_sequence_parallel_with_a_split_vocabulary_gives_the_gradients_of_one_device(
    is_loss_parallel: bool, ranks: int
):
    reference.launched(sequence_parallel, is_loss_parallel, ranks=ranks, expected=on_one_device())


def test_a_sequence_that_does_not_divide_by_the_ranks_is_sharded_unevenly():
    reference.launched(sequence_parallel, False, 7, ranks=3, expected=on_one_device(7))


def test_loss_parallel_never_gathers_the_logits():
    """Without it the logits, S x V for every row, are gathered on every rank."""

    def largest_gather(is_loss_parallel: bool) -> float:
        run = launch(sequence_parallel, is_loss_parallel, ranks=3)
        return max(t.tensor_bytes for t in run.traffic.transfers if t.name.startswith("all_gather"))

    logits_bytes = ROWS * SEQUENCE * VOCABULARY * 8
    assert largest_gather(False) == logits_bytes
    assert largest_gather(True) < logits_bytes


def test_inputs_and_outputs_of_a_module_may_be_laid_out_by_hand():
    def program() -> reference.Gradients:
        model = nn.Sequential(reference.build())
        shards = parallel.PrepareModuleInput(
            input_layouts=(Shard(0),), desired_input_layouts=(Replicate(),), use_local_output=True
        )
        back = parallel.PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(0))
        tp = mesh()
        for i in range(reference.NUM_BLOCKS):
            parallel.parallelize_module(
                model, tp, {f"0.{i}.up": parallel.ColwiseParallel(), f"0.{i}.down": parallel.RowwiseParallel()}
            )
        parallel.parallelize_module(model, tp, {"0": shards})
        parallel.parallelize_module(model, tp, {"0": back})
        part = reference.batch().chunk(dist.get_world_size())[dist.get_rank()]
        # Each rank's loss is of its rows: the mean over ranks, as in data parallel.
        (reference.loss_of(model(part)) / dist.get_world_size()).backward()
        return {name.removeprefix("0."): grad for name, grad in reference.gradients(model).items()}

    reference.launched(program, ranks=2, expected=reference.one_device())


# ---- DTensor by itself ----


@pytest.mark.parametrize("size", [(7, 5), (2, 3), (12, 4)])
def test_a_tensor_redistributed_any_way_keeps_its_values_and_its_gradient(size: tuple[int, int]):
    """Shards of 7 or 2 rows over 4 ranks are uneven, and some are empty."""

    def program() -> tuple[Tensor, Tensor]:
        grid = init_device_mesh("cpu", (dist.get_world_size(),))
        whole = torch.arange(float(size[0] * size[1]), dtype=torch.float64).view(size)
        first = x = distribute_tensor(whole, grid, [Shard(0)]).requires_grad_()
        for placement in (Shard(1), Replicate(), Shard(0), Replicate(), Shard(1)):
            x = x.redistribute(placements=[placement])
        y = (x * x).sum()
        assert isinstance(y, DTensor)
        y.full_tensor().backward()
        grad = first.grad
        assert isinstance(grad, DTensor)
        return x.full_tensor().detach(), grad.full_tensor()

    expected = torch.arange(float(size[0] * size[1]), dtype=torch.float64).view(size)
    for values, grad in launch(program, ranks=4).values:
        assert torch.equal(values, expected)
        assert torch.equal(grad, 2 * expected)


def test_partial_sums_are_reduced_when_they_are_read():
    def program() -> Tensor:
        grid = init_device_mesh("cpu", (dist.get_world_size(),))
        mine = torch.full((3,), float(dist.get_rank()))
        return DTensor.from_local(mine, grid, [Partial()]).full_tensor()

    assert all(torch.equal(total, torch.full((3,), 6.0)) for total in launch(program, ranks=4).values)
