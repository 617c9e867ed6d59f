"""The compute stream's clock: every operator that a rank dispatches is priced and moves the rank's clock.

A `TorchDispatchMode` sees each operator below autograd, in forward, backward and optimizer alike, with the tensors it
really gets. Pricing follows `lablib/cost`; the result does not depend on how fast the host is. `record_function` blocks
pass through the dispatcher too, and name the phase of the spans inside them.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lablib.cost.op import is_free, op_cost, tensors_in
from lablib.hardware.device import Device
from lablib.sim.rank import Rank

_ENTER = torch.ops.profiler._record_function_enter_new.default
_READ = torch.ops.aten._local_scalar_dense.default  # what `item()` becomes
_EXIT = torch.ops.profiler._record_function_exit._RecordFunction


Run = Callable[[Any, tuple, dict], Any]


def call(func: Any, args: tuple, kwargs: dict) -> Any:
    """Carry an op out with values."""
    return func(*args, **kwargs)


@cache
def has_own_rule(types: tuple[type, ...]) -> bool:
    """Whether an op has an argument of a tensor class with a dispatch rule of its own, such as DTensor."""
    plain = torch.Tensor.__torch_dispatch__  # pyright: ignore[reportAttributeAccessIssue]
    return any(kind.__torch_dispatch__ != plain for kind in types)


@cache
def is_fake(types: tuple[type, ...]) -> bool:
    """Whether torch only asks which shape an op would give (DTensor does, to choose a sharding): nothing is run."""
    return any(kind.__name__ == "FakeTensor" for kind in types)


class Clock(TorchDispatchMode):
    """Prices what one rank computes. Enter it in the rank's thread.

    Args:
        rank: whose clock moves.
        device: what it runs on.
        run: carries an op out, given `(func, args, kwargs)`.
    """

    def __init__(self, rank: Rank, device: Device, run: Run = call):
        super().__init__()
        self._rank = rank
        self._run = run
        self._device = device
        self._is_free_of_time = device.memory_bandwidth_bytes_per_s == float("inf")

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # The default wraps every call in torch._dynamo.disable, which imports the compiler (1.4 s) on the first.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if has_own_rule(types):
            # Modes see an op before a tensor subclass (DTensor) does. Let it first become ops on this rank's shards and
            # communication: these are what the rank runs.
            return func(*args, **(kwargs or {})) if is_fake(types) else NotImplemented
        kwargs = kwargs or {}
        rank = self._rank
        if func is _ENTER:
            rank.enter_block(args[0])
        elif func is _EXIT:
            rank.leave_block()
        out = self._run(func, args, kwargs)
        if rank.pending and (func is _READ or not is_free(func)):
            # A view only names the memory: nothing waits until its bytes are read or written.
            self._join_pending(args, kwargs)
        if not self._is_free_of_time and not is_free(func):
            cost = op_cost(func, args, kwargs, out, self._device)
            rank.compute(str(func._schema.name).replace("::", "."), cost.time_s, cost.flops, cost.size_bytes)
        return out

    def _join_pending(self, args: tuple, kwargs: dict) -> None:
        """An operator that touches the result of a communication waits for it, as a stream would."""
        for tensor in tensors_in((*args, *kwargs.values())):
            if tensor.layout == torch.strided:
                end_s = self._rank.pending.pop(tensor.untyped_storage()._cdata, None)
                if end_s is not None:
                    self._rank.join(end_s)
