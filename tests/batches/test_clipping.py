"""Clipped gradients are torch's, whole or in shards, on the simulator and on gloo; and the order of a step matters."""

# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false

import math

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lablib import RankError, launch
from lablib.batches.accumulation import accumulate
from lablib.batches.clipping import clip_grad_norm_, named_nonfinite
from lablib.data import Batch
from lablib.precision.loss_scaling import LossScaler, static_scale

F64 = torch.float64
shapes = st.lists(st.lists(st.integers(0, 5), max_size=3).map(tuple), min_size=1, max_size=5)
max_norms = st.sampled_from([1e-3, 0.5, 1.0, 7.0, 1e4])


def parameters(of_shapes: list[tuple[int, ...]], seed: int = 0, dtype: torch.dtype = F64) -> list[nn.Parameter]:
    """Parameters with a gradient; the second has none."""
    generator = torch.Generator().manual_seed(seed)
    params = [nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in of_shapes]
    for index, param in enumerate(params):
        if index != 1:
            param.grad = (3 * torch.randn(param.shape, generator=generator, dtype=F64)).to(dtype)
    return params


def flat(params) -> Tensor:
    return torch.cat([param.grad.flatten().double() for param in params if param.grad is not None])


@given(shapes=shapes, max_norm=max_norms, seed=st.integers(0, 99), dtype=st.sampled_from([F64, torch.float32]))
def test_norm_and_gradients_are_torchs(shapes, max_norm, seed, dtype):
    ours, theirs = parameters(shapes, seed, dtype), parameters(shapes, seed, dtype)
    norm = clip_grad_norm_(ours, max_norm)
    expected = torch.nn.utils.clip_grad_norm_(theirs, max_norm)
    rtol = 1e-12 if dtype == F64 else 1e-5
    assert norm.item() == pytest.approx(expected.item(), rel=rtol)
    torch.testing.assert_close(flat(ours), flat(theirs), rtol=rtol, atol=0.0)


@given(shapes=shapes, max_norm=max_norms, seed=st.integers(0, 99))
def test_it_is_as_long_as_allowed_and_points_where_it_did(shapes, max_norm, seed):
    params = parameters(shapes, seed)
    before = flat(params).clone()
    norm = clip_grad_norm_(params, max_norm)
    after = flat(params)
    assert norm.item() == pytest.approx(before.norm().item(), rel=1e-12)
    assert after.norm() <= max_norm
    if norm + 1e-6 <= max_norm:
        assert torch.equal(after, before)
    else:
        torch.testing.assert_close(after, before * (max_norm / (norm + 1e-6)), rtol=1e-12, atol=0.0)


def test_one_tensor_is_one_parameter_as_for_torch():
    ours, theirs = parameters([(3, 2)])[0], parameters([(3, 2)])[0]
    clip_grad_norm_(ours, 0.5)
    torch.nn.utils.clip_grad_norm_(theirs, 0.5)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("dtype, value", [(torch.float16, 300.0), (torch.bfloat16, 300.0), (torch.float32, 1e30)])
def test_squares_do_not_overflow(dtype, value):
    param = nn.Parameter(torch.zeros(4, dtype=dtype))
    param.grad = torch.full((4,), value, dtype=dtype)
    assert clip_grad_norm_([param], 1.0).item() == pytest.approx(2 * value, rel=1e-2)
    assert param.grad.tolist() == pytest.approx([0.5] * 4, rel=1e-2)
    assert param.grad.dtype == dtype


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_inf_and_nan_do_as_torchs(bad):
    ours, theirs = parameters([(3,), (), (2,)]), parameters([(3,), (), (2,)])
    for params in (ours, theirs):
        params[0].grad[1] = bad
    norm = clip_grad_norm_(ours, 1.0)
    expected = torch.nn.utils.clip_grad_norm_(theirs, 1.0)
    torch.testing.assert_close(norm, expected, equal_nan=True)
    torch.testing.assert_close(flat(ours), flat(theirs), equal_nan=True)
    with pytest.raises(RuntimeError, match=f"norm must be finite to clip by it: got {'inf' if bad > 0 else 'nan'}"):
        params = parameters([(3,)])
        params[0].grad[1] = bad
        clip_grad_norm_(params, 1.0, error_if_nonfinite=True)


def test_nonfinite_gradients_are_named():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 1))
    model(torch.ones(1, 2)).sum().backward()
    model[0].weight.grad[0, 0], model[1].bias.grad[1], model[2].weight.grad = math.nan, math.inf, None
    assert named_nonfinite(model.named_parameters()) == ["0.weight", "1.bias"]


def test_measuring_leaves_the_gradients_alone_and_no_gradient_has_norm_0():
    params = parameters([(4,)])
    before = flat(params).clone()
    assert clip_grad_norm_(params, math.inf).item() == pytest.approx(before.norm().item())
    assert torch.equal(flat(params), before)
    assert clip_grad_norm_([], 1.0).item() == 0.0
    assert clip_grad_norm_([nn.Parameter(torch.ones(2))], 1.0).item() == 0.0


def clip_shards(cuts: list[int], num_replicated: int, max_norm: float, bad_rank: int | None = None):
    """A program: rank r has the r-th part of one gradient, and some numbers that all have. Norm, shard, whole."""

    def program():
        rank = dist.get_rank()
        shard, whole = (
            nn.Parameter(torch.zeros(cuts[rank], dtype=F64)),
            nn.Parameter(torch.zeros(num_replicated, dtype=F64)),
        )
        values = gradient(sum(cuts) + num_replicated)
        shard.grad = values[: sum(cuts)].split(cuts)[rank].clone() if cuts[rank] else None
        whole.grad = values[sum(cuts) :].clone()
        if rank == bad_rank:
            shard.grad[0] = math.nan
        norm = clip_grad_norm_(
            [shard, whole], max_norm, sharded_over=dist.group.WORLD, replicated=[whole], error_if_nonfinite=True
        )
        return norm, shard.grad, whole.grad

    return program


def gradient(size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(3), dtype=F64)


@settings(max_examples=15)
@given(cuts=st.lists(st.integers(0, 6), min_size=1, max_size=5), num_replicated=st.integers(0, 4), max_norm=max_norms)
def test_shards_are_clipped_by_the_norm_of_the_whole(cuts, num_replicated, max_norm):
    whole = nn.Parameter(torch.zeros(sum(cuts) + num_replicated, dtype=F64))
    whole.grad = gradient(len(whole))
    expected_norm = torch.nn.utils.clip_grad_norm_([whole], max_norm)
    parts = whole.grad.split([*cuts, num_replicated])
    results = launch(clip_shards(cuts, num_replicated, max_norm), ranks=len(cuts)).values
    for (norm, shard, replicated), expected in zip(results, parts, strict=False):
        torch.testing.assert_close(norm, expected_norm, rtol=1e-12, atol=1e-300)
        torch.testing.assert_close(
            torch.zeros(0, dtype=F64) if shard is None else shard, expected, rtol=1e-12, atol=0.0
        )
        torch.testing.assert_close(replicated, parts[-1], rtol=1e-12, atol=0.0)


def test_clipping_shards_sends_one_number():
    run = launch(clip_shards([3, 4], 2, 0.1), ranks=2)
    assert [(t.name, t.tensor_bytes) for t in run.traffic.transfers] == [("all_reduce", 8)]


def test_gloo_clips_as_the_simulator():
    program = clip_shards([3, 0, 5], 2, 0.1)
    real, simulated = launch(program, ranks=3, backend="gloo"), launch(program, ranks=3)
    torch.testing.assert_close(real.values, simulated.values, rtol=1e-15, atol=0.0)


def test_a_nan_on_one_rank_is_an_error_on_all():
    with pytest.raises(RankError, match="norm must be finite"):
        launch(clip_shards([2, 3, 1], 1, 1.0, bad_rank=1), ranks=3)

    def program():
        try:
            return clip_shards([2, 3, 1], 1, 1.0, bad_rank=1)()
        except RuntimeError as error:
            return str(error)[:40]

    assert set(launch(program, ranks=3).values) == {"the gradients' norm must be finite to cl"}


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.logits = nn.Embedding(5, 5, dtype=F64)
        nn.init.zeros_(self.logits.weight)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return self.logits(tokens_BT)


def micro_batches() -> list[Batch]:
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(5, (6, 2, 4), generator=generator)
    return [Batch(*tokens[i : i + 2]) for i in (0, 2, 4)]


def test_under_accumulation_and_loss_scaling_clip_once_after_the_unscaling():
    parts, max_norm = micro_batches(), 0.05
    reference = Table()
    accumulate(reference, [Batch(torch.cat([b.inputs for b in parts]), torch.cat([b.targets for b in parts]))])
    true_norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), max_norm)
    assert true_norm > 2 * max_norm  # the clipping bites

    def step(order: str) -> tuple[float, Tensor]:
        model, scaler = Table(), LossScaler(static_scale(1024.0))
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        accumulate(model, parts, scaler)
        if order == "unscale, clip":
            scaler.unscale_(optimizer)
        norm = clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        return norm.item(), -model.logits.weight.detach()

    norm, update = step("unscale, clip")
    assert norm == pytest.approx(true_norm.item(), rel=1e-12)
    torch.testing.assert_close(update, reference.logits.weight.grad, rtol=1e-9, atol=1e-15)
    norm, update = step("clip, unscale")
    assert norm == pytest.approx(1024 * true_norm.item(), rel=1e-12)
    assert update.norm().item() == pytest.approx(max_norm / 1024, rel=1e-4)  # the step is 1024 times too short


def test_clipping_each_micro_batch_is_another_gradient():
    model, reference = Table(), Table()
    for batch in micro_batches():
        accumulate(model, [batch])
        clip_grad_norm_(model.parameters(), 0.05)
    accumulate(reference, micro_batches())
    clip_grad_norm_(reference.parameters(), 0.05)
    ours, right = model.logits.weight.grad, reference.logits.weight.grad
    assert torch.nn.functional.cosine_similarity(ours.flatten(), right.flatten(), dim=0) < 0.999


def test_bad_input_is_one_clear_error():
    with pytest.raises(ValueError, match="replicated must name parameters that are in params"):
        clip_grad_norm_(parameters([(2,)]), 1.0, replicated=parameters([(2,)]))
