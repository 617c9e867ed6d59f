"""The kernels compiled: for a GPU that is not here, down to its machine code; and on one that is, at real sizes."""

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lablib.kernels
from lablib.kernels.attention_bytes import on_chip_bytes
from lablib.kernels.attention_plan import AttentionTiles
from lablib.kernels.flash_attention import TRITON, flash_attention, flash_attention_varlen
from lablib.kernels.jit import Kernel
from lablib.kernels.matmul import matmul
from lablib.kernels.matmul_plan import MatmulTiles

TILE = 32
ATTENTION = {"SCALE": 0.125, "IS_CAUSAL": True, "BLOCK_Q": TILE, "BLOCK_K": TILE, "BLOCK_W": 64}
MATMUL = {"ACTIVATION": "gelu", "BLOCK_M": TILE, "BLOCK_N": TILE, "BLOCK_K": TILE, "GROUP": 8}
GELU = {"TANH": False, "BLOCK_T": 16, "BLOCK_D": 64}
ROW = {"BLOCK": 1024}
NORM = {"BLOCK": 1024, "EPS": 1e-5}
CHOICES = {
    "forward_kernel": ATTENTION,
    "row_sums_kernel": {"BLOCK_Q": TILE, "BLOCK_W": 64},
    "dq_kernel": ATTENTION,
    "dk_dv_kernel": ATTENTION,
    "matmul_kernel": MATMUL,
    "bias_gelu_forward_kernel": GELU,
    "bias_gelu_backward_kernel": GELU,
    "cross_entropy_kernel": {"IGNORE": -100, "WITH_GRADIENT": True, "BLOCK": 1024},
    "layer_norm_forward_kernel": NORM,
    "layer_norm_backward_kernel": ROW,
    "rms_norm_forward_kernel": NORM,
    "rms_norm_backward_kernel": ROW,
    "softmax_kernel": ROW,
    "online_softmax_kernel": ROW,
    "softmax_backward_kernel": ROW,
    "long_softmax_backward_kernel": ROW,
    "vector_add_kernel": ROW,
}
WITH_PRODUCTS = {name for name, choices in CHOICES.items() if choices in (ATTENTION, MATMUL)}
# Pointers to something else than numbers of the activations' dtype.
SUMS = ("lse", "d", "mu", "r", "partial", "dw_partial", "db_partial", "loss", "scale")
POINTERS = {f"{name}_ptr": "*fp32" for name in SUMS} | dict.fromkeys(
    ("starts_q_ptr", "starts_k_ptr", "target_ptr"), "*i64"
)


def kernels() -> dict[str, Kernel]:
    """Every kernel of the package that is launched, by its name."""
    modules = [import_module(f"lablib.kernels.{each.name}") for each in iter_modules(lablib.kernels.__path__)]
    found = {name: each for module in modules for name, each in vars(module).items() if isinstance(each, Kernel)}
    return {name: each for name, each in found.items() if name.endswith("_kernel")}


def test_every_kernel_is_compiled_here():
    assert sorted(kernels()) == sorted(CHOICES)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CHOICES))
def test_compiles_for_an_h100_and_multiplies_by_its_matrix_units(name, tmp_path, monkeypatch):
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel: Any = kernels()[name]
    fixed = {**CHOICES[name], "ACC": triton.language.float32}
    names = kernel.arg_names
    numbers = {each: POINTERS.get(each, "*bf16" if each.endswith("_ptr") else "i32") for each in names}
    kinds = numbers | dict.fromkeys(fixed, "constexpr")
    source = ASTSource(kernel, kinds, {(names.index(each),): value for each, value in fixed.items()})
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert "cubin" in compiled.asm
    assert ("mma" in compiled.asm["ptx"]) == (name in WITH_PRODUCTS)
    if name == "forward_kernel":
        assert compiled.metadata.shared <= on_chip_bytes(AttentionTiles(TILE, TILE), 64, itemsize=2)


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
    for mine, reference in zip(got, want, strict=True):
        largest = float(reference.detach().abs().max())
        off = float((mine.double() - reference).detach().abs().max())
        assert off <= 8 * torch.finfo(dtype).eps * largest


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
    torch.testing.assert_close(ours.double(), theirs, rtol=torch.finfo(dtype).eps, atol=700 * 2**-22)
