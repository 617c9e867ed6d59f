"""RMS norm as one operator on a cluster of GPUs: torch's own values and gradients, one span, a number kept per row."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from lablib import launch
from lablib.hardware import CLUSTERS
from lablib.sim.operators.gpu_kernels import kernels_of


def normed(shape, dims, dtype, has_weight):
    """Output and gradients of an RMS norm over the last `dims` dimensions."""
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    w = [torch.randn(shape[-dims:], dtype=dtype, requires_grad=True)] * has_weight
    y = F.rms_norm(x, shape[-dims:], *w)
    return y.detach(), *torch.autograd.grad((y * torch.randn_like(y)).sum(), [x, *w])


@given(
    shape=st.lists(st.integers(1, 7), min_size=1, max_size=4).map(tuple),
    dims=st.integers(1, 4),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    has_weight=st.booleans(),
)
def test_values_and_gradients_are_those_of_torchs_formula(shape, dims, dtype, has_weight):
    expected = normed(shape, min(dims, len(shape)), dtype, has_weight)
    with kernels_of(CLUSTERS["dgx-h100"].device):
        found = normed(shape, min(dims, len(shape)), dtype, has_weight)
    assert torch.equal(found[0], expected[0])
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.05}[dtype]
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def step():
    F.rms_norm(torch.ones(8, 64, requires_grad=True), (64,), torch.ones(64, requires_grad=True)).sum().backward()


@pytest.mark.parametrize("fidelity", ["values", "shapes"])
@pytest.mark.parametrize(("cluster", "is_one"), [("dgx-h100", True), ("laptop", False)])
def test_gpus_run_one_operator_each_way_and_processors_many(cluster, is_one, fidelity):
    names = [span.name for span in launch(step, ranks=1, cluster=cluster, fidelity=fidelity).timeline.select(rank=0)]
    fused = ["aten._fused_rms_norm", "aten._fused_rms_norm_backward"]
    assert [name for name in names if "rms_norm" in name] == fused * is_one
    assert ("aten.rsqrt" in names) is not is_one
