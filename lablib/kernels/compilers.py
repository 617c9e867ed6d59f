"""Compare compilers on one function: number of kernels, and seconds of a call.

    eager          each operator is a kernel, started by Python                      torch
    torchscript    the source is read once into a graph, run without Python         torch.jit.script (deprecated)
    eager backend  torch.compile finds the graph and runs it operator by operator    cost of finding the graph
    aot_eager      the same with its backward, decomposed into simpler operators     cost of this
    inductor       element-wise operators and sums fused, C++ or Triton written      fewer kernels and bytes
    jax            another library's compiler, XLA; the function is written for it   if jax is installed

On k element-wise operators eager starts k kernels and inductor one (elementwise_chain.py); a matrix product stays a
library's kernel ("extern") in both.

Cost: `first_call_s` includes the compilation, `call_s` is the median of later calls: torch.compile is worth it for many
calls with the same shapes (recompiles.py). Times differ from run to run and machine to machine: compare within one
table.
Source: Ansel et al., "PyTorch 2", 2024 (ASPLOS), https://doi.org/10.1145/3620665.3640366; Frostig, Johnson, Leary,
"Compiling machine learning programs via high-level tracing", 2018 (SysML) for JAX.
Simplified: a first call may find the programs of an earlier run on disk (torch keeps inductor's); TorchScript and the
backends that fuse nothing start the kernels of eager; XLA's are not counted.
"""

import re
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from statistics import median
from typing import Annotated, Any

import torch

from lablib.kernels.torch_compiler import NoCppCompiler, eager_operators, fresh, inductor_code, run_with_compiler
from lablib.signature import Count, OneOf, checked

WAYS = ("eager", "torchscript", "eager backend", "aot_eager", "inductor", "jax")
# A line of a generated `call` that starts a kernel: generated (C++, Triton), or of a library.
_STARTS = re.compile(r"^\s+(?:\w+ = )?(cpp_fused\w*|triton_\w+\.run|extern_kernels\.\w+|torch\.ops\.\w+\.\w+\.\w+)\(")


@dataclass(frozen=True, slots=True)
class CompilerTime:
    """One way to run the function."""

    way: str  # one of `WAYS`
    kernels: int | None = None  # kernels that a call starts; None if unknown
    first_call_s: float = 0.0  # first_call_s, call_s: seconds of the first call, and the median of the others
    call_s: float = 0.0
    value: Any = None  # its result
    skipped: str = ""  # the reason why it could not run, or ""


@checked
def count_kernels(fn: Callable[..., Any], *args: Any) -> tuple[list[str], list[str]]:
    """Kernels that a call starts: eager's operators; and inductor's by name, then operators between its graphs.

    `fn` is called three times. Drops earlier compilations. NoCppCompiler: a CPU's kernels cannot be compiled here.
    """
    codes, between = inductor_code(fn, *args)
    return eager_operators(fn, *args), [name for code in codes for name in _started(code)] + between


def _started(code: str) -> list[str]:
    """The kernels that a generated program's `call` starts."""
    _, _, body = code.partition("def call(")
    lines = body.partition("\nrunner = ")[0].splitlines()
    return [found[1].removesuffix(".run") for line in lines if (found := _STARTS.match(line))]


@checked
def compare(
    fn: Callable[..., Any],
    *args: Any,
    ways: Sequence[Annotated[str, OneOf(WAYS)]] = WAYS,
    repeats: Count = 5,
    jax_fn: Callable[..., Any] | None = None,
) -> tuple[CompilerTime, ...]:
    """`fn(*args)` in each way; ways that this machine lacks are skipped, with the reason.

    Arguments:
        fn: of tensors; TorchScript needs its source and its annotations.
        repeats: calls after the first.
        jax_fn: the same function written with jax.numpy; it gets `args` as arrays.
    """
    return tuple(_tried(way, fn, args, repeats, jax_fn) for way in ways)


def _tried(way: str, fn: Callable, args: tuple, repeats: int, jax_fn: Callable | None) -> CompilerTime:
    try:
        with fresh():
            run = _call(way, fn, args, jax_fn)
            took, value = [], None
            for _ in range(repeats + 1):
                began = time.perf_counter()
                value = run_with_compiler(run)
                took.append(time.perf_counter() - began)
        # Only now: counting inductor's kernels compiles, and would shorten the first call.
        kernels = _kernels(way, fn, args)
    except (NoCppCompiler, _CannotTry) as error:
        return CompilerTime(way, skipped=str(error))
    return CompilerTime(way, kernels, took[0], median(took[1:]), value)


class _CannotTry(Exception):
    """A way that this machine or this function does not have, with the reason."""


def _call(way: str, fn: Callable, args: tuple, jax_fn: Callable | None) -> Callable[[], Any]:
    if way == "jax":
        return _in_jax(args, jax_fn)
    if way == "torchscript":
        fn = _scripted(fn)
    elif way != "eager":
        fn = torch.compile(fn, backend=way.removesuffix(" backend"))
    return lambda: fn(*args)


def _kernels(way: str, fn: Callable, args: tuple) -> int | None:
    if way == "jax":
        return None
    return len(count_kernels(fn, *args)[1] if way == "inductor" else eager_operators(fn, *args))


def _scripted(fn: Callable) -> Callable:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return torch.jit.script(fn)
        except Exception as error:  # TorchScript's own errors have no class in common
            raise _CannotTry(f"TorchScript cannot read it: {str(error).strip().splitlines()[0]}") from None


def _in_jax(args: tuple, jax_fn: Callable | None) -> Callable[[], Any]:
    try:
        jax: Any = import_module("jax")  # not in the lock file: optional
    except ImportError:
        raise _CannotTry("jax is not installed; `pip install jax` adds its row") from None
    if jax_fn is None:
        raise _CannotTry("jax needs the function written with jax.numpy: pass jax_fn")
    arrays = [jax.numpy.asarray(arg.detach().numpy()) if isinstance(arg, torch.Tensor) else arg for arg in args]
    jitted = jax.jit(jax_fn)
    return lambda: jax.block_until_ready(jitted(*arrays))
