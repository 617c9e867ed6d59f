"""`torch.compile` in a simulated run: the function runs as it was written, operator by operator, and a note says so.

The simulator prices the operators that a rank dispatches. A compiler would replace them by kernels of its own, for this
machine's CPU and not for the simulated device, and would have to be run on a rank's thread beneath the clock: torch
does not compile under a dispatch mode, and would compile the clock's own Python instead, for seconds. So compiled
functions run eagerly, by torch's own switch, whatever their backend, mode and options:

    values                    those of the eager program
    time, kernels, bytes      the eager program's: an upper bound. A compiler fuses what stands between products
    unknown backends          torch's own error, as without the simulator

What a compiled step takes is the planner's: `predict(..., stack="torch-compile")` (lablib/plan/stack.py); what fusing
saves of a chain of operators stands in lablib/kernels/elementwise_chain.py. On gloo and nccl ranks compile as always.

Source: torch, `torch.compiler.set_stance("force_eager")`; torch/_dynamo/eval_frame.py (`_callback_from_stance`, asked
at each call of a compiled function).
Simplified: a program that sets the stance itself is left to its own choice.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from importlib import import_module
from typing import Any

import torch

from lablib.sim.replaced import replaced
from lablib.torch_compat import DYNAMO_FRAMES, DYNAMO_STANCE, loaded

NOTE = (
    "torch.compile: the simulator ran compiled functions operator by operator, so time, kernels and bytes are those of "
    "the eager program, more than a compiler's; predict(..., stack='torch-compile') estimates a compiled step"
)


class Compiled:
    """Whether the program of one run called a compiled function."""

    def __init__(self) -> None:
        self._was_called, self._is_forced = False, False

    @contextmanager
    def eagerly(self) -> Iterator[None]:
        """While this lasts, compiled functions run as they were written; torch's own ways are back afterwards."""
        with ExitStack() as stack:
            stack.enter_context(replaced((torch, "compile", self._in_a_run(torch.compile, stack))))
            if loaded(DYNAMO_FRAMES) is not None:
                self._force(stack)
            yield

    def notes(self) -> list[str]:
        """A sentence if there was one."""
        return [NOTE] if self._was_called else []

    def _in_a_run(self, compile: Callable[..., Any], stack: ExitStack) -> Callable[..., Any]:
        """torch.compile, which first imports the compiler: seconds that few programs need."""

        @wraps(compile)
        def compile_eagerly(*args: Any, **kwargs: Any) -> Any:
            import_module(DYNAMO_FRAMES)
            self._force(stack)
            return compile(*args, **kwargs)

        return compile_eagerly

    def _force(self, stack: ExitStack) -> None:
        """Once a run, until its end."""
        if self._is_forced:
            return
        self._is_forced = True
        module = loaded(DYNAMO_FRAMES)
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        asked = getattr(module, DYNAMO_STANCE)

        def noting(callback: Any) -> Any:
            # None and False stand for functions that were not compiled: torch.compiler.disable asks too.
            self._was_called |= callable(callback)
            return asked(callback)

        stack.enter_context(replaced((module, DYNAMO_STANCE, noting)))
