"""`torch.compile` in a simulated run: the function runs eagerly, operator by operator, with a note.

The simulator adds up the costs of the operators that a rank dispatches. A compiler would replace them by its own
kernels, for this machine's CPU and not for the simulated device, and would have to run on a rank's thread beneath the
clock: torch does not compile under a dispatch mode, and would compile the clock's own Python instead, for seconds. So
compiled functions run eagerly, by torch's own switch, regardless of backend, mode and options:

    values                    as in the eager program
    time, kernels, bytes      as in the eager program: an upper bound, as a compiler fuses operators between products
    unknown backends          torch's own error, as without the simulator

The planner estimates a compiled step: `predict(..., stack="torch-compile")` (lablib/plan/stack.py).
lablib/kernels/elementwise_chain.py shows the savings of fusion for a chain of operators. On gloo and nccl ranks compile
as always.

Source: torch, `torch.compiler.set_stance("force_eager")`; torch/_dynamo/eval_frame.py (`_callback_from_stance`, called
at each call of a compiled function).
Simplified: a program that sets the stance itself keeps its choice.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from importlib import import_module
from typing import Any

import torch

from lablib.process.replaced import replaced
from lablib.torch_compat import DYNAMO_FRAMES, DYNAMO_STANCE, loaded

NOTE = (
    "torch.compile: the simulator ran compiled functions operator by operator, so time, kernels and bytes are of "
    "the eager program, more than a compiler's; predict(..., stack='torch-compile') estimates a compiled step"
)


class Compiled:
    """Whether the program of one run called a compiled function."""

    def __init__(self) -> None:
        self._was_called, self._is_forced = False, False

    @contextmanager
    def eagerly(self) -> Iterator[None]:
        """Run compiled functions eagerly within this context; restore torch's functions afterwards."""
        with ExitStack() as stack:
            stack.enter_context(replaced((torch, "compile", self._in_a_run(torch.compile, stack))))
            if loaded(DYNAMO_FRAMES) is not None:
                self._force(stack)
            yield

    def notes(self) -> list[str]:
        """The note, if a compiled function was called."""
        return [NOTE] if self._was_called else []

    def _in_a_run(self, compile: Callable[..., Any], stack: ExitStack) -> Callable[..., Any]:
        """Wrap torch.compile: the first call imports the compiler, which takes seconds that few programs need."""

        @wraps(compile)
        def compile_eagerly(*args: Any, **kwargs: Any) -> Any:
            import_module(DYNAMO_FRAMES)
            self._force(stack)
            return compile(*args, **kwargs)

        return compile_eagerly

    def _force(self, stack: ExitStack) -> None:
        """Force the eager stance, once per run, until its end."""
        if self._is_forced:
            return
        self._is_forced = True
        module = loaded(DYNAMO_FRAMES)
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        asked = getattr(module, DYNAMO_STANCE)

        def noting(callback: Any) -> Any:
            # None and False are functions that were not compiled: torch.compiler.disable calls this too.
            self._was_called |= callable(callback)
            return asked(callback)

        stack.enter_context(replaced((module, DYNAMO_STANCE, noting)))
