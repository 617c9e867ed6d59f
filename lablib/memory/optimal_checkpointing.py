"""The fastest checkpointing plan for a memory budget and a chain of different layers, by dynamic programming.

Layer i takes f_i seconds forward and g_i backward. Its output has o_i bytes; for its backward it keeps k_i bytes in
addition to input and output. Let T(i, j, M) be the least time to run layers i to j forward and backward, with the input
of i in memory and M bytes free. There are two ways to begin:

    keep          run layer i, keep what its backward needs     f_i + g_i + T(i+1, j, M - k_i - o_i)
    checkpoint c  run layers i to c-1, keep only their output; f_i + .. + f_(c-1) + T(c, j, M - o_(c-1)) + T(i, c-1, M)
                  when backward reaches them, run them again

and T(i, i, M) = f_i + g_i, if k_i + o_i fit. The minimum over both and over all c is taken. The recomputed part has its
own plan, so checkpoints are nested. Segments of equal length (checkpointing.py) are a special case, so the optimum is
never worse.

Cost of planning: n^3 / 6 steps on arrays of `slots` budgets. Sizes are rounded up to 1 / slots of the budget, so it is
never exceeded, but may not be used completely. Executed by nested torch.utils.checkpoint.
Shapes: none; sizes in bytes, times in seconds or any other unit.
Source: Beaumont, Eyraud-Dubois, Hermann, Joly, Shilova, "Optimal checkpointing for heterogeneous chains: how to train
deep neural networks with limited memory", 2019, arXiv 1911.13214, section 4 (Rotor); Chen et al., 2016, arXiv
1604.06174.
Simplified: gradients of activations and temporaries within a layer are not counted; the chain's input belongs to the
caller.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, inf
from typing import Annotated

import numpy as np
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lablib.signature import Checked, Count, NonEmpty, NonNegative, Positive, checked

KEEP = 0  # a choice; any other number is the layer after a checkpoint


@dataclass(frozen=True, slots=True)
class ChainLayer(Checked):
    """A layer of a chain: seconds forward and backward, bytes kept besides input and output, output bytes."""

    forward_s: NonNegative
    backward_s: NonNegative
    kept_bytes: NonNegative
    output_bytes: NonNegative


@dataclass(frozen=True, slots=True)
class Keep:
    """Run `layer`, keep what its backward needs, continue with the rest."""

    layer: int
    rest: "Node | None"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Run `part` and keep only its output, continue with the rest; in backward run `part` again, by its plan."""

    part: "Node"
    rest: "Node"


Node = Keep | Checkpoint


@dataclass(frozen=True, slots=True)
class OptimalPlan:
    """A plan and its cost."""

    root: Node  # its first node
    time_s: float  # forward, backward, and recomputation
    budget_bytes: float  # the budget


@checked
def optimal_plan(
    layers: Annotated[Sequence[ChainLayer], NonEmpty()], budget_bytes: Positive, slots: Count = 200
) -> OptimalPlan:
    """The fastest plan that fits the budget. Raises ValueError with the smallest plan's bytes if none fits."""
    table = _Table(layers, budget_bytes / slots, slots)
    last = len(layers) - 1
    time_s = float(table.time_s[0][last][slots])
    if time_s == inf:
        least = least_budget_bytes(layers)
        if least <= budget_bytes:
            raise ValueError(
                f"no plan fits with sizes rounded up to {slots} slots: take more; {least:,.0f} bytes suffice."
            )
        raise ValueError(
            f"no plan fits {budget_bytes:,.0f} bytes: the smallest needs {least - budget_bytes:,.0f} more. "
            f"Try budget_bytes={ceil(least)}."
        )
    return OptimalPlan(table.node(0, last, slots), time_s, budget_bytes)


@checked
def least_budget_bytes(layers: Annotated[Sequence[ChainLayer], NonEmpty()]) -> float:
    """The smallest budget for which there is a plan: the same recursion, for bytes."""
    n = len(layers)
    least = [[inf] * n for _ in range(n)]
    for i in reversed(range(n)):
        own = layers[i].kept_bytes + layers[i].output_bytes
        least[i][i] = own
        for j in range(i + 1, n):
            best, transient = own + least[i + 1][j], 0.0
            for c in range(i + 1, j + 1):
                transient = max(transient, _transient(layers, i, c - 1))
                best = min(best, max(transient, layers[c - 1].output_bytes + least[c][j], least[i][c - 1]))
            least[i][j] = best
    return least[0][n - 1]


def run_plan(plan: OptimalPlan, layers: Sequence[Callable[[Tensor], Tensor]], x: Tensor) -> Tensor:
    """The chain's output by a plan; gradients are equal to the plain chain's."""
    return _run(plan.root, layers, x)


def _run(node: Node | None, layers: Sequence[Callable[[Tensor], Tensor]], x: Tensor) -> Tensor:
    while node is not None:
        if isinstance(node, Keep):
            x = layers[node.layer](x)
        else:
            x = checkpoint(partial(_run, node.part, layers), x, use_reentrant=False)
        node = node.rest
    return x


class _Table:
    """T(i, j, M) for all parts of a chain and all budgets M of 0 to `slots` slots, and the choice that gives it."""

    def __init__(self, layers: Sequence[ChainLayer], slot_bytes: float, slots: int):
        self._outputs = [ceil(layer.output_bytes / slot_bytes) for layer in layers]
        self._own = [ceil((layer.kept_bytes + layer.output_bytes) / slot_bytes) for layer in layers]
        n = len(layers)
        self.time_s = [[np.full(slots + 1, inf) for _ in range(n)] for _ in range(n)]
        self.choices = [[np.zeros(slots + 1, dtype=int) for _ in range(n)] for _ in range(n)]
        for i in reversed(range(n)):
            step_s = layers[i].forward_s + layers[i].backward_s
            self.time_s[i][i][self._own[i] :] = step_s
            for j in range(i + 1, n):
                best = step_s + _with_less(self.time_s[i + 1][j], self._own[i])
                forward_s, transient = 0.0, 0.0
                for c in range(i + 1, j + 1):
                    forward_s += layers[c - 1].forward_s
                    transient = max(transient, _transient(layers, i, c - 1))
                    option = forward_s + _with_less(self.time_s[c][j], self._outputs[c - 1]) + self.time_s[i][c - 1]
                    option[: ceil(transient / slot_bytes)] = inf
                    self.choices[i][j][option < best] = c
                    best = np.minimum(best, option)
                self.time_s[i][j] = best

    def node(self, i: int, j: int, budget: int) -> Node:
        """The plan for layers i to j with `budget` slots."""
        c = int(self.choices[i][j][budget])
        if c == KEEP:
            return Keep(i, self.node(i + 1, j, budget - self._own[i]) if i < j else None)
        return Checkpoint(self.node(i, c - 1, budget), self.node(c, j, budget - self._outputs[c - 1]))


def _with_less(time_s: np.ndarray, slots: int) -> np.ndarray:
    """By budget, the times with `slots` fewer slots; infinite if the budget is too small."""
    less = np.full_like(time_s, inf)
    less[slots:] = time_s[: max(len(time_s) - slots, 0)]
    return less


def _transient(layers: Sequence[ChainLayer], first: int, layer: int) -> float:
    """Bytes while a layer runs and keeps nothing: its output, and its input unless that is the part's input."""
    return layers[layer].output_bytes + (layers[layer - 1].output_bytes if layer > first else 0.0)
