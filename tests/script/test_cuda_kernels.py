"""Operators that torch has for GPUs alone, on the simulated device: SyncBatchNorm's compute, others say their name."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lablib import RankError, launch


def batches(sizes: list[int], shape: tuple[int, ...]) -> list[Tensor]:
    """A rank's rows; each rank has another number of them."""
    torch.manual_seed(0)
    return [torch.randn(size, *shape, dtype=torch.float64) for size in sizes]


def normalized(norm: nn.Module, x: Tensor) -> list[Tensor]:
    """Two forwards and a backward: what comes out, the gradients, and the running statistics."""
    x = x.clone().requires_grad_()
    norm(x.detach() * 2)
    y = norm(x)
    (y * torch.linspace(-1, 2, y[0].numel(), dtype=y.dtype, device=y.device).view(y[0].shape)).square().sum().backward()
    assert x.grad is not None
    buffers = [buffer.clone() for buffer in norm.buffers()]
    return [y.detach(), x.grad, *(p.grad for p in norm.parameters() if p.grad is not None), *buffers]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3).filter(lambda sizes: sum(sizes) > 1),
    st.integers(1, 3),
    st.sampled_from([(), (3,), (2, 3)]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.1, None]),
)
def test_sync_batch_norm_is_batch_norm_of_all_ranks_rows(sizes, channels, more, affine, tracks, momentum):
    kind = [nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d][len(more)]
    rows = batches(sizes, (channels, *more))

    def make() -> nn.Module:
        norm = kind(channels, affine=affine, track_running_stats=tracks, momentum=momentum, dtype=torch.float64)
        for number, param in enumerate(norm.parameters()):
            nn.init.constant_(param, 0.5 + number)
        return norm

    def program() -> list[Tensor]:
        norm = nn.SyncBatchNorm.convert_sync_batchnorm(make().cuda())
        return [value.cpu() for value in normalized(norm, rows[dist.get_rank()].cuda())]

    values = launch(program, ranks=len(sizes), device="cuda").values
    y, dx, *others = normalized(make(), torch.cat(rows))
    gradients, statistics = others[: 2 * affine], others[2 * affine :]
    assert_same = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)
    assert_same(torch.cat([value[0] for value in values]), y)
    assert_same(torch.cat([value[1] for value in values]), dx)
    for number, gradient in enumerate(gradients):  # DDP takes the mean of these
        assert_same(sum(value[2 + number] for value in values), gradient)
    for value in values:
        assert_same(value[2 + 2 * affine :], statistics)


def test_sync_batch_norm_of_half_precision_sums_in_single():
    def program() -> tuple[torch.dtype, float]:
        norm = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(2).cuda())
        y = norm(torch.arange(4096, device="cuda").view(-1, 2).half())  # whose sum no half-precision number holds
        return y.dtype, y.float().mean().abs().item()

    assert all(dtype == torch.float16 and mean < 1e-3 for dtype, mean in launch(program, ranks=2, device="cuda").values)


def test_an_operator_that_cpus_lack_is_refused_by_its_name():
    def program() -> None:
        q = torch.ones(1, 1, 8, 8, device="cuda")
        torch.ops.aten._scaled_dot_product_flash_attention(q, q, q)

    with pytest.raises(
        RankError, match="aten::_scaled_dot_product_flash_attention has no answer .*GPUs alone"
    ) as caught:
        launch(program, ranks=2, device="cuda")
    assert "test_cuda_kernels.py" in str(caught.value) and "backend fallback" not in str(caught.value.__cause__)


def test_the_kernels_are_gone_with_the_run():
    launch(lambda: None, ranks=1, device="cuda")
    with pytest.raises(NotImplementedError):
        torch.batch_norm_stats(torch.ones(2, 2), 1e-5)
