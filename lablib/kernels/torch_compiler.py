"""Queries of torch's compilers by their private names (imported from `torch_compat`).

    compilations         compilations, and the guards that failed            torch._dynamo.utils.get_compilation_metrics
    inductor_code        the programs that inductor writes                   torch._inductor.utils.run_and_get_code
                         and operators between them                          the profiler's "CompiledFxGraph"
    eager_operators      operators of a function without a compiler          torch.utils._python_dispatch
    find_cpp_compiler    inductor's compiler for a CPU                       torch._inductor.cpp_builder

`fresh()` drops all compilations before and after: counts start at zero, and leave nothing. A notebook's compiled
functions are compiled again at their next call. torch 2.11 to 2.13 have these names; the public
`torch.compiler` counts nothing (its logs, TORCH_LOGS="graph_breaks,recompiles", print).

Compiling for a CPU needs a C++ compiler, which a laptop may lack: `NoCppCompiler` says so, once, with the remedy.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from lablib.operators.kernels import num_kernels
from lablib.operators.op import is_free
from lablib.torch_compat import DispatchKey, TorchDispatchMode, has_kernel, schema

REMEDY = (
    "install g++ (Debian, Ubuntu: `apt install g++`; macOS: `xcode-select --install`; Windows: the Visual Studio Build "
    'Tools), or use backend="aot_eager", which compiles nothing'
)


class NoCppCompiler(RuntimeError):
    """Inductor has no C++ compiler to compile with."""


@dataclass(frozen=True, slots=True)
class Compilation:
    """One frame compiled, or given up: then it runs operator by operator."""

    function: str  # its name; "" where torch does not say which
    file: str  # file, line: of its first line; of a frame given up, of the line that could not be followed
    line: int
    operators: int
    guards: int
    reason: str  # which guard of an earlier compilation had failed; "" for a first time
    given_up: str  # why; "" where it was compiled


@contextmanager
def fresh() -> Iterator[None]:
    """Drop the compilations from before the block, and at its end the block's."""
    from lablib.torch_compat import clear_compilation_metrics, dynamo_reset

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning, module="torch")  # its own, when it is imported
        dynamo_reset()
        clear_compilation_metrics()
        try:
            yield
        finally:
            dynamo_reset()
            clear_compilation_metrics()


def compilations() -> list[Compilation]:
    """Compilations since `fresh()` began, in order."""
    from lablib.torch_compat import get_compilation_metrics

    return [
        Compilation(
            metrics.co_name or "",
            metrics.fail_user_frame_filename or metrics.co_filename or "",
            metrics.fail_user_frame_lineno or metrics.co_firstlineno or 0,
            metrics.graph_op_count or 0,
            metrics.guard_count or 0,
            metrics.recompile_reason or "",
            metrics.fail_reason or "",
        )
        for metrics in get_compilation_metrics()
        if metrics.co_name or metrics.fail_reason
    ]


def inductor_code(fn: Callable[..., Any], *args: Any) -> tuple[list[str], list[str]]:
    """The programs that inductor writes for `fn(*args)`, and the operators that it leaves outside of them.

    The call is made twice, first to compile. No program is from inductor's caches on disk. Raises NoCppCompiler.
    """
    from lablib.torch_compat import functorch_config as functorch
    from lablib.torch_compat import inductor_config as inductor
    from lablib.torch_compat import run_and_get_code

    with fresh(), inductor.patch(fx_graph_cache=False), functorch.patch(enable_autograd_cache=False):
        compiled = torch.compile(fn)
        codes = run_with_compiler(lambda: run_and_get_code(compiled, *args))[1]
        return codes, _between_graphs(lambda: compiled(*args))


def run_with_compiler(run: Callable[[], Any]) -> Any:
    """What `run` returns, with one clear error where the C++ compiler is missing."""
    from lablib.torch_compat import CppCompileError, InvalidCxxCompiler

    try:
        return run()
    except Exception as error:
        inner = getattr(error, "inner_exception", error)  # torch wraps a backend's error
        if isinstance(inner, (InvalidCxxCompiler, CppCompileError)):
            what = str(inner).splitlines()[0]
            raise NoCppCompiler(f"inductor must have a working C++ compiler: {what} {REMEDY}.") from None
        raise


def find_cpp_compiler() -> str:
    """The command that inductor would compile with. Raises NoCppCompiler if there is none."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning, module="torch")
        from lablib.torch_compat import get_cpp_compiler

        return run_with_compiler(get_cpp_compiler)


class _Counting(TorchDispatchMode):
    """Notes each operator that starts a kernel, as often as it starts one."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not is_free(func):
            self.names += [schema(func).name.removeprefix("aten::")] * num_kernels(func, args)
        return out


def eager_operators(fn: Callable[..., Any], *args: Any) -> list[str]:
    """The operators that `fn(*args)` dispatches, one entry for each kernel; views and reservations start none."""
    with _Counting() as counting:
        fn(*args)
    return counting.names


def _between_graphs(call: Callable[[], Any]) -> list[str]:
    """Operators that start a kernel in a compiled `call` outside of inductor's programs: after a break, or given up.

    An operator that is made of others (linear, matmul: "CompositeImplicitAutograd") is not counted, its parts are.
    """
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    found: list[str] = []
    todo = [event for event in profile.events() or () if event.cpu_parent is None]
    while todo:
        event = todo.pop(0)
        overloads = _overloads(event.name)
        if any(is_free(one) for one in overloads) or "CompiledFxGraph" in event.name:
            continue
        if overloads and not any(one.has_kernel_for_dispatch_key(_COMPOSITE) for one in overloads):
            found.append(event.name.removeprefix("aten::"))
        else:
            todo[:0] = event.cpu_children
    return found


_COMPOSITE = DispatchKey.CompositeImplicitAutograd


def _overloads(name: str) -> list[Any]:
    """torch's operators of this name that the dispatcher knows (`aten::exp.int` is TorchScript's alone)."""
    space, _, short = name.partition("::")
    packet = getattr(getattr(torch.ops, space), short, None) if short.isidentifier() else None
    found = [getattr(packet, one) for one in packet.overloads()] if packet is not None else []
    return [one for one in found if has_kernel(one.name())]
