"""Clock of the compute stream: each dispatched operator has a cost and advances the rank's clock.

A `TorchDispatchMode` sees each operator below autograd, in forward, backward and optimizer, with its actual tensors.
Costs follow `lablib/cost`; the result does not depend on the speed of the host. The same pass reports allocations to
the memory tracker (memory_tracker.py). `record_function` blocks pass through the dispatcher too, and name the phase of
the spans inside them.
"""

import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from lablib.operators.mode import OperatorMode
from lablib.operators.op import has_arithmetic, tensors_in
from lablib.operators.pricer import Pricer
from lablib.sim.communication.in_flight import InFlight
from lablib.sim.lines import Lines
from lablib.sim.memory.memory_tracker import MemoryTracker, MemoryTrackers
from lablib.sim.operators.meta_kernels import Answer
from lablib.sim.operators.op_traits import OpTraits, traits_of
from lablib.sim.ranks.program_position import ProgramPosition
from lablib.sim.ranks.rank import Rank
from lablib.torch_compat import (
    FAKE_MODE,
    DisableTorchFunction,
    DispatchKey,
    HigherOrderOperator,
    enter_label,
    get_dispatch_mode,
    graph_task_id,
    kernels_of,
    leave_label,
    num_function_modes,
    read_num_steps,
    read_number,
)

Run = Callable[[OpTraits, tuple, dict], tuple[Any, Answer | None]]


def call(traits: OpTraits, args: tuple, kwargs: dict) -> tuple[Any, None]:
    """Run an op with values."""
    return traits.op(*args, **kwargs), None


@lru_cache(maxsize=256)  # includes classes of the program
def has_own_rule(types: tuple[type, ...]) -> bool:
    """Whether an argument of an op has a tensor class with its own dispatch rule, such as DTensor."""
    plain = torch.Tensor.__torch_dispatch__  # pyright: ignore[reportAttributeAccessIssue]
    return any(kind.__torch_dispatch__ != plain for kind in types)


@lru_cache(maxsize=256)  # includes classes of the program
def is_fake(types: tuple[type, ...]) -> bool:
    """Whether torch only infers the output shape of an op (DTensor does, to choose a sharding): nothing is run."""
    return any(kind.__name__ == "FakeTensor" for kind in types)


def _is_num_steps() -> bool:
    """Whether a torch optimizer reads its step count: on a GPU these numbers are in the host's memory."""
    frame = sys._getframe(1)
    for _ in range(8):
        if frame is None or frame.f_code is read_num_steps.__code__:
            return frame is not None
        frame = frame.f_back
    return False


class Clock(OperatorMode):
    """Adds the cost of each operator of one rank to its clock, and tracks its memory. Enter it in the rank's thread.

    Args:
        pricer: operator costs of its device.
        run: runs an op, given `(traits, args, kwargs)`; returns its result, and an `Answer` if known.
        trackers: shared by the ranks of a run; None: memory is not tracked.
    """

    def __init__(self, rank: Rank, pricer: Pricer, run: Run = call, trackers: MemoryTrackers | None = None):
        super().__init__()
        self._rank = rank
        self._run = run
        self._pricer = pricer
        self._position = ProgramPosition(rank, trackers.lines if trackers else Lines())
        self.memory_tracker = rank.memory_tracker = MemoryTracker(rank, trackers, self._position) if trackers else None
        self._in_flight = rank.in_flight = InFlight()
        self._is_free_of_time = pricer.device.memory_bandwidth_bytes_per_s == float("inf")
        self._facts: dict[int, OpTraits] = {}
        self._is_backward = False
        self._is_step: list[bool] = []  # for each open block, whether it is an Optimizer.step

    supports_higher_order_operators = True

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if self.memory_tracker is not None:
            self.memory_tracker.leave()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if types and has_own_rule(types):
            # Modes see an op before a tensor subclass (DTensor) does. Let it first become ops on this rank's shards and
            # communication: these are the ops that the rank runs.
            if is_fake(types):
                return func(*args, **kwargs)
            if self.memory_tracker is not None:
                self.memory_tracker.uses(tensors_in((*args, *kwargs.values())))
            return NotImplemented
        if get_dispatch_mode(FAKE_MODE) is not None:
            return func(*args, **kwargs)
        traits = self._facts.get(id(func))
        if traits is None:
            if isinstance(func, HigherOrderOperator):
                return self._of_operators(func, args, kwargs)
            traits = self._facts[id(func)] = traits_of(func)
        position = self._position
        position.found, position.graph_task = None, graph_task_id()  # position.moves(), inlined
        if (position.graph_task != -1) is not self._is_backward:
            self._is_backward = not self._is_backward
            if self.memory_tracker is not None and not self._is_backward:
                self.memory_tracker.categories.find_gradients()
        if traits.is_block:
            self._enter_or_leave(func, args)
        if types or num_function_modes():
            # A mode around the program (shapes.py) must not see the tensors that are inspected here.
            with DisableTorchFunction():
                return self._operator(traits, args, kwargs)
        return self._operator(traits, args, kwargs)

    def _of_operators(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Run an operator that consists of operators (flex_attention, cond), each with its own cost."""
        OperatorMode.__enter__(self)
        try:
            return kernels_of(func)[DispatchKey.CompositeExplicitAutograd](*args, **kwargs)
        finally:
            OperatorMode.__exit__(self, None, None, None)

    def _operator(self, traits: OpTraits, args: tuple, kwargs: dict) -> Any:
        rank, tracker = self._rank, self.memory_tracker
        if traits.is_view and not rank.unwaited:  # more than half of all operators
            out = traits.run(*args, **kwargs)
            if tracker is not None:
                tracker.saw(traits, args, kwargs, out)
            return out
        # Only unwaited communications can be in flight.
        before = self._in_flight.before(traits, args, kwargs) if rank.unwaited else None
        out, answer = self._run(traits, args, kwargs)
        if before:
            self._in_flight.after(before)
        if traits.waits and rank.pending:
            for tensor in tensors_in((*args, *kwargs.values())):  # communications that write to it, as a stream would
                if tensor.layout == torch.strided:
                    rank.pending.join(tensor)
        if tracker is not None:  # before the cost: memory is allocated when an operator starts
            tracker.saw(traits, args, kwargs, out)
        if traits.is_free or self._is_free_of_time or not (rank.is_priced or answer is not None):
            if traits.op is read_number and not _is_num_steps():
                rank.host_waits()
            return out
        cost = answer.cost if answer is not None else None
        if cost is None:
            cost = self._pricer.cost(traits.op, args, kwargs, out)
            if answer is not None and not has_arithmetic(traits.op):  # torch's settings change a product's cost
                answer.cost = cost
        phase, line = self._position.now()
        again = self._is_backward and self._position.is_recompute()
        what = cost.flops, cost.size_bytes, phase, cost.dtype, line, again
        rank.compute(traits.name, cost.time_s, *what, launch_s=cost.launch_s)
        return out

    def _enter_or_leave(self, func: Any, args: tuple) -> None:
        """Open or close a `record_function` block; `Optimizer.step` is one."""
        categories = self.memory_tracker.categories if self.memory_tracker is not None else None
        if func is enter_label:
            self._rank.enter_block(args[0])
            self._is_step.append(args[0].startswith("Optimizer.step"))
            if self._is_step[-1] and categories is not None:
                categories.enter_step()
        elif func is leave_label:
            self._rank.leave_block()
            if self._is_step and self._is_step.pop() and categories is not None:
                categories.leave_step()
