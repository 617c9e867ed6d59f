"""ZeRO stages 2 and 3 over the ranks with the same part of a model, in place of stage 1 (`mesh/optimizer.py`).

The parts that tensor, context and expert parallelism leave on a rank are cut again, over the ranks along data, expert
and context. `Zero2` and `Zero3` are used unchanged:

    stage   gradients                                 parameters
    1       whole, reduced once in a step             whole
    2       reduced in every micro-batch, cut         whole
    3       reduced in every micro-batch, cut         cut; gathered in forward and backward of every micro-batch

A unit of `Zero2` and `Zero3` has parameters that every tensor rank counts in the norm, and others that only the first
one counts, so the norm goes through the unit's pieces.

Cost for P parameters of w bytes on this rank, n = data * expert * context ranks (of experts data * context), K bytes of
optimizer state per parameter, m micro-batches:
    peak bytes  stage 2: (w + (w + K) / n) P, stage 3: (2 w + K) / n P; and units of which gradients or parameters are
                whole at a time (`zero/stage2.py`, `zero/stage3.py`)
    sent bytes  stage 2: (m + 1) (n-1)/n w P, stage 3: m (n-1)/n w (3 P - R), R outside the units; 8 for the norm
Shapes: a shard is [N / n], N the padded elements of a unit.
Source: Rajbhandari et al., "ZeRO", SC 2020, arXiv 1910.02054, section 5; Llama Team, 2024, arXiv 2407.21783, section
3.3.2 (sharding with tensor and context parallelism).
Simplified: one stage of a pipeline, as in DeepSpeed, whose PipelineEngine refuses stages 2 and 3: with several, the
gradients of a piece would be reduced m times. The first tensor rank counts whole units; others sum them by pieces.
"""

from collections.abc import Callable, Iterator
from itertools import starmap
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from lablib.parallel.experts.gradients import ExpertGroup
from lablib.parallel.mesh.optimizer import OptimizerFn, Owned, Sharded, ShardedOptimizer
from lablib.parallel.tensor.state import each_parameter
from lablib.parallel.zero.module import STAGES


class ZeroOptimizer(ShardedOptimizer):
    """The optimizer of this rank's part at stage 2 or 3; `module` is `piece`, sharded.

    Arguments:
        stage: 2 or 3.
        part, piece: the module with the model's names, and the one that computes with the same parameters.
        group: of the ranks with the same part, along data, expert and context.
        counts, optimizer_fn, experts: as for `CombinedOptimizer`.
    """

    def __init__(
        self,
        stage: int,
        part: nn.Module,
        piece: nn.Module,
        group: dist.ProcessGroup,
        counts: Callable[[Owned], bool],
        optimizer_fn: OptimizerFn,
        experts: ExpertGroup,
    ):
        owned = {one.param: one for one in starmap(Owned, each_parameter(part))}
        named = {name: owned[param] for name, param in piece.named_parameters()}
        self.module = STAGES[stage](piece, group, experts=experts)
        parts = [(unit, [named[name] for name in unit.layout.names]) for unit in self.module.units]
        self.buffers = [Sharded(some, unit, list(map(counts, some))) for unit, some in parts]
        self.optimizer = optimizer_fn([buffer.unit.master for buffer in self.buffers])

    def begin(self) -> None:
        self.module.zero_grad()

    def reduce(self, number: int | None, _: Any = None) -> None:
        """Nothing: each micro-batch's backward has reduced its gradients."""

    def finish(self) -> None:
        self.module.before_step()

    def gather(self) -> None:
        """All-gather the parameters at stage 2, free the gathered ones at stage 3. Communicates."""
        self.module.after_step()

    def parameters(self) -> Iterator[tuple[Owned, Tensor]]:
        """The parameters, cut only over tensor ranks. Communicates."""
        return self.gathered(lambda buffer: buffer.unit.master)
