"""Every kernel passes the compiler of Triton and the assembler of NVIDIA, on any machine: code of an H100, not run.

The interpreter is Python and lets pass what the compiler refuses: a loop that changes the type of a variable, a tile
whose size is not known.
"""

# pyright: reportCallIssue=false
import inspect
from typing import Any

import pytest
import torch
from torch import Tensor

from lablib.kernels.attention_plan import AttentionTiles
from lablib.kernels.bias_gelu import bias_gelu
from lablib.kernels.cross_entropy import cross_entropy
from lablib.kernels.flash_attention import flash_attention, flash_attention_varlen
from lablib.kernels.jit import FLOATS, Kernel
from lablib.kernels.launch_checks import OPTIONS
from lablib.kernels.layer_norm import layer_norm
from lablib.kernels.matmul import matmul
from lablib.kernels.matmul_plan import MatmulTiles
from lablib.kernels.rms_norm import rms_norm
from lablib.kernels.softmax import softmax
from lablib.kernels.vector_add import vector_add

triton = pytest.importorskip("triton")
compiler, targets = pytest.importorskip("triton.compiler"), pytest.importorskip("triton.backends.compiler")
H100 = targets.GPUTarget("cuda", 90, 32)
TYPES = {
    torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64",
    torch.int32: "i32", torch.int64: "i64",
}  # fmt: skip


def numbers(*shape: int, dtype: torch.dtype) -> Any:
    return torch.ones(shape, dtype=dtype, requires_grad=True)


def qkv(*shape: int, dtype: torch.dtype) -> list[Any]:
    return [numbers(*shape, dtype=dtype) for _ in range(3)]


SMALL, SHORT = MatmulTiles(16, 16, 16), AttentionTiles(16, 16)  # large ones take long to compile
STARTS = torch.tensor([0, 3, 40], dtype=torch.int32)
CALLS = {
    "vector add": lambda d: vector_add(numbers(99, dtype=d), numbers(99, dtype=d)),
    "bias gelu": lambda d: bias_gelu(numbers(9, 200, dtype=d), numbers(200, dtype=d)),
    "bias gelu tanh": lambda d: bias_gelu(numbers(9, 200, dtype=d), numbers(200, dtype=d), "tanh"),
    "softmax": lambda d: softmax(numbers(3, 200, dtype=d)),
    "long softmax": lambda d: softmax(numbers(3, 200, dtype=d), 64),
    "rms norm": lambda d: rms_norm(numbers(9, 200, dtype=d), numbers(200, dtype=d)),
    "layer norm": lambda d: layer_norm(numbers(9, 200, dtype=d), numbers(200, dtype=d), numbers(200, dtype=d)),
    "cross entropy": lambda d: cross_entropy(numbers(3, 200, dtype=d), torch.zeros(3, dtype=torch.int64), block=64),
    "matmul": lambda d: matmul(numbers(99, 70, dtype=d), numbers(70, 50, dtype=d), numbers(50, dtype=d), "gelu", SMALL),
    "attention": lambda d: flash_attention(*qkv(1, 2, 40, 32, dtype=d), is_causal=True, tiles=SHORT),
    "attention of documents": lambda d: flash_attention_varlen(*qkv(40, 2, 32, dtype=d), STARTS, tiles=SHORT),
}


CASES = [
    pytest.param(dtype, name, marks=[] if is_usual else pytest.mark.thorough)
    for dtype in FLOATS
    for name in CALLS
    for is_usual in [dtype is torch.bfloat16 or (dtype is torch.float64 and name in ("rms norm", "matmul"))]
]


@pytest.mark.parametrize(("dtype", "name"), CASES)
def test_forward_and_backward_compile(name, dtype, monkeypatch, tmp_path):
    """Sums are in a wider type than bfloat16, and in float64 itself."""
    compiled = []

    def compile_instead(kernel, *args, grid, **kwargs):
        options = {key: kwargs.pop(key) for key in OPTIONS if key in kwargs}
        bound = inspect.signature(kernel.fn).bind(*args, **kwargs)
        bound.apply_defaults()
        constants = {param.name for param in kernel.params if param.is_constexpr}
        constants |= {key for key, one in bound.arguments.items() if one is None}
        signature = {key: "constexpr" if key in constants else type_of(one) for key, one in bound.arguments.items()}
        values = {(place,): one for place, (key, one) in enumerate(bound.arguments.items()) if key in constants}
        made = triton.compile(compiler.ASTSource(kernel, signature, values), target=H100, options=options)
        assert made.asm["cubin"]
        compiled.append(kernel.fn.__name__)

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(Kernel, "run", compile_instead)
    out = CALLS[name](dtype)
    assert compiled
    out.backward(torch.ones_like(out))
    assert name == "vector add" or len(compiled) > 1 or name == "cross entropy"


def type_of(value: object) -> str:
    """Of an argument that is no constant, as Triton names it."""
    if isinstance(value, Tensor):
        return "*" + TYPES[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"
