# pyright: reportPrivateImportUsage=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportOptionalMemberAccess=false
"""DDP's communication hooks: each sends what it says it sends, and gives what its own formula gives.

Legend: g_r the gradient of rank r on its own rows, n ranks, psi parameters.

    allreduce            mean_r g_r
    fp16, bf16           sum_r cast(g_r / n), back in the parameters' dtype;    2 psi bytes instead of 4 psi
    PowerSGD, rank k     P P^T mean_r(g_r) with P an orthonormal basis of k columns;   exact where the mean has rank k
    post-local SGD       the mean over all ranks at first, then over a subgroup, or none
"""

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    debugging_hooks,
    default_hooks,
    powerSGD_hook,
    quantization_hooks,
)
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.nn.parallel import DistributedDataParallel

from lablib import launch
from lablib.errors import RankError
from tests.conformance import reference

RANKS = 4
Hook = Callable[..., torch.futures.Future[Tensor]]


def with_hook(hook: Hook, state: object = None, dtype: torch.dtype = torch.float64) -> reference.Gradients:
    model = DistributedDataParallel(reference.build(dtype=dtype), bucket_cap_mb=0.002)
    model.register_comm_hook(state, hook)
    for _ in range(2):  # the first step has one bucket, the second many
        model.zero_grad()
        reference.loss_of(model(reference.my_part(reference.batch(dtype=dtype)))).backward()
    return reference.gradients(model)


def of_each_rank(dtype: torch.dtype = torch.float64) -> list[reference.Gradients]:
    """g_r: what every rank computes before anything is sent."""
    return [
        reference.one_device(reference.build(dtype=dtype), part) for part in reference.batch(dtype=dtype).chunk(RANKS)
    ]


def mean_of(parts: list[reference.Gradients], over: Callable[[Tensor], Tensor] = lambda g: g) -> reference.Gradients:
    return {name: torch.stack([over(g[name]) for g in parts]).mean(0) for name in parts[0]}


# ---- all-reduce ----


def own_hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
    assert work is not None
    return work.get_future().then(lambda future: future.value()[0])


@pytest.mark.parametrize("hook", [own_hook, default_hooks.allreduce_hook])
def test_a_hook_that_averages_gives_the_gradients_of_one_device(hook: Hook):
    reference.launched(partial(with_hook, hook), expected=reference.one_device())


def test_the_built_in_hook_of_torchs_reducer_gives_the_gradients_of_one_device():
    def program() -> reference.Gradients:
        model = DistributedDataParallel(reference.build())
        model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
        reference.loss_of(model(reference.my_part())).backward()
        return reference.gradients(model)

    reference.launched(program, expected=reference.one_device())


def test_the_hook_that_does_nothing_sends_nothing_in_backward():
    """torch has it for measuring backward without communication; a rank keeps its own gradients."""
    run = launch(with_hook, debugging_hooks.noop_hook, ranks=RANKS)
    assert run.traffic.count("all_reduce") == 0
    for found, expected in zip(run.values, of_each_rank(), strict=True):
        reference.assert_same(found, expected)


# ---- narrow floats ----


def bf16_by_another_name(state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    return default_hooks.bf16_compress_hook(None, bucket)


@pytest.mark.parametrize(
    ("hook", "dtype"),
    [(default_hooks.fp16_compress_hook, torch.float16), (bf16_by_another_name, torch.bfloat16)],
    ids=["fp16", "bf16"],
)
def test_a_compressing_hook_averages_what_the_cast_leaves_and_sends_half(hook: Hook, dtype: torch.dtype):
    """The sum of n numbers of this type: within one rounding of the largest partial sum of the float64 sum of casts."""
    run = launch(with_hook, hook, None, torch.float32, ranks=RANKS)
    casts = [{name: (g[name].to(dtype) / RANKS).double() for name in g} for g in of_each_rank(torch.float32)]
    for found in run.values:
        for name in found:
            expected = torch.stack([g[name] for g in casts]).sum(0)
            largest = torch.stack([g[name].abs() for g in casts]).sum(0)
            allowed = RANKS * torch.finfo(dtype).eps * largest + torch.finfo(dtype).tiny
            assert found[name].dtype == torch.float32
            assert bool(((found[name].double() - expected).abs() <= allowed).all()), name
    psi = sum(param.numel() for param in reference.build().parameters())
    assert sum(t.tensor_bytes for t in run.traffic.transfers if t.name == "all_reduce") == 2 * 2 * psi  # in two steps


def test_a_compressing_wrapper_and_the_hook_by_itself_are_the_same():
    wrapped = default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)
    by_itself = launch(with_hook, default_hooks.fp16_compress_hook, None, torch.float32, ranks=RANKS).values[0]
    reference.assert_same(
        launch(with_hook, wrapped, None, torch.float32, ranks=RANKS).values[0], by_itself, tolerance=1e-3
    )


@pytest.mark.skipif(torch.version.cuda is not None, reason="a build of torch with CUDA takes the hook")
def test_torch_wants_cuda_for_the_bf16_hook():
    """It looks at the hook's name. When it no longer does, the test above takes the hook itself."""
    with pytest.raises(RankError, match="BF16 all reduce communication hook required CUDA"):
        launch(with_hook, default_hooks.bf16_compress_hook, None, torch.float32, ranks=2)


# ---- PowerSGD ----

WIDE = 24


class Linear(nn.Module):
    """One matrix without bias: its gradient is a sum of B outer products, of rank B or less."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(WIDE, WIDE, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T


def power_sgd(hook: Hook, num_steps: int, num_rows: int, **options: object) -> tuple[list[Tensor], list[Tensor]]:
    """The gradient and this rank's error memory after every step; the first two are not compressed."""
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, **options)
    model = DistributedDataParallel(Linear())
    model.register_comm_hook(state, hook)
    found, errors = [], []
    for step in range(num_steps):
        model.zero_grad()
        reference.loss_of(model(reference.my_part(reference.batch(num_rows, WIDE, seed=step)))).backward()
        found.append(model.module.weight.grad.clone())
        errors += [error.clone().view(WIDE, WIDE) for error in state.error_dict.values()]
    return found, errors


def means(num_steps: int, num_rows: int) -> list[Tensor]:
    """The gradient of every step on one device."""
    return [
        reference.one_device(Linear(), reference.batch(num_rows, WIDE, seed=step))["weight"]
        for step in range(num_steps)
    ]


@pytest.mark.parametrize("options", [{}, {"use_error_feedback": False}, {"warm_start": False}], ids=str)
def test_power_sgd_is_exact_where_the_mean_gradient_has_no_more_than_its_rank(options: dict):
    """Four rows in all: a gradient of rank 4, compressed to rank 4."""
    program = partial(power_sgd, matrix_approximation_rank=4, **options)
    run = launch(program, powerSGD_hook.powerSGD_hook, 4, 4, ranks=RANKS)  # of 4 steps, 2 are compressed
    for found, _ in run.values:
        torch.testing.assert_close(torch.stack(found), torch.stack(means(4, 4)), rtol=1e-6, atol=1e-9)


def test_what_power_sgd_leaves_out_is_kept_for_the_next_step():
    """First compressed step: gradient given = rank 1, and gradient + mean over ranks of the memory = true mean."""
    run = launch(partial(power_sgd, matrix_approximation_rank=1), powerSGD_hook.powerSGD_hook, 3, 2 * WIDE, ranks=RANKS)
    found = run.values[0][0][2]
    expected = means(3, 2 * WIDE)[2]
    assert torch.linalg.matrix_rank(found, rtol=1e-6) == 1 and torch.linalg.matrix_rank(expected) > 1
    left = torch.stack([errors[-1] for _, errors in run.values]).mean(0)
    torch.testing.assert_close(found + left, expected, rtol=1e-9, atol=1e-12)


def test_power_sgd_of_rank_1_is_the_projection_of_the_mean_on_one_direction():
    """G_k = p p^T G with a unit vector p: so p is found from G_k, and the projection is taken again."""
    run = launch(partial(power_sgd, matrix_approximation_rank=1), powerSGD_hook.powerSGD_hook, 3, 2 * WIDE, ranks=RANKS)
    mean = means(3, 2 * WIDE)[2]
    p = torch.linalg.svd(run.values[0][0][2]).U[:, :1]
    for found, _ in run.values:
        torch.testing.assert_close(found[2], p @ p.T @ mean, rtol=1e-6, atol=1e-9)
    # Two vectors of 24 numbers of 8 bytes, where the whole has 24 x 24.
    compressed = [t.tensor_bytes for t in run.traffic.transfers if t.name == "all_reduce"][2:]
    assert sum(compressed) == 2 * WIDE * 8


# ---- hooks that torch itself cannot run here: when one of these tests fails, prove the hook instead ----


def test_the_batched_power_sgd_hook_does_not_run_in_torch():
    """torch 2.13 gives `_orthogonalize` a matrix where it wants a batch of them: so on every backend."""
    with pytest.raises(RankError, match="_orthogonalize") as failure:
        launch(partial(power_sgd, matrix_approximation_rank=1), powerSGD_hook.batched_powerSGD_hook, 3, 8, ranks=2)
    assert isinstance(failure.value.__cause__, AssertionError)


@pytest.mark.parametrize("backend", ["sim", "gloo"])
@pytest.mark.filterwarnings("ignore:.*torch.ao.quantization is deprecated")
@pytest.mark.filterwarnings("ignore:.*reduce_range will be deprecated")
def test_the_quantizing_hooks_need_nccls_form_of_a_gathered_result(backend: str):
    """They index the future of `all_gather` as one stacked tensor; gloo and the simulator give the list of tensors."""

    def program() -> str:  # answers with the refusal: an exception would end the processes, and new ones take seconds
        with pytest.raises(RuntimeError) as refusal:
            with_hook(quantization_hooks.quantization_pertensor_hook, None, torch.float32)
        return str(refusal.value)

    for refusal in launch(program, ranks=2, backend=backend).values:
        assert "invalid index of a 0-dim tensor" in refusal


# ---- post-local SGD ----


@pytest.mark.parametrize("in_subgroup", [True, False])
def test_post_local_sgd_averages_over_all_at_first_then_over_the_subgroup(in_subgroup: bool):
    def program() -> list[reference.Gradients]:
        subgroup, _ = dist.new_subgroups(2)
        state = PostLocalSGDState(None, subgroup, start_localSGD_iter=2, post_local_gradient_allreduce=in_subgroup)
        model = DistributedDataParallel(reference.build())
        model.register_comm_hook(state, post_localSGD_hook)
        steps = []
        for _ in range(3):
            model.zero_grad()
            reference.loss_of(model(reference.my_part())).backward()
            steps.append(reference.gradients(model))
        return steps

    own = of_each_rank()
    for rank, steps in enumerate(launch(program, ranks=RANKS).values):
        reference.assert_same(steps[0], reference.one_device())
        reference.assert_same(steps[1], reference.one_device())
        pair = rank // 2 * 2
        reference.assert_same(steps[2], mean_of(own[pair : pair + 2]) if in_subgroup else own[rank])


# ---- an optimizer in the hook ----


# torch's own, on importing and making its functional optimizers
@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated", "ignore:.*TorchScript.* is deprecated")
def test_an_optimizer_step_may_run_in_the_hook():
    """`_hook_then_optimizer`: every bucket is updated as soon as its gradients are there."""
    from torch.distributed.algorithms.ddp_comm_hooks.optimizer_overlap_hooks import (
        _hook_then_optimizer,
        _OptimizerHookState,
    )
    from torch.distributed.optim.functional_sgd import _FunctionalSGD

    def program() -> reference.Gradients:
        model = DistributedDataParallel(reference.build(), bucket_cap_mb=0.002)
        optimizer = _FunctionalSGD([], lr=0.1, _allow_empty_param_list=True)
        state = _OptimizerHookState(optimizer, list(model.parameters()))
        model.register_comm_hook(None, _hook_then_optimizer(default_hooks.allreduce_hook, state))
        for seed in range(2):
            model.zero_grad()
            reference.loss_of(model(reference.my_part(reference.batch(reference.BATCH, seed=seed)))).backward()
        return reference.parameters(model)

    model = reference.build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for seed in range(2):
        optimizer.zero_grad()
        reference.loss_of(model(reference.batch(reference.BATCH, seed=seed))).backward()
        optimizer.step()
    reference.launched(program, expected=reference.parameters(model))
