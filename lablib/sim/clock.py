"""The compute stream's clock: every operator that a rank dispatches is priced and moves the rank's clock.

A `TorchDispatchMode` sees each operator below autograd, in forward, backward and optimizer alike, with the tensors it
really gets. Pricing follows `lablib/cost`; the result does not depend on how fast the host is. The same look tells the
ledger (ledger.py) what was allocated. `record_function` blocks pass through the dispatcher too, and name the phase of
the spans inside them.

Recomputation. Activation checkpointing runs forward code again inside backward, with autograd recording. Nothing else
does, but backward itself when it is asked to be differentiable (`create_graph=True`).
"""

import sys
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lablib.cost.op import is_free, tensors_in
from lablib.hardware.device import Device
from lablib.sim.ledger import Books, Ledger
from lablib.sim.rank import Rank

_ENTER = torch.ops.profiler._record_function_enter_new.default
_READ = torch.ops.aten._local_scalar_dense.default  # what `item()` becomes
_EXIT = torch.ops.profiler._record_function_exit._RecordFunction
_task_id = torch._C._current_graph_task_id
_fake_mode = torch._C._get_dispatch_mode
_FAKE = torch._C._TorchDispatchModeKey.FAKE
_num_function_modes = torch._C._len_torch_function_stack


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


class Facts(NamedTuple):
    """What clock and ledger ask of every operator, found once.

    Attributes:
        op: the operator; kept, so that no other gets its identity.
        name: "aten.mm".
        first_name: what a block is called that this operator is the first to read.
        is_free: takes no time (lablib/cost).
        waits: whether it waits for a communication that fills one of its arguments.
        allocates: whether its result may be new memory.
        takes_lists: whether it has lists of tensors among its arguments.
        resizes: whether it may change the size of a storage.
        is_collective: whether it is a communication.
        gives_gradient: whether autograd uses it to put a gradient into `.grad`.
    """

    op: Any
    name: str
    first_name: str
    is_free: bool
    waits: bool
    allocates: bool
    takes_lists: bool
    resizes: bool
    is_collective: bool
    gives_gradient: bool


def facts_of(op: Any) -> Facts:
    """The facts of one operator, from its schema."""
    schema = op._schema
    plain = schema.name.split("::")[-1]
    free = is_free(op)
    return Facts(
        op,
        schema.name.replace("::", "."),
        "aten.lift_fresh" if plain == "lift_fresh" else "",
        free,
        # A view only names the memory: nothing waits until its bytes are read or written.
        not free or op is _READ,
        any(r.alias_info is None and "Tensor" in str(r.type) for r in schema.returns),
        any("Tensor" in str(a.type) and "List" in str(a.type) for a in schema.arguments),
        plain.startswith(("resize", "set_")) or any(a.is_out for a in schema.arguments),
        "c10d" in op.namespace,
        plain in ("detach", "clone", "new_empty_strided"),
    )


class Clock(TorchDispatchMode):
    """Prices what one rank computes, and keeps its ledger. Enter it in the rank's thread.

    Args:
        rank: whose clock moves.
        device: what it runs on.
        run: carries an op out, given `(func, args, kwargs)`.
        books: shared by the ranks of a run; None: nobody counts memory.
    """

    def __init__(self, rank: Rank, device: Device, run: Run = call, books: Books | None = None):
        super().__init__()
        self._rank = rank
        self._run = run
        self._books = books or Books()
        self._pricer = self._books.pricer(device)
        self.ledger = rank.ledger = Ledger(rank, books) if books else None
        self._is_free_of_time = device.memory_bandwidth_bytes_per_s == float("inf")
        self._facts: dict[int, Facts] = self._books.facts
        self._place: tuple[str, str] | None = None
        self._was_backward = False
        self._is_step: list[bool] = []  # of the blocks under way, whether they are an Optimizer.step
        self._creating_graph = (-1, False)  # a graph task, and whether backward itself is recorded in it

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # The default wraps every call in torch._dynamo.disable, which imports the compiler (1.4 s) on the first.
        return False

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if self.ledger is not None:
            self.ledger.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if types and has_own_rule(types):
            # Modes see an op before a tensor subclass (DTensor) does. Let it first become ops on this rank's shards and
            # communication: these are what the rank runs.
            if is_fake(types):
                return func(*args, **kwargs)
            if self.ledger is not None:
                self.ledger.uses(tensors_in((*args, *kwargs.values())), self)
            return NotImplemented
        if _fake_mode(_FAKE) is not None:
            return func(*args, **kwargs)
        facts = self._facts.get(id(func))
        if facts is None:
            facts = self._facts[id(func)] = facts_of(func)
        self._follow(func, args)
        out = self._run(func, args, kwargs)
        if _num_function_modes():
            # A mode of the program's surroundings (shapes.py) must not answer for the tensors that are looked at here.
            with torch._C.DisableTorchFunction():
                self._account(facts, args, kwargs, out)
        else:
            self._account(facts, args, kwargs, out)
        return out

    def _account(self, facts: Facts, args: tuple, kwargs: dict, out: Any) -> None:
        """Note what an operator allocated and how long it took."""
        rank = self._rank
        self._place = None
        if rank.pending and facts.waits:
            self._join_pending(args, kwargs)
        if self.ledger is not None:  # before the price: memory is taken when an operator starts
            self.ledger.saw(facts, args, kwargs, out, self)
        if facts.is_free or self._is_free_of_time or not rank.is_priced:
            return
        cost = self._pricer.cost(facts.op, args, kwargs, out)
        phase, line = self.place()
        is_recompute = phase == "recompute" or self.is_recompute()
        rank.compute(facts.name, cost.time_s, cost.flops, cost.size_bytes, phase, cost.dtype, line, is_recompute)

    def _follow(self, func: Any, args: tuple) -> None:
        """Where the program is: inside which blocks, and whether a backward has ended."""
        is_backward = _task_id() != -1
        ledger = self.ledger
        if self._was_backward and not is_backward and ledger is not None:
            ledger.find_gradients()
        self._was_backward = is_backward
        if func is _ENTER:
            self._rank.enter_block(args[0])
            self._is_step.append(ledger is not None and args[0].startswith("Optimizer.step"))
            if self._is_step[-1] and ledger is not None:
                ledger.enter_step()
        elif func is _EXIT:
            self._rank.leave_block()
            if self._is_step and self._is_step.pop() and ledger is not None:
                ledger.leave_step()

    def _join_pending(self, args: tuple, kwargs: dict) -> None:
        """An operator that touches the result of a communication waits for it, as a stream would."""
        for tensor in tensors_in((*args, *kwargs.values())):
            if tensor.layout == torch.strided:
                self._rank.pending.join(tensor)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """The program called `resize_` of a storage."""
        self._place = None
        if self.ledger is not None:
            self.ledger.resized(storage, self)

    def forget(self, *tensors: torch.Tensor) -> None:
        """These are about to change places."""
        if self.ledger is not None:
            self.ledger.forget(*tensors)

    def place(self) -> tuple[str, str]:
        """Phase and line of the operator under way."""
        if self._place is None:
            self._place = self._phase(), self._books.lines.here()
        return self._place

    def _phase(self) -> str:
        phase = self._rank.phase()
        return "recompute" if phase == "backward" and self.is_recompute() else phase

    def is_recompute(self) -> bool:
        """Whether this is forward code run again inside backward."""
        return _task_id() != -1 and torch.is_grad_enabled() and not self.is_creating_graph()

    def is_creating_graph(self) -> bool:
        """Whether the backward under way is itself recorded (`create_graph=True`)."""
        task = _task_id()
        if task == -1:
            return False
        if self._creating_graph[0] != task:
            self._creating_graph = task, _asked_for_graph()
        return self._creating_graph[1]


def _asked_for_graph() -> bool:
    """Look at the call of autograd's engine: `_engine_run_backward(outputs, gradients, retain_graph, create_graph)`."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "_engine_run_backward":
            given = frame.f_locals.get("args", ())
            return len(given) > 2 and given[2] is True
        frame = frame.f_back
    return False
