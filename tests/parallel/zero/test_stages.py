"""ZeRO: whatever is sharded, the gradients are those of one device, and steps are those of the unsharded optimizer.

Gradients are compared raw, in float64, after plain averaging: an adaptive optimizer would hide a wrong scale. They are
equal to the rounding of sums in another order (1e-12), and to the bit where the same sums are done twice.
"""

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lablib import RankError, launch
from lablib.parallel import Zero, node_mesh
from lablib.precision.loss_scaling import LossScaler, static_scale
from tests.parallel.drawn import mlp

few = settings(max_examples=12, deadline=None)
STAGES = (1, 2, 3)
sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def data(num_samples: int, size: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(num_samples, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


Found = tuple[dict[str, Tensor], dict[str, Tensor]]  # gradients of the last step, and parameters after it


def one_device(module: nn.Module, x: Tensor, num_steps: int = 3, make: Any = sgd) -> Found:
    optimizer = make([param for param in module.parameters() if param.requires_grad])
    for step in range(num_steps):
        optimizer.zero_grad()
        module(x + step).square().mean().backward()
        optimizer.step()
    return {n: p.grad for n, p in module.named_parameters() if p.grad is not None}, module.state_dict()


def steps(zero: Zero, x: Tensor, num_steps: int = 3, num_micro_batches: int = 1, no_sync: bool = False) -> Found:
    """Steps on this rank's part of the batch."""
    part = x.chunk(dist.get_world_size())[dist.get_rank()]
    found: dict[str, Tensor] = {}
    for step in range(num_steps):
        zero.zero_grad()
        for number, micro_batch in enumerate(part.chunk(num_micro_batches)):
            is_last = number == num_micro_batches - 1
            with zero.no_sync() if no_sync and not is_last else nullcontext():
                (zero(micro_batch + step).square().mean() / num_micro_batches).backward()
        found = {name: grad.clone() for name, grad in zero.full_gradients().items()}
        zero.step()
    return found, zero.full_state_dict()


def assert_same(run: Any, expected: Found, rtol: float = 1e-12) -> None:
    for found in run.values:
        for got, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(got, dict(wanted), rtol=rtol, atol=rtol / 100)


# ---- equal to one device ----


@few
@given(
    stage=st.sampled_from(STAGES),
    ranks=st.integers(1, 5),
    sizes=st.lists(st.integers(1, 9), min_size=2, max_size=5),
    bucket_bytes=st.sampled_from([1, 64, 500, 2**20]),
    unit_places=st.none() | st.sets(st.integers(0, 7)),
    num_micro_batches=st.integers(1, 3),
    no_sync=st.booleans(),
    frozen=st.sets(st.integers(0, 7), max_size=3),
    multiple_of=st.sampled_from([1, 3, 64]),
)
def test_gradients_and_steps_equal_one_device(
    stage, ranks, sizes, bucket_bytes, unit_places, num_micro_batches, no_sync, frozen, multiple_of
):
    def built() -> nn.Sequential:
        module = mlp(sizes)
        for place, param in enumerate(list(module.parameters())[:-1]):
            param.requires_grad_(place not in frozen)
        return module

    def program() -> Found:
        module = built()
        if stage == 3:
            places = None if unit_places is None else [module[i] for i in sorted(unit_places) if i < len(module)]
            options: dict[str, Any] = {"units": places}
        else:
            options = {"bucket_bytes": bucket_bytes}
        zero = Zero(module, sgd, stage, multiple_of=multiple_of, **options)
        return steps(zero, x, num_micro_batches=num_micro_batches, no_sync=no_sync or stage == 1)

    x = data(2 * ranks * num_micro_batches, sizes[0])
    assert_same(launch(program, ranks=ranks), one_device(built(), x))


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("stage", STAGES)
def test_the_whole_replica_may_be_recomputed_in_backward(stage: int, reentrant: bool):
    """Its forward then runs during its own backward; stages 2 and 3 run two micro-batches."""

    def program() -> dict[str, Tensor]:
        replica = Zero(mlp([5, 7, 3]), sgd, stage)
        for own in x.chunk(2)[dist.get_rank()].split(4 if stage == 1 else 2):
            checkpoint(replica, own.requires_grad_(), use_reentrant=reentrant).square().mean().backward()
        return replica.full_gradients()

    x, params = data(8, 5), dict((module := mlp([5, 7, 3])).named_parameters())
    grads = torch.autograd.grad(module(x).square().mean(), list(params.values()))
    wanted = {name: grad * (1 if stage == 1 else 2) for name, grad in zip(params, grads, strict=True)}
    for found in launch(program, ranks=2).values:
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.slow
def test_gloo_gives_what_the_simulator_gives():
    def program() -> list[Found]:
        x = data(8, 5)
        groups = node_mesh(1)  # shards of one rank, replicas on two
        hybrid: dict[str, Any] = {"group": groups.get_group("local"), "replicate_group": groups.get_group("node")}
        found = [steps(Zero(mlp([5, 7, 3]), sgd, stage), x) for stage in STAGES]
        return [*found, steps(Zero(mlp([5, 7, 3]), sgd, 3, **hybrid), x)]

    real, simulated = launch(program, ranks=2, backend="gloo"), launch(program, ranks=2)
    torch.testing.assert_close(real.values, simulated.values, rtol=1e-12, atol=1e-15)
    assert real.traffic.sent_bytes() == pytest.approx(simulated.traffic.sent_bytes())


@pytest.mark.parametrize("stage", STAGES)
def test_hybrid_sharding_equals_one_device_and_gathers_within_the_node(stage: int):
    x = data(12, 5)

    def program() -> Found:
        mesh = node_mesh(ranks_per_node=3)
        groups: dict[str, Any] = {"group": mesh.get_group("local"), "replicate_group": mesh.get_group("node")}
        return steps(Zero(mlp([5, 7, 3]), sgd, stage, **groups), x)

    run = launch(program, ranks=6)
    assert_same(run, one_device(mlp([5, 7, 3]), x))
    within, across = [(0, 1, 2), (3, 4, 5)], [(0, 3), (1, 4), (2, 5)]
    members = {kind: {t.ranks for t in run.traffic.transfers if t.name.startswith(kind)} for kind in ("all_g", "all_r")}
    assert members == {"all_g": set(within), "all_r": set(across)}


# ---- mixed precision ----


@pytest.mark.parametrize("reduce_dtype", [None, torch.float32])
def test_a_master_copy_is_stepped_and_its_rounding_computes(reduce_dtype: torch.dtype | None):
    """On one rank what `MixedPrecision` of lab 02 does; on two, the same from every stage, to the bit."""
    x = data(8, 5, torch.float32)

    def by_hand() -> dict[str, Tensor]:
        masters, copy = mlp([5, 7, 3], torch.float32), mlp([5, 7, 3], torch.bfloat16)
        optimizer = sgd(masters.parameters())
        for step in range(3):
            for master, param in zip(masters.parameters(), copy.parameters(), strict=True):
                param.data, param.grad = master.detach().bfloat16(), None
            copy((x + step).bfloat16()).square().mean().backward()
            for master, param in zip(masters.parameters(), copy.parameters(), strict=True):
                assert param.grad is not None
                master.grad = param.grad.float()
            optimizer.step()
        return dict(masters.state_dict())

    def program(stage: int) -> Found:
        options = {"param_dtype": torch.bfloat16, "reduce_dtype": reduce_dtype}
        return steps(Zero(mlp([5, 7, 3], torch.float32), sgd, stage, **options), x)

    for stage in STAGES:
        torch.testing.assert_close(launch(program, stage, ranks=1).values[0][1], by_hand(), rtol=0, atol=0)
    first, *others = [launch(program, stage, ranks=2).values[1] for stage in STAGES]
    for other in others:
        torch.testing.assert_close(other, first, rtol=0, atol=0)


def test_gradients_of_half_precision_are_scaled_and_an_overflow_of_one_rank_skips_the_step_of_all():
    def program() -> list[bool]:
        zero = Zero(mlp([3, 4, 2], torch.float32), sgd, 3, param_dtype=torch.float16)
        scaler, changed = LossScaler(static_scale(1024.0)), []
        for overflows in (False, True, False):
            before = zero.full_state_dict()
            factor = 1e9 if overflows and dist.get_rank() == 1 else 1.0
            loss = zero(data(4, 3).half()).float().square().mean() * factor
            scaler.scale(loss).backward()
            zero.clip_grad_norm_(1.0, scaler)
            zero.step(scaler)
            zero.zero_grad()
            changed.append(
                any((a != b).any() for a, b in zip(before.values(), zero.full_state_dict().values(), strict=True))
            )
        return changed

    assert launch(program, ranks=2).values == [[True, False, True]] * 2


# ---- clipping ----


@few
@given(stage=st.sampled_from(STAGES), ranks=st.integers(1, 4), max_norm=st.sampled_from([1e-3, 0.5, 1e6]))
def test_clipping_is_by_the_norm_of_all_shards(stage, ranks, max_norm):
    x = data(4 * ranks, 3)

    def program() -> tuple[Tensor, dict[str, Tensor]]:
        zero = Zero(mlp([3, 5, 2]), sgd, stage, bucket_bytes=100) if stage < 3 else Zero(mlp([3, 5, 2]), sgd, stage)
        zero(x.chunk(ranks)[dist.get_rank()]).square().mean().backward()
        return zero.clip_grad_norm_(max_norm), zero.full_gradients()

    module = mlp([3, 5, 2])
    module(x).square().mean().backward()
    norm = nn.utils.clip_grad_norm_(module.parameters(), max_norm)
    run = launch(program, ranks=ranks)
    gradients = {name: param.grad for name, param in module.named_parameters()}
    for found in run.values:
        torch.testing.assert_close(found, (norm, gradients), rtol=1e-12, atol=1e-15)
    assert run.traffic.count("all_reduce") == 1


@pytest.mark.parametrize("stage", STAGES)
def test_one_ranks_infinity_is_in_the_norm_of_every_rank(stage: int):
    def program() -> float:
        zero = Zero(mlp([3, 5, 2]), sgd, stage)
        (zero(data(2, 3)).sum() * (math.inf if dist.get_rank() == 2 else 1.0)).backward()
        return float(zero.clip_grad_norm_(1.0))

    assert not any(map(math.isfinite, launch(program, ranks=3).values))


# ---- states ----


class Tied(nn.Module):
    """An embedding whose matrix is also the head's, blocks between, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3))
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.tensor(2.0))
        generator = torch.Generator().manual_seed(3)
        for param in self.parameters():
            param.data = torch.randn(param.shape, generator=generator)
        self.double()

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) * self.scale
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


TOKENS = torch.arange(24).remainder(6).view(8, 3)


def train_tied(model: nn.Module, num_steps: int = 2) -> None:
    n, rank = (dist.get_world_size(), dist.get_rank()) if isinstance(model, Zero) else (1, 0)
    optimizer = model if isinstance(model, Zero) else sgd(model.parameters())
    for _ in range(num_steps):
        optimizer.zero_grad()
        model(TOKENS.chunk(n)[rank]).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("stage", STAGES)
def test_a_full_state_goes_to_an_unsharded_module_and_back(stage: int):
    def program() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        zero, other = Zero(Tied(), sgd, stage), Zero(Tied(), sgd, stage)
        train_tied(zero)
        other.load_full_state_dict(zero.full_state_dict())
        return zero.full_state_dict(), other.full_state_dict()

    alone = Tied()
    train_tied(alone)
    for trained, loaded in launch(program, ranks=3).values:
        torch.testing.assert_close(trained, dict(alone.state_dict()), rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(loaded, trained, rtol=0, atol=0)
        Tied().load_state_dict(trained)


def test_a_state_of_another_module_is_refused_and_nothing_has_changed():
    def program() -> bool:
        zero = Zero(mlp([3, 4, 2]), sgd, 3)
        before = zero.full_state_dict()
        with pytest.raises(ValueError, match=r"must be of the same module: 4.bias is in the state only"):
            zero.load_full_state_dict(mlp([3, 4, 2, 1]).state_dict())
        with pytest.raises(ValueError, match=r"2.weight has the shape \(3, 4\), not \(2, 4\)"):
            zero.load_full_state_dict(mlp([3, 4, 3]).state_dict())
        return all(bool((a == b).all()) for a, b in zip(before.values(), zero.full_state_dict().values(), strict=True))

    assert launch(program, ranks=2).values == [True] * 2


def test_a_schedule_of_the_learning_rate_takes_the_optimizer():
    def program() -> float:
        zero = Zero(mlp([3, 2]), sgd, 2)
        schedule = torch.optim.lr_scheduler.ExponentialLR(zero.optimizer, 0.5)
        zero(data(1, 3)).sum().backward()
        zero.step()
        schedule.step()
        return zero.optimizer.param_groups[0]["lr"]

    assert launch(program, ranks=2).values == [0.05] * 2


# ---- what is refused ----


class Forgetful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.forgotten = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


def integers() -> nn.Module:
    module = nn.Linear(2, 2)
    module.register_parameter("codes", nn.Parameter(torch.zeros(3, dtype=torch.int8), requires_grad=False))
    return module


def of_two_dtypes() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())


def with_zero(module: Callable[[], nn.Module], stage: int = 1, **options: Any) -> Callable[[], Zero]:
    return lambda: Zero(module(), sgd, stage, **options)


def without_backward(stage: int) -> None:
    Zero(mlp([2, 2]), sgd, stage).step()


def only_under_no_sync(stage: int) -> None:
    zero = Zero(mlp([2, 2]), sgd, stage)
    with zero.no_sync():
        zero(data(1, 2)).sum().backward()
    zero.step()


def forgets(stage: int) -> None:
    Zero(Forgetful(), sgd, stage)(torch.ones(1, 3)).sum().backward()


def reduced_twice() -> None:
    zero = Zero(mlp([2, 2]), sgd, 1)
    for _ in range(2):
        zero(data(1, 2)).sum().backward()


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (with_zero(lambda: mlp([2, 2]), 4), "stage must be a whole number, 1 to 3: got 4; use 1 .optimizer state"),
    (with_zero(lambda: mlp([2, 2]), "3"), "stage must be a whole number, 1 to 3: got '3'"),  # pyright: ignore
    (with_zero(nn.ReLU), "needs a parameter to train"),
    (with_zero(integers), "floating-point numbers: codes is torch.int8"),
    (with_zero(of_two_dtypes), "one dtype and device.*0.weight is torch.float32.*1.weight is torch.float64"),
    (with_zero(lambda: mlp([2, 2]), 2, units=[]), "stage 2 takes no such option.*units"),
    (with_zero(lambda: mlp([2, 2]), 3, units=[nn.Linear(2, 2)]), "units must be submodules of the module: got Linear"),
    (with_zero(lambda: mlp([2, 2]), 3, param_dtype=torch.int8), "param_dtype must be a floating-point dtype"),
    (
        with_zero(lambda: mlp([2, 2]), 3, param_dtype=torch.bfloat16, reduce_dtype=torch.float16),
        "reduce_dtype must be the dtype of computing, torch.bfloat16.*got torch.float16",
    ),
    (partial(without_backward, 1), "a step needs reduced gradients: there are none for 0"),
    (partial(without_backward, 3), "a step needs reduced gradients: there are none for 0"),
    (partial(only_under_no_sync, 2), "outside of no_sync"),
    (partial(only_under_no_sync, 3), "outside of no_sync"),
    (partial(forgets, 2), "forgotten.weight, .*forgotten.bias got none"),
    (partial(forgets, 3), "forgotten.weight, .*forgotten.bias got none"),
    (reduced_twice, "stage 1 reduces gradients once per step"),
]


@pytest.mark.parametrize(("program", "message"), REFUSED)
def test_what_cannot_be_sharded_is_refused_in_one_sentence(program: Callable[[], Any], message: str):
    with pytest.raises(RankError, match=message) as caught:
        launch(program, ranks=2)
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_group_without_this_rank_and_another_number_of_ranks_are_refused():
    def program() -> None:
        group = dist.new_group([0])
        if dist.get_rank() == 1:
            with pytest.raises(ValueError, match="group: rank 1 is not in it"):
                Zero(mlp([2, 2]), sgd, 3, group)  # pyright: ignore[reportArgumentType]
        zero = Zero(mlp([2, 2]), sgd, 3)
        zero.sharded.world_size = 5  # as if it had been sharded before some ranks left
        with pytest.raises(ValueError, match="sharded over 5 ranks and now there are 2"):
            zero(data(1, 2))

    launch(program, ranks=2)
