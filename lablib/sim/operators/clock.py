"""The compute stream's clock: every operator that a rank dispatches is priced and moves the rank's clock.

A `TorchDispatchMode` sees each operator below autograd, in forward, backward and optimizer alike, with the tensors it
really gets. Pricing follows `lablib/cost`; the result does not depend on how fast the host is. The same look tells the
memory tracker (memory_tracker.py) what was allocated. `record_function` blocks pass through the dispatcher too, and
name the phase of the spans inside them.
"""

import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

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
    TorchDispatchMode,
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
    """Carry an op out with values."""
    return traits.op(*args, **kwargs), None


@lru_cache(maxsize=256)  # classes of the program are among them
def has_own_rule(types: tuple[type, ...]) -> bool:
    """Whether an op has an argument of a tensor class with a dispatch rule of its own, such as DTensor."""
    plain = torch.Tensor.__torch_dispatch__  # pyright: ignore[reportAttributeAccessIssue]
    return any(kind.__torch_dispatch__ != plain for kind in types)


@lru_cache(maxsize=256)  # classes of the program are among them
def is_fake(types: tuple[type, ...]) -> bool:
    """Whether torch only asks which shape an op would give (DTensor does, to choose a sharding): nothing is run."""
    return any(kind.__name__ == "FakeTensor" for kind in types)


def _is_num_steps() -> bool:
    """Whether a torch optimizer reads how many steps it has done: on a GPU these numbers are in the host's memory."""
    frame = sys._getframe(1)
    for _ in range(8):
        if frame is None or frame.f_code is read_num_steps.__code__:
            return frame is not None
        frame = frame.f_back
    return False


class Clock(TorchDispatchMode):
    """Prices what one rank computes, and tracks its memory. Enter it in the rank's thread.

    Args:
        rank: whose clock moves.
        pricer: the prices of the device it runs on.
        run: carries an op out, given `(traits, args, kwargs)`; returns what it gives, and that as an `Answer` if known.
        trackers: shared by the ranks of a run; None: nobody counts memory.
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
        self._is_step: list[bool] = []  # of the blocks under way, whether they are an Optimizer.step

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # The default wraps every call in torch._dynamo.disable, which imports the compiler (1.4 s) on the first.
        return False

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if self.memory_tracker is not None:
            self.memory_tracker.leave()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if types and has_own_rule(types):
            # Modes see an op before a tensor subclass (DTensor) does. Let it first become ops on this rank's shards and
            # communication: these are what the rank runs.
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
        position.found, position.graph_task = None, graph_task_id()  # position.moves(), without the call
        if (position.graph_task != -1) is not self._is_backward:
            self._turn()
        if traits.is_block:
            self._enter_or_leave(func, args)
        if types or num_function_modes():
            # A mode around the program (shapes.py) must not answer for the tensors that are looked at here.
            with DisableTorchFunction():
                return self._operator(traits, args, kwargs)
        return self._operator(traits, args, kwargs)

    def _of_operators(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """An operator that is made of operators (flex_attention, cond): each of these is carried out and priced."""
        TorchDispatchMode.__enter__(self)
        try:
            return kernels_of(func)[DispatchKey.CompositeExplicitAutograd](*args, **kwargs)
        finally:
            TorchDispatchMode.__exit__(self, None, None, None)

    def _operator(self, traits: OpTraits, args: tuple, kwargs: dict) -> Any:
        """Carry an operator out; note what it allocated and how long it took."""
        rank, tracker = self._rank, self.memory_tracker
        if traits.is_view and not rank.unwaited:  # more than half of all
            out = traits.run(*args, **kwargs)
            if tracker is not None:
                tracker.saw(traits, args, kwargs, out)
            return out
        # Nothing is in flight but what was issued and not waited for.
        before = self._in_flight.before(traits, args, kwargs) if rank.unwaited else None
        out, answer = self._run(traits, args, kwargs)
        if before:
            self._in_flight.after(before)
        if traits.waits and rank.pending:
            self._join_pending(args, kwargs)
        if tracker is not None:  # before the price: memory is taken when an operator starts
            tracker.saw(traits, args, kwargs, out)
        if traits.is_free or self._is_free_of_time or not rank.is_priced:
            if traits.op is read_number and not _is_num_steps():
                rank.host_waits()
            return out
        cost = answer.cost if answer is not None else None
        if cost is None:
            cost = self._pricer.cost(traits.op, args, kwargs, out)
            if answer is not None and not has_arithmetic(traits.op):  # that of a product hangs on torch's settings too
                answer.cost = cost
        phase, line = self._position.now()
        again = self._is_backward and self._position.is_recompute()
        what = cost.flops, cost.size_bytes, phase, cost.dtype, line, again
        rank.compute(traits.name, cost.time_s, *what, launch_s=cost.launch_s)
        return out

    def _turn(self) -> None:
        """A backward begins or ends."""
        self._is_backward = not self._is_backward
        if self.memory_tracker is not None and not self._is_backward:
            self.memory_tracker.categories.find_gradients()

    def _enter_or_leave(self, func: Any, args: tuple) -> None:
        """A `record_function` block opens or closes; `Optimizer.step` is one."""
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

    def _join_pending(self, args: tuple, kwargs: dict) -> None:
        """An operator that touches the result of a communication waits for it, as a stream would."""
        for tensor in tensors_in((*args, *kwargs.values())):
            if tensor.layout == torch.strided:
                self._rank.pending.join(tensor)
