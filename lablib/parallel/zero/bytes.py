"""Bytes held and sent at each stage of ZeRO, for any number of ranks, precision and sizes of units.

The formulas of `zero/module.py` take P parameters as one, cut into n equal parts. Here units have whole elements: a
shard of N elements on n ranks has ceil(N / n), so all ranks hold the same, with padding.

    stage   parameters      gradients        master copy   state        for each unit, N' = n ceil(N / n), s = N' / n
    0       p N             g N              m N           k N          plain data parallelism
    1       p N'            g N'             m s           k s
    2       p N'            g s              m s           k s
    3       p s             g s              m s           k s

    P = 7.5e9 on 64 ranks, p + g + m + k = 2 + 2 + 4 + 8:    120 GB  ->  31.4  ->  16.6  ->  1.9      (figure 1)

Cost: does not communicate. Bytes sent per rank and step, by rings: (n-1) s p of every gather, (n-1) s g of every
reduce-scatter.
Shapes: numbers only; a unit is its number of elements.
Source: Rajbhandari et al., "ZeRO", SC 2020, arXiv 1910.02054, figure 1 and table 1 (bytes), section 7 (traffic).
Simplified: at rest, between backward and step: no activations, no bucket in flight, no unit gathered, no fragmentation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from lablib.signature import Checked, Count, NonNegativeInt, Range, checked

Stage = Annotated[int, Range(ge=0, le=3), "use 0 (plain data parallelism), 1, 2 or 3"]


@dataclass(frozen=True, slots=True)
class TrainingPrecision(Checked):
    """Bytes per parameter, by purpose."""

    parameter: NonNegativeInt  # p, of computing and gathering
    gradient: NonNegativeInt  # g, of reducing and keeping gradients
    master: NonNegativeInt  # m, of the copy that the optimizer updates; 0: it updates the parameters
    state: NonNegativeInt  # k, of the optimizer's state
    step_counter: NonNegativeInt = 0  # bytes per tensor of the optimizer; torch's Adam counts its steps in 4

    @property
    def total(self) -> int:
        """Bytes for each parameter on one device; 16 with mixed precision and Adam."""
        return self.parameter + self.gradient + self.master + self.state


# With Adam: two numbers of state per parameter, in the dtype of the parameters that it updates.
FP32 = TrainingPrecision(4, 4, 0, 8)
MIXED = TrainingPrecision(2, 2, 4, 8)  # of Rajbhandari et al.: 2 + 2 + 12
MIXED_FP32_GRADIENTS = TrainingPrecision(2, 4, 4, 8)
BF16 = TrainingPrecision(2, 2, 0, 4)  # no master copy: small updates are lost


@dataclass(frozen=True, slots=True)
class HeldBytes:
    """Bytes that a rank holds at rest, by purpose, as in `TrainingPrecision`."""

    parameter: int
    gradient: int
    master: int
    state: int

    @property
    def total(self) -> int:
        return self.parameter + self.gradient + self.master + self.state


@checked
def zero_bytes(
    stage: Stage,
    unit_numels: Sequence[NonNegativeInt],
    world_size: Count,
    precision: TrainingPrecision = MIXED,
    *,
    frozen_numels: Sequence[NonNegativeInt] = (),
    multiple_of: Count = 1,
) -> HeldBytes:
    """Bytes that every rank holds between backward and step.

    Arguments:
        stage: 0 (plain data parallelism) to 3.
        unit_numels: trainable elements of each unit (buckets, in stages 0 to 2).
        world_size: number of ranks.
        frozen_numels: frozen elements of each unit: only parameters.
        multiple_of: a shard's elements are a multiple of this.
    """
    p, g = precision.parameter, precision.gradient
    full, shards = _sizes(unit_numels, world_size, multiple_of)
    # In stage 1 full gradients are also kept if reduced gradients have another dtype.
    gradients = {0: sum(unit_numels) * g, 1: full * g if p == g else sum(unit_numels) * p + shards * g}
    full_frozen, frozen_shards = sum(frozen_numels), _sizes(frozen_numels, world_size, multiple_of)[1]
    params = {0: sum(unit_numels) + full_frozen, 3: shards + frozen_shards}.get(stage, full + full_frozen)
    stepped = shards if stage else sum(unit_numels)
    return HeldBytes(
        parameter=params * p,
        gradient=gradients.get(stage, shards * g),
        master=stepped * precision.master,
        state=stepped * precision.state + len(unit_numels) * precision.step_counter,
    )


@checked
def zero_sent_bytes(
    stage: Stage,
    unit_numels: Sequence[NonNegativeInt],
    world_size: Count,
    precision: TrainingPrecision = MIXED,
    *,
    root_numel: NonNegativeInt = 0,
    num_micro_batches: Count = 1,
    no_sync: bool = False,
    reshard_after_forward: bool = True,
    multiple_of: Count = 1,
) -> int:
    """Bytes that every rank sends in a step, by rings: 2, 2, 2 and 3 times (n-1)/n S for one micro-batch.

    Arguments:
        stage: 0 (plain data parallelism) to 3.
        unit_numels: trainable elements of each unit, without the root of stage 3.
        world_size: number of ranks.
        root_numel: of stage 3's root, which stays gathered from forward to backward.
        num_micro_batches: forward and backward passes of a step.
        no_sync: reduce gradients only in the last, as always in stages 0 and 1.
        reshard_after_forward: stage 3 gathers again in backward.
    """
    if root_numel and stage < 3:
        raise ValueError(f"root_numel is only for stage 3: got {root_numel} in stage {stage}; add it to unit_numels.")
    units, root = (_sizes(numels, world_size, multiple_of)[1] for numels in (unit_numels, [root_numel]))
    num_reductions = 1 if no_sync or stage < 2 else num_micro_batches
    num_gathers = (1 + reshard_after_forward) * num_micro_batches if stage == 3 else 1
    gathered = units * num_gathers + root * num_micro_batches
    gather_bytes = precision.gradient if stage == 0 else precision.parameter  # an all-reduce gathers gradients
    return (world_size - 1) * (gathered * gather_bytes + (units + root) * num_reductions * precision.gradient)


def _sizes(numels: Sequence[int], world_size: int, multiple_of: int) -> tuple[int, int]:
    """Elements of padded units together, and of one rank's shards together."""
    shards = sum(-(-numel // (world_size * multiple_of)) * multiple_of for numel in numels)
    return shards * world_size, shards
