"""Setup of a training step: model, machine, split and batch, of one plan or of many.

    predict        builds one Setup of plain numbers, checks the rules (rules.py), and evaluates the formulas
    predict_many   builds one for each group of plans with the same choices, with an array of one length per number

The choices (model, machine, schedule, ...) are the same for all plans of a Setup; the formulas of step.py and memory.py
take numbers and arrays in the same way.
"""

from dataclasses import dataclass
from functools import cached_property

from lablib.cost.arrays import Numbers, gcd, maximum
from lablib.hardware.link import Link
from lablib.models.transformer import Transformer
from lablib.pipeline.closed_form import V_SHAPED
from lablib.plan.default_stack import Software
from lablib.plan.gradient_compression import GradientCompression
from lablib.plan.layer import Sizes
from lablib.plan.machine import Machine
from lablib.plan.optimizers import Optimizer
from lablib.plan.parallel import Parallel
from lablib.plan.recompute import Recompute


@dataclass(frozen=True)
class Setup:
    """Everything that a prediction depends on."""

    model: Transformer  # the model's sizes
    machine: Machine  # cluster, software, derating, precision
    parallel: Parallel  # the given split; of many plans only its ZeRO and sequence parallelism
    recompute: Recompute  # the policy of activation recomputation
    schedule: str  # of the pipeline
    optimizer: Optimizer  # optimizer, compression: records of optimizers.py and gradient_compression.py
    compression: GradientCompression
    # "all", or "lora": the model's own weights have no gradients and no states; "qlora": and 4 bits each
    trainable: str
    # any of "optimizer", "activations" and "parameters", these with their gradients and the optimizer: kept in the
    # host's memory
    offload: tuple[str, ...]
    host_link: Link  # the link between device and host
    software: Software  # the stack's name, and the reason for it
    data: Numbers  # data, tensor, pipeline, context, expert, chunks, replicas: numbers or arrays, as in `Parallel`
    tensor: Numbers
    pipeline: Numbers
    context: Numbers
    expert: Numbers
    expert_tensor: Numbers  # ranks that share the matrices of each expert
    chunks: Numbers
    replicas: Numbers
    micro_batch: Numbers  # sequences that go through a stage at once
    batch: Numbers  # sequences per step, on all ranks together
    seq_len: Numbers  # tokens of a sequence

    # ---- choices ----

    @cached_property
    def zero_stage(self) -> int:
        """States that are split over the data axis: 0 none to 3 all."""
        return self.parallel.zero_stage

    @property
    def reshard_after_forward(self) -> bool:
        """Whether ZeRO-3 gathers each layer's parameters again for its backward."""
        return self.parallel.reshard_after_forward

    @property
    def zero_plus_plus(self) -> tuple[str, ...]:
        """Any of "qwZ", "hpZ" and "qgZ"."""
        return self.parallel.zero_plus_plus

    @cached_property
    def sequence_parallel(self) -> bool:
        """Whether tensor ranks split the activations outside the products."""
        return self.parallel.has_sequence_parallel

    @cached_property
    def has_weight_gradients(self) -> bool:
        """Whether the model's own weights are trained."""
        return self.trainable == "all"

    @property
    def has_host_parameters(self) -> bool:
        """Whether each rank's shard of the parameters, and of the gradients, is in the host's memory."""
        return "parameters" in self.offload

    @property
    def has_host_optimizer(self) -> bool:
        """Whether the optimizer runs on the host."""
        return "optimizer" in self.offload or self.has_host_parameters

    @property
    def has_narrow_weights(self) -> bool:
        """Whether the model's own weights have 4 bits, and are widened for every pass."""
        return self.trainable == "qlora"

    @cached_property
    def is_eager(self) -> bool:
        """Whether the stack runs operator by operator."""
        return self.machine.stack.is_eager

    # ---- numbers ----

    @cached_property
    def num_ranks(self) -> Numbers:
        """Ranks of the whole run."""
        return self.data * self.tensor * self.pipeline * self.context

    @cached_property
    def num_microbatches(self) -> Numbers:
        """Micro-batches of a step, on one rank of the data axis."""
        return self.batch // (self.data * self.micro_batch)

    @cached_property
    def layers(self) -> Numbers:
        """Layers of a stage on average."""
        return self.model.num_layers / self.pipeline

    @cached_property
    def has_both_ends(self) -> Numbers:
        """Whether the first stage has embedding and head: as the only one, or in a V."""
        return (self.pipeline == 1) | (self.schedule in V_SHAPED)

    @cached_property
    def shards(self) -> Numbers:
        """Ranks over which ZeRO splits: data and context axes, divided by the copies of the whole (`replicas`)."""
        return maximum(self.data * self.context // self.replicas, 1)

    @cached_property
    def expert_stride(self) -> Numbers:
        """Ranks that together have all experts of a layer once."""
        return self.expert * self.expert_tensor

    @cached_property
    def expert_copies(self) -> Numbers:
        """Ranks with the same part of the same experts, `expert_stride` apart."""
        return self.tensor * self.context * self.data // self.expert_stride

    @cached_property
    def expert_replicas(self) -> Numbers:
        """Copies of an expert's sharded state: `replicas`, or as many of them as divide `expert_copies`."""
        return gcd(self.expert_copies, self.replicas)

    @cached_property
    def expert_shards(self) -> Numbers:
        """Ranks over which ZeRO splits an expert's state, `expert_stride` apart."""
        return self.expert_copies // self.expert_replicas

    # ---- one layer ----

    @cached_property
    def sizes(self) -> Sizes:
        """One rank's share of a layer."""
        return Sizes(
            micro_batch=self.micro_batch,
            tokens=self.seq_len // self.context,
            tensor=self.tensor,
            context=self.context,
            expert=self.expert,
            sequence_shards=self.tensor if self.sequence_parallel else self.tensor * 0 + 1,
            expert_tensor=self.expert_tensor,
        )

    @cached_property
    def whole_bytes(self) -> Numbers:
        """Activations between two layers, of all tokens of a micro-batch on a context rank."""
        return self.sizes.rows * self.model.d_model * self.machine.width

    @cached_property
    def entering_bytes(self) -> Numbers:
        """A layer's input for one micro-batch, on one rank."""
        return self.whole_bytes / self.sizes.sequence_shards
