"""Position of a rank's program at an operator: phase, source line, recomputation.

Recomputation. Activation checkpointing runs forward code again inside backward, with autograd recording. Only a
differentiable backward (`create_graph=True`) also records there.
"""

import sys

import torch

from lablib.record.phase_path import recomputed
from lablib.sim.lines import Backward, Lines
from lablib.sim.ranks.rank import Rank
from lablib.torch_compat import graph_task_id, is_call_of


class ProgramPosition:
    """The position of one rank; computed at most once per operator, on demand.

    Attributes:
        found: cached result of `now` for the current operator; None: not computed.
        graph_task: the backward in which the operator runs; -1: none.
    """

    def __init__(self, rank: Rank, lines: Lines):
        self._rank = rank
        self._lines = lines
        self.found: tuple[str, str] | None = None
        self.graph_task = -1
        self._backward = Backward(-1)
        self._recorded = (-1, False)  # the last backward that recorded, and whether by create_graph=True

    def moves(self) -> None:
        """Called when another operator or communication runs."""
        self.found, self.graph_task = None, graph_task_id()

    def now(self) -> tuple[str, str]:
        """Path of phases and line: "forward", "train.py:12: loss = model(x)"."""
        if self.found is None:
            phase = self._rank.phase()
            if self.graph_task != -1 and phase.endswith("backward") and self.is_recompute():
                phase = recomputed(phase)
            if self._backward.graph_task != self.graph_task:
                self._backward = Backward(self.graph_task)
            self.found = phase, self._lines.here(self._backward)
        return self.found

    def is_recompute(self) -> bool:
        """Whether forward code is run again inside backward."""
        return self.graph_task != -1 and torch.is_grad_enabled() and not self._is_creating_graph()

    def is_forward(self) -> bool:
        """Whether autograd records the current code for a later backward."""
        return torch.is_grad_enabled() and (self.graph_task == -1 or not self._is_creating_graph())

    def _is_creating_graph(self) -> bool:
        if self._recorded[0] != self.graph_task:
            self._recorded = self.graph_task, _asked_for_graph()
        return self._recorded[1]


def _asked_for_graph() -> bool:
    """Inspect the call of autograd's engine: `_engine_run_backward(outputs, gradients, retain_graph, create_graph)`."""
    frame = sys._getframe(1)
    while frame is not None:
        if is_call_of(frame, "run_backward_in_graph"):
            given = frame.f_locals.get("args", ())
            return len(given) > 2 and given[2] is True
        frame = frame.f_back
    return False
