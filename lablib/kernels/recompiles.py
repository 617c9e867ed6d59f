"""Guards and recompiles: the assumptions of a compiled function about its arguments, and the cost of a broken one.

A compiled graph is right for the compiler's example: its dtypes, its sizes, its value of a flag. Each assumption is a
guard, checked before every call. If one fails, the function is compiled again and both versions are kept:

    compiled = torch.compile(f)
    compiled(ones(3))           compiles: x is float32, of 3 numbers
    compiled(ones(4))           guard "size 3" fails: compiles again, now for any size ("dynamic")
    compiled(ones(5))           all guards hold
    compiled(ones(5).double())  guard "float32" fails: compiles again

    dynamic=None (default)      the first size is taken as fixed, the second changes that: 2 compilations for n sizes
    dynamic=False               one per size: n compilations, up to `recompile_limit` (8), then eager, and a warning
    dynamic=True                any size from the start: 1

One compilation takes from tenths of a second to minutes; a step takes milliseconds. So batches of varying length are
padded, or the function is compiled with dynamic=True, and numbers that change from step to step (a learning rate) are
passed as tensors: a Python number is, at least at first, a guard on its value.

Cost: the calls, each with its compilation by a backend that changes nothing.
Source: Ansel et al., "PyTorch 2", 2024 (ASPLOS), https://doi.org/10.1145/3620665.3640366, sections 3.3 and 4; torch's
documentation, "Dynamic Shapes".
Simplified: guards are counted, and of those that fail the first is named, as torch does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lablib.kernels.torch_compiler import compilations, fresh
from lablib.signature import checked


@dataclass(frozen=True, slots=True)
class CompileRecord:
    """One compilation, or the end of them."""

    call: int  # number of the call, from 0
    function: str  # name of the compiled function, or of its rest after a graph break
    guards: int  # number of guards that each later call checks
    reason: str  # the guard that failed, in torch's words; "" for a first compilation
    given_up: str = ""  # why the compiler stops, so that calls that fit no compilation run eagerly; "" if it goes on


@checked
def find_recompiles(
    fn: Callable[..., Any], calls: Sequence[tuple], dynamic: bool | None = None, backend: str | Callable = "eager"
) -> tuple[CompileRecord, ...]:
    """Compilations while `fn` is called with each tuple of arguments. Drops earlier compilations.

    `dynamic`, `backend`: as of torch.compile; "eager" needs no C++ compiler, and guards are the same.
    """
    found: list[CompileRecord] = []
    with fresh():
        compiled = torch.compile(fn, dynamic=dynamic, backend=backend)
        for index, args in enumerate(calls):
            compiled(*args)
            for one in compilations()[len(found) :]:
                reason, given_up = one.reason.partition(": ")[2], one.given_up.partition("\n")[0]
                found.append(CompileRecord(index, one.function, one.guards, reason, given_up))
    return tuple(found)
