"""Products and attention on a GPU: room on chip by the formula, without one; values at real sizes, where one is."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lablib.kernels.attention_plan import AttentionTiles
from lablib.kernels.flash_attention import TRITON, flash_attention, flash_attention_varlen
from lablib.kernels.flash_forward import forward_kernel
from lablib.kernels.matmul import matmul
from lablib.kernels.matmul_plan import MatmulTiles
from tests.kernels.attention_formulas import on_chip_bytes
from tests.kernels.drawn import sum_error


@pytest.mark.parametrize("rows", [32, 64])
def test_forward_multiplies_by_matrix_units_and_needs_no_more_room_than_the_formula(rows, tmp_path, monkeypatch):
    """Compiled for an H100, which needs no GPU. Shared memory holds tiles of q, k and v; sums are in registers."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    sizes = {"BLOCK_Q": rows, "BLOCK_K": 32, "BLOCK_W": 64}
    fixed = {"SCALE": 0.125, "IS_CAUSAL": True, "ACC": triton.language.float32, **sizes}
    pointers = {"lse_ptr": "*fp32", "starts_q_ptr": "*i64", "starts_k_ptr": "*i64"}
    names = forward_kernel.arg_names
    kinds = {name: pointers.get(name, "*bf16" if name.endswith("_ptr") else "i32") for name in names}
    constants = {(names.index(name),): value for name, value in fixed.items()}
    source = ASTSource(forward_kernel, kinds | dict.fromkeys(fixed, "constexpr"), constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert "mma" in compiled.asm["ptx"]
    assert compiled.metadata.shared <= on_chip_bytes(AttentionTiles(rows, 32), 64, itemsize=2)


def example(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda", dtype=dtype).requires_grad_()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_on_a_gpu_is_torchs(dtype, is_causal):
    q = example(2, 8, 1000, 80, dtype=dtype, seed=0)
    k, v = (example(2, 2, 1000, 80, dtype=dtype, seed=seed) for seed in (1, 2))
    do = example(2, 8, 1000, 80, dtype=dtype, seed=3).detach()
    tiles = AttentionTiles(64, 32)
    ours = flash_attention(q, k, v, is_causal, tiles=tiles, passes=TRITON)
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    theirs = F.scaled_dot_product_attention(exact[0], exact[1], exact[2], is_causal=is_causal, enable_gqa=True)
    got = (ours, *torch.autograd.grad(ours, (q, k, v), do))
    want = (theirs, *torch.autograd.grad(theirs, exact, do.double()))
    # A gradient of k or v is a sum over the queries of 4 heads, of scores that are sums over the width.
    length = 4 * 1000 + 80
    for mine, reference in zip(got, want, strict=True):
        largest = float(reference.detach().abs().max())
        off = float((mine.double() - reference).detach().abs().max())
        rounded = 0 if dtype == torch.float32 else 8 * torch.finfo(dtype).eps
        assert off <= (rounded + sum_error(length, dtype)) * largest


@pytest.mark.gpu
def test_documents_on_a_gpu_are_each_alone():
    lengths = [1, 0, 300, 64, 129]
    starts = torch.tensor([0, *lengths], device="cuda").cumsum(0)
    q, k, v = (example(sum(lengths), 4, 64, dtype=torch.float32, seed=seed) for seed in range(3))
    ours = flash_attention_varlen(q, k, v, starts, is_causal=True, tiles=AttentionTiles(32, 32), passes=TRITON)
    at = 0
    for length in lengths:
        one = [x[None, at : at + length].transpose(1, 2).double() for x in (q, k, v)]
        if length:
            theirs = F.scaled_dot_product_attention(one[0], one[1], one[2], is_causal=True)
            torch.testing.assert_close(ours[at : at + length].double(), theirs[0].transpose(0, 1), rtol=0, atol=1e-5)
        at += length


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "silu"])
def test_matmul_on_a_gpu_is_torchs(dtype, activation):
    a, weight, bias = (example(*shape, dtype=dtype, seed=0).detach() for shape in ((1000, 700), (900, 700), (900,)))
    ours = matmul(a, weight.T, bias, activation, MatmulTiles())
    z = F.linear(a.double(), weight.double(), bias.double())
    theirs = {"none": z, "relu": F.relu(z), "gelu": F.gelu(z), "silu": F.silu(z)}[activation]
    steepest = {"none": 1.0, "relu": 1.0, "gelu": 1.13, "silu": 1.1}[activation]
    sizes = F.linear(a.double().abs(), weight.double().abs(), bias.double().abs())
    bound = steepest * sum_error(701, dtype) * sizes + 2 * torch.finfo(dtype).eps * theirs.abs() + 2**-22
    assert bool(((ours.double() - theirs).abs() <= bound).all())


@given(length=st.integers(64, 2000), seed=st.integers(0, 99))
def test_the_bound_of_a_sum_passes_float32_and_refuses_tfloat32(length, seed):
    """Without a GPU: the bound of the tests above, where products are right and where they are too coarse."""
    a, b = torch.randn(2, 64, length, generator=torch.Generator().manual_seed(seed))
    exact, sizes = a.double() @ b.double().T, a.double().abs() @ b.double().abs().T
    bound = sum_error(length, torch.float32) * sizes
    assert bool(((a @ b.T).double() - exact).abs().le(bound).all())
    coarse_a, coarse_b = ((x.view(torch.int32) & ~0x1FFF).view(torch.float32) for x in (a, b))  # 10 bits of 23
    assert not bool(((coarse_a @ coarse_b.T).double() - exact).abs().le(bound).all())
