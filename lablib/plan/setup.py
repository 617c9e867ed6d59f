"""One run, or many of the same kind: everything a prediction depends on, the choices apart from the numbers.

Choices (a model, a cluster, the software, the precision, the schedule) are the same for all plans of one call. Numbers
(the split, the batch) are plain numbers for one plan and numpy arrays for many: the formulas do not care.
"""

from dataclasses import dataclass
from functools import cached_property

from lablib.cost.arrays import Numbers, gcd, maximum
from lablib.hardware.link import Link
from lablib.models.transformer import Transformer
from lablib.pipeline.closed_form import V_SHAPED
from lablib.plan.default_stack import Software
from lablib.plan.gradient_compression import GradientCompression
from lablib.plan.machine import Machine
from lablib.plan.optimizers import Optimizer
from lablib.plan.recompute import Recompute


@dataclass(frozen=True)
class Choices:
    """What does not change from plan to plan.

    Attributes:
        model: the model's sizes.
        machine: cluster, software, derating, precision.
        recompute: what is computed again in backward.
        schedule: of the pipeline.
        optimizer, compression: records of optimizers.py and gradient_compression.py.
        zero_stage, reshard_after_forward, zero_plus_plus: as in `Parallel`.
        sequence_parallel: whether tensor ranks split what lies outside the products.
        trainable: "all", or "lora": then the model's own weights have no gradients and no states.
        offload: any of "optimizer" and "activations": kept in the host's memory.
        host_link: what lies between device and host.
        software: the stack's name, and why it was taken.
    """

    model: Transformer
    machine: Machine
    recompute: Recompute
    schedule: str
    optimizer: Optimizer
    compression: GradientCompression
    zero_stage: int
    reshard_after_forward: bool
    zero_plus_plus: tuple[str, ...]
    sequence_parallel: bool
    trainable: str
    offload: tuple[str, ...]
    host_link: Link
    software: Software


@dataclass(frozen=True)
class Split:
    """The numbers of a plan, or of many (arrays of one length).

    Attributes:
        data, tensor, pipeline, context, expert, chunks, replicas: as in `Parallel`.
        expert_tensor: ranks that share the matrices of each expert.
        micro_batch: sequences that go through a stage at once.
        num_microbatches: of a step, on one rank of the data axis.
        seq_len: tokens of a sequence.
    """

    data: Numbers
    tensor: Numbers
    pipeline: Numbers
    context: Numbers
    expert: Numbers
    expert_tensor: Numbers
    chunks: Numbers
    replicas: Numbers
    micro_batch: Numbers
    num_microbatches: Numbers
    seq_len: Numbers

    @cached_property
    def num_ranks(self) -> Numbers:
        """Ranks of the whole run."""
        return self.data * self.tensor * self.pipeline * self.context

    @cached_property
    def shards(self) -> Numbers:
        """Ranks over which ZeRO splits: data and context axes, but for copies of the whole (`replicas`)."""
        return maximum(self.data * self.context // self.replicas, 1)

    @cached_property
    def expert_copies(self) -> Numbers:
        """Ranks that have the same part of the same experts, `expert_stride` apart."""
        return self.tensor * self.context * self.data // self.expert_stride

    @cached_property
    def expert_replicas(self) -> Numbers:
        """How many copies of an expert's sharded state there are: `replicas`, as far as it has as many copies."""
        return gcd(self.expert_copies, self.replicas)

    @cached_property
    def expert_shards(self) -> Numbers:
        """Ranks over which ZeRO splits an expert's state, `expert_stride` apart."""
        return self.expert_copies // self.expert_replicas

    @cached_property
    def expert_stride(self) -> Numbers:
        """Ranks that together have all experts of a layer once."""
        return self.expert * self.expert_tensor


def has_both_ends(choices: Choices, split: Split) -> Numbers:
    """Whether the first stage has both ends of the model: as the only one, or in a V."""
    return (split.pipeline == 1) | (choices.schedule in V_SHAPED)
