"""Operators of a training step, and the price of a list of them: seconds by pass and kind, and bytes kept.

    Op          one operator in one pass: a product, a streaming kernel, a collective, or attention
    work_of     a list of operators -> a `Work`: passes forward, for the inputs and for the weights, and bytes

A product costs its FLOPs and its bytes, a streaming kernel its bytes, a collective its wires (machine.py); each starts
kernels. All numbers may be arrays, one entry per plan: an operator that only some of the plans have has `times` 0 or 1.

Source: lablib/operators/op_bytes.py (bytes moved) and kernels.py (kernels started), which price the same operators one
by one as a program runs on the simulator.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from lablib.cost.arrays import Numbers, maximum, minimum
from lablib.models.transformer import Transformer
from lablib.plan.layer import dispatch, ring
from lablib.plan.layer.work import Sizes, Work
from lablib.plan.machine import Machine, PassTime

PASSES = ("forward", "input", "weight", "accumulate")
FORWARD, INPUT, WEIGHT, ACCUMULATE = PASSES
PRODUCT, EXCHANGE, ATTENTION, RING = "product", "exchange with experts", "attention", "attention in a ring"
_CORE: Mapping[str, str] = MappingProxyType({FORWARD: "core", INPUT: "core, backward"})


class Op(NamedTuple):
    """One operator in one pass."""

    name: str  # the operator, or the run of operators that a fused kernel replaces
    # "forward"; backward for the "input" or for the "weight"; or "accumulate", the addition of a micro-batch's gradient
    # to the sum of the earlier ones
    phase: str = FORWARD
    # PRODUCT, EXCHANGE, ATTENTION, RING, the name of a collective, or of a streaming kernel the kind of
    # lablib/cost/efficiency.py ("" if element-wise)
    kind: str = ""
    size_bytes: Numbers = 0.0  # read and written by a streaming kernel, or sent by a collective
    # arguments of the price. Of a product: m, n, k, matrices, dtype, and whether it sums over tokens; of attention:
    # sequences, heads, queries, keys, width of a head, whether it is backward, and of a window None and that; of a
    # collective: ranks, and their stride; of a streaming kernel of some kinds: elements.
    shape: tuple[Any, ...] = ()
    axis: str = ""  # of a collective: "tensor", "expert" or "context"
    kernels: Numbers = 1  # number of kernels that it starts
    times: Numbers = 1  # how often it runs; everything else is for once
    saves: Numbers = 0.0  # bytes that it keeps for its backward
    makes: Numbers = 0.0  # bytes of its output, of a linear layer
    holds: Numbers = 0.0  # temporary bytes in its backward: gradients of its output and of its inputs
    is_core: bool = False  # whether it is attention between its products, behind which the context axis hides
    is_late: bool = False  # whether it comes after all operators that keep something: recomputation may stop before it

    def repeated(self, n: Numbers) -> "Op":
        """n of them (or a share of one)."""
        return self._replace(times=n * self.times)


class Cut(NamedTuple):
    """One rank's share of a layer. `is_eager`: operators stay apart; otherwise one kernel replaces a run of them."""

    machine: Machine
    model: Transformer
    sizes: Sizes
    is_eager: bool

    @staticmethod
    def of(machine: Machine, model: Transformer, sizes: Sizes) -> "Cut":
        """With the operators of the machine's software."""
        return Cut(machine, model, sizes, machine.stack.is_eager)

    @property
    def rows(self) -> Numbers:
        """R: tokens of a micro-batch on this rank."""
        return self.sizes.rows

    @property
    def own_rows(self) -> Numbers:
        """Of these, the rank's own outside the products: R / t with sequence parallelism."""
        return self.sizes.rows / self.sizes.sequence_shards

    @property
    def row_bytes(self) -> int:
        """Bytes of D numbers."""
        return self.model.d_model * self.machine.width

    @property
    def kept_share(self) -> Numbers:
        """Of a product's gathered input: fused stacks keep their shard, and gather it again in backward."""
        return 1.0 if self.is_eager else 1 / self.sizes.sequence_shards

    @property
    def is_split(self) -> Numbers:
        """Whether there is sequence parallelism."""
        return 1.0 * (self.sizes.sequence_shards > 1)


def work_of(machine: Machine, ops: Iterable[Op]) -> Work:
    """The price of a list of operators."""
    passes = {name: dict.fromkeys(PassTime._fields, 0.0) for name in (*PASSES, *_CORE.values(), "late")}
    rings, peak = Work(PassTime(), PassTime(), PassTime()), 0.0
    size = dict.fromkeys(("saved_bytes", "output_bytes", "core_bytes", "attention_bytes"), 0.0)
    for op in ops:
        if op.kind == RING:
            rings = rings.plus(ring.ring(machine, *op.shape).times(op.times))
            continue
        field, seconds = _priced(machine, op)
        for name in (op.phase, *((_CORE[op.phase],) if op.is_core else ()), *(("late",) if op.is_late else ())):
            passes[name][field] = passes[name][field] + op.times * seconds
            passes[name]["kernels"] = passes[name]["kernels"] + op.times * op.kernels
        size["saved_bytes"] = size["saved_bytes"] + op.times * op.saves
        size["output_bytes"] = size["output_bytes"] + op.times * op.makes
        if op.is_core:
            kept = "attention_bytes" if op.kind == ATTENTION else "core_bytes"
            size[kept] = size[kept] + op.times * op.saves
        peak = maximum(peak, op.holds)
    for phase, core in _CORE.items():
        wires_s, compute_s = passes[core]["context_s"], PassTime(**passes[core]).compute_s
        hidden_s = minimum(wires_s, compute_s) * (1 - machine.derating.contention)
        for name in (phase, core):
            passes[name] |= {"context_s": wires_s - hidden_s, "hidden_context_s": hidden_s}
    forward, grad, weight, accumulate, core, _, late = (PassTime(**spent) for spent in passes.values())
    return Work(forward, grad, weight, core, peak_bytes=peak, **size, accumulate=accumulate, skipped=late).plus(rings)


def _priced(machine: Machine, op: Op) -> tuple[str, Numbers]:
    """The field of `PassTime`, and seconds."""
    if op.kind == PRODUCT:
        return "product_s", machine.product_s(*op.shape)
    if op.kind == ATTENTION:
        return "attention_s", machine.attention_s(*op.shape)
    if op.kind == EXCHANGE:
        return "expert_s", dispatch.exchange_s(machine, *op.shape)
    if op.axis:
        return f"{op.axis}_s", machine.collective_s(op.kind, op.size_bytes, *op.shape)
    return "memory_s", machine.stream_s(op.size_bytes, op.kind, *op.shape)
