"""Guards and recompiles: what a compiled function assumes of its arguments, and what it costs when that fails.

A compiled graph is right for what the compiler saw: these dtypes, these sizes, this value of a flag. Each assumption is
a guard, checked before every call. Where one fails, the function is compiled again and both are kept:

    compiled = torch.compile(f)
    compiled(ones(3))           compiles: x is float32, of 3 numbers
    compiled(ones(4))           guard "size 3" fails: compiles again, now for any size ("dynamic")
    compiled(ones(5))           all guards hold
    compiled(ones(5).double())  guard "float32" fails: compiles again

    dynamic=None (default)      the first size is taken as fixed, the second changes that: 2 compilations for n sizes
    dynamic=False               every size anew: n compilations, up to `recompile_limit` (8), then eager, and a warning
    dynamic=True                any size from the start: 1

One compilation takes from tenths of a second to minutes; a step takes milliseconds. So a batch whose length differs at
each step is padded, or the function compiled with dynamic=True, and numbers that change from step to step (a learning
rate) travel as tensors: a Python number is, at least at first, a guard on its value.

Cost: the calls, each with its compilation by a backend that changes nothing.
Source: Ansel et al., "PyTorch 2", 2024 (ASPLOS), https://doi.org/10.1145/3620665.3640366, sections 3.3 and 4; torch's
documentation, "Dynamic Shapes".
Simplified: guards are counted, and of those that fail the first is named, as torch does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lablib.kernels.torch_compiler import Compilation, compilations, fresh
from lablib.signature import checked


@dataclass(frozen=True, slots=True)
class Compiled:
    """One compilation, or the end of them.

    Attributes:
        call: which call it was for, from 0.
        function: what was compiled: its name, or that of the rest of it after a graph break.
        guards: how many are checked at each call from then on.
        reason: the guard that had failed, in torch's words; "" for a first compilation.
        given_up: why the compiler tries no more; calls that fit no compilation run eagerly from then on. "" else.
    """

    call: int
    function: str
    guards: int
    reason: str
    given_up: str = ""


@checked
def find_recompiles(
    fn: Callable[..., Any], calls: Sequence[tuple], dynamic: bool | None = None, backend: str | Callable = "eager"
) -> tuple[Compiled, ...]:
    """What is compiled while `fn` is called with each tuple of arguments. Forgets what was compiled before.

    Arguments:
        dynamic: as of torch.compile.
        backend: as of torch.compile; "eager" needs no C++ compiler, and guards are the same.

    Raises:
        whatever `fn` raises.
    """
    found: list[Compiled] = []
    with fresh():
        compiled = torch.compile(fn, dynamic=dynamic, backend=backend)
        for index, args in enumerate(calls):
            compiled(*args)
            new = compilations()[len(found) :]
            found += [_compiled(index, one) for one in new]
    return tuple(found)


def _compiled(call: int, one: Compilation) -> Compiled:
    given_up = one.given_up.partition("\n")[0]
    return Compiled(call, one.function, one.guards, one.reason.partition(": ")[2], given_up)
