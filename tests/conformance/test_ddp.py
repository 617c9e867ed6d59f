# pyright: reportPrivateImportUsage=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportOptionalMemberAccess=false
"""`DistributedDataParallel`: every option gives the gradients of one device that sees the whole batch."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from lablib import launch
from lablib.errors import RankError
from tests.conformance.reference import (
    BATCH,
    Block,
    Gradients,
    assert_same,
    batch,
    build,
    gradients,
    launched,
    loss_of,
    my_part,
    one_device,
)

SMALL_BUCKET_MB = 0.002  # about one weight of the model a bucket


def data_parallel(bucket_cap_mb: float | None = SMALL_BUCKET_MB, num_steps: int = 2, **options: Any) -> Gradients:
    model = DistributedDataParallel(build(), bucket_cap_mb=bucket_cap_mb, **options)
    for _ in range(num_steps):  # buckets are rebuilt after the first step; a static graph is recorded in it
        model.zero_grad()
        loss_of(model(my_part())).backward()
    return gradients(model)


OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "gradient_as_bucket_view": {"gradient_as_bucket_view": True},
    "static_graph": {"static_graph": True},
    "static_graph and gradient_as_bucket_view": {"static_graph": True, "gradient_as_bucket_view": True},
    "find_unused_parameters, with none unused": {"find_unused_parameters": True},
    "skip_all_reduce_unused_params": {"find_unused_parameters": True, "skip_all_reduce_unused_params": True},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.thorough), 4])
def test_every_option_of_ddp_gives_the_gradients_of_one_device(name: str, ranks: int):
    launched(partial(data_parallel, **OPTIONS[name]), ranks=ranks, expected=one_device())


@pytest.mark.parametrize(("bucket_cap_mb", "num_buckets"), [(1e-6, 16), (0.002, 8), (0.01, 2), (25.0, 1), (None, 1)])
def test_buckets_of_any_size_give_the_same_gradients_and_carry_the_same_bytes(
    bucket_cap_mb: float | None, num_buckets: int
):
    """Weights have 2 KiB, biases 256 and 64 bytes; a bucket closes once it is full. The first step has one bucket."""
    run = launched(partial(data_parallel, bucket_cap_mb, num_steps=2), expected=one_device())
    sizes = [t.tensor_bytes for t in run.traffic.transfers if t.name == "all_reduce"]
    psi = sum(param.nbytes for param in build().parameters())
    assert sizes[0] == psi and sum(sizes[1:]) == psi
    assert len(sizes[1:]) == num_buckets


@pytest.mark.parametrize("num_micro_batches", [1, 2, 4])
@pytest.mark.parametrize("is_view", [False, True])
def test_no_sync_accumulates_and_sends_once(num_micro_batches: int, is_view: bool):
    def program() -> Gradients:
        model = DistributedDataParallel(build(), bucket_cap_mb=25, gradient_as_bucket_view=is_view)
        *first, last = my_part().chunk(num_micro_batches)
        with model.no_sync():
            for micro_batch in first:
                (loss_of(model(micro_batch)) / num_micro_batches).backward()
        (loss_of(model(last)) / num_micro_batches).backward()
        return gradients(model)

    run = launched(program, expected=one_device())
    assert run.traffic.count("all_reduce") == 1


# ---- unused parameters ----


class Gated(nn.Module):
    """Two branches, of which a batch uses one or both."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk, self.left, self.right = Block(), Block(), Block()
        self.double()

    def forward(self, x: Tensor, uses_left: bool, uses_right: bool) -> Tensor:
        y = self.trunk(x)
        return y + (self.left(y) if uses_left else 0) + (self.right(y) if uses_right else 0)


@pytest.mark.parametrize("is_view", [False, True])
def test_a_parameter_unused_on_some_ranks_counts_there_as_zero(is_view: bool):
    """The reference: the mean of what the ranks compute alone, with no gradient as zero."""

    def forward(model: nn.Module, rank: int, part: Tensor) -> Tensor:
        return loss_of(model(part, rank % 2 == 0, rank != 3))

    def program() -> Gradients:
        model = DistributedDataParallel(Gated(), find_unused_parameters=True, gradient_as_bucket_view=is_view)
        forward(model, dist.get_rank(), my_part()).backward()
        return gradients(model)

    reference = Gated()
    sum(forward(reference, rank, part) / 4 for rank, part in enumerate(batch().chunk(4))).backward()
    launched(program, expected=gradients(reference))


def test_a_parameter_unused_on_every_rank_keeps_no_gradient():
    def program() -> list[bool]:
        model = DistributedDataParallel(Gated(), find_unused_parameters=True)
        loss_of(model(my_part(), True, False)).backward()
        return [param.grad is None for param in model.module.right.parameters()]

    assert all(all(is_none) for is_none in launch(program, ranks=3).values)


def test_without_looking_for_unused_parameters_torch_says_so_in_the_next_step():
    def program() -> None:
        model = DistributedDataParallel(Gated())
        for _ in range(2):
            loss_of(model(my_part(), True, False)).backward()

    with pytest.raises(RankError, match="Expected to have finished reduction in the prior iteration"):
        launch(program, ranks=2)


# ---- uneven inputs ----


@pytest.mark.parametrize("by_initial_size", [True, False])
def test_join_lets_ranks_with_fewer_batches_go_first(by_initial_size: bool):
    """Rank r has r + 1 batches: step i averages over the ranks still there, or over all of them as at the start."""
    whole = batch(BATCH * 3)

    def of(rank: int, step: int) -> Tensor:
        return whole[(rank * 4 + step) * 4 :][:4]

    def program() -> list[Gradients]:
        model, rank = DistributedDataParallel(build()), dist.get_rank()
        steps = []
        with model.join(divide_by_initial_world_size=by_initial_size):
            for step in range(rank + 1):
                model.zero_grad()
                loss_of(model(of(rank, step))).backward()
                steps.append(gradients(model))
        return steps

    values = launch(program, ranks=3).values
    for step in range(3):
        model, present = build(), range(step, 3)
        sum(loss_of(model(of(rank, step))) / (3 if by_initial_size else len(present)) for rank in present).backward()
        for rank in present:
            assert_same(values[rank][step], gradients(model))


def test_join_may_end_at_the_first_rank_that_has_no_more():
    def program() -> int:
        model, num_steps = DistributedDataParallel(build()), 0
        try:
            with Join([model], throw_on_early_termination=True):
                for _ in range(2 + dist.get_rank()):
                    loss_of(model(my_part())).backward()
                    num_steps += 1
        except RuntimeError as error:
            assert "exhausted" in str(error)
        return num_steps

    assert launch(program, ranks=3).values == [2, 2, 2]


# ---- parameters and buffers ----


def test_ddp_broadcasts_the_parameters_and_buffers_of_rank_0():
    def program() -> list[Tensor]:
        torch.manual_seed(dist.get_rank())
        inner = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        nn.init.normal_(inner[1].running_mean)
        model = DistributedDataParallel(inner)
        return [tensor.detach().clone() for tensor in model.state_dict().values()]

    values = launch(program, ranks=3).values
    torch.manual_seed(0)
    assert torch.equal(values[0][0], nn.Linear(4, 4).weight)
    for state in values[1:]:
        assert all(torch.equal(mine, first) for mine, first in zip(state, values[0], strict=True))


def test_every_forward_uses_the_batch_norm_statistics_of_rank_0():
    """In training each rank normalizes by its own rows; running statistics are rank 0's from forward to forward."""

    def program() -> list[Tensor]:
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.BatchNorm1d(8, dtype=torch.float64))
        seen = []
        for step in range(3):
            seen.append(model.module.running_mean.clone())
            loss_of(model(my_part(batch(seed=step)))).backward()
        model.eval()
        model(my_part())  # broadcasts what the last training forward left
        return [*seen, model.module.running_mean.clone()]

    alone = nn.BatchNorm1d(8, dtype=torch.float64)
    for step in range(3):
        alone(batch(seed=step)[:4])  # rank 0's rows
    values = launch(program, ranks=4).values
    assert not torch.equal(values[0][2], values[1][2])  # between two forwards a rank has its own
    for seen in values:
        torch.testing.assert_close(seen[3], alone.running_mean, rtol=1e-12, atol=0)


def test_two_models_and_a_model_on_a_subgroup_go_side_by_side():
    def program() -> tuple[Gradients, Gradients]:
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        mine = pairs[dist.get_rank() // 2]
        wide, narrow = DistributedDataParallel(build()), DistributedDataParallel(build(), process_group=mine)
        (loss_of(wide(my_part())) + loss_of(narrow(my_part(batch(), mine)))).backward()
        return gradients(wide), gradients(narrow)

    for of_wide, of_narrow in launch(program, ranks=4).values:
        assert_same(of_wide, one_device())
        assert_same(of_narrow, one_device())


def test_mixed_precision_of_ddp_needs_a_device_with_events():
    """torch copies parameters on a stream of its own and records an event. When a CPU has one, prove it here."""

    def program() -> None:
        policy = torch.nn.parallel.distributed._MixedPrecision(param_dtype=torch.bfloat16)
        DistributedDataParallel(build(), mixed_precision=policy)(my_part())

    reason = "cpu backend doesn't support events" if torch.version.cuda is None else None  # CUDA's want a driver
    with pytest.raises(RankError, match=reason):
        launch(program, ranks=2)
