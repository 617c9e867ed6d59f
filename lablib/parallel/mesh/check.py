"""A combination of model, mesh, batch and schedule as data, checked before any rank starts.

    how = Combination(config, Mesh(data=2, pipeline=2, tensor=2), batch_size=8, seq_len=16, num_micro_batches=2)
    launch(program, ranks=how.mesh.num_ranks)            # `CombinedStep(how, ...)` on every rank

`how.mesh.require(ranks)` raises ValueError unless the product of the axes is the number of ranks.

Each axis divides one quantity:

    data       the sequences of a batch         batch_size / (data * expert * num_micro_batches) in a micro-batch
    expert     experts, and sequences as data   the same number of experts on every rank
    context    the tokens of each sequence      the same number on every rank, 2 * context pieces with zigzag
    tensor     heads, vocabulary, MLP           with sequence parallelism also a context rank's tokens
    pipeline   layers, in pieces                num_chunks on each rank; enough micro-batches for the schedule

A missing axis has one rank. The order of the axes is their placement (`mesh.py`) and changes only the order of sums.

Cost: a model without memory, and the plan of the pipeline; some tens of milliseconds for a hundred layers.
Source: Narayanan et al., SC 2021, arXiv 2104.04473, section 3; Llama Team, 2024, arXiv 2407.21783, section 3.3.2 (four
axes); Rajbhandari et al., "DeepSpeed-MoE", 2022, arXiv 2201.05596, section 5.2 (experts).
Simplified: a GPT or a Llama; micro-batches have equal numbers of sequences, context ranks equal numbers of tokens. With
experts each layer is a mixture, and tensor ranks cut each expert.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any

import torch
from torch import nn

from lablib.errors import unknown_name
from lablib.models.gpt import GPT
from lablib.models.llama import Llama, model_of
from lablib.models.llama_sizes import LlamaConfig
from lablib.models.sizes import GPTConfig
from lablib.parallel.context.model import Attend, MakeOrder, check_context
from lablib.parallel.context.order import zigzag_order
from lablib.parallel.context.ring import ring_attention
from lablib.parallel.experts.exchange import check_experts
from lablib.parallel.experts.layer import mixtures, with_experts
from lablib.parallel.mesh.mesh import Mesh
from lablib.parallel.tensor import plan as tensor_plans
from lablib.parallel.tensor.vocabulary import padded_vocabulary
from lablib.pipeline.balance import balanced_cut
from lablib.pipeline.communication import with_communication
from lablib.pipeline.executor import flops_of, units_of
from lablib.pipeline.messages import CommunicationPlan
from lablib.pipeline.plan import Kind
from lablib.pipeline.schedules import SCHEDULES, make
from lablib.signature import Count, NonNegativeInt, OneOf, Range, check_fields
from lablib.torch_compat import disable_current_modes

DATA, EXPERT, CONTEXT, TENSOR, PIPELINE = "data", "expert", "context", "tensor", "pipeline"
AXES = (DATA, EXPERT, CONTEXT, TENSOR, PIPELINE)


@dataclass(frozen=True)
class Combination:
    """Settings for training a GPT or a Llama on a mesh."""

    config: GPTConfig | LlamaConfig  # of the whole model
    mesh: Mesh  # axes among data, expert, context, tensor and pipeline, in any order
    batch_size: Count  # sequences per step, over all ranks
    seq_len: Count  # tokens per sequence
    num_micro_batches: Count = 1  # per replica and step
    schedule: Annotated[str, OneOf(SCHEDULES)] = "1f1b"  # of the pipeline
    num_chunks: Count = 1  # pieces of the model on each rank, for schedules that take it
    sequence_parallel: bool = False  # norms and the residual stream cut over the tensor axis
    # for a vocabulary that the tensor ranks do not divide: "refuse", "chunk" or "pad"
    uneven_vocabulary: tensor_plans.Uneven = "refuse"
    # order, attention: of the context axis; attention is `ring_attention` or a function with the same arguments
    order: MakeOrder = zigzag_order
    attention: Attend = ring_attention
    # "full": only the inputs of layers are held; "selective": also results of matrix products and attention
    recompute: Annotated[str, OneOf(("none", "selective", "full"))] = "none"
    # the dtype of products; None: the dtype of the parameters
    autocast: Annotated[torch.dtype, OneOf((torch.bfloat16, torch.float16))] | None = None
    num_experts: NonNegativeInt = 0  # of each layer, spread over the expert axis; 0: MLPs
    num_active: Count = 2  # experts that a token visits
    zero_stage: Annotated[int, Range(ge=1, le=3)] = 1  # 2 and 3 without pipeline ranks
    # the units of `units_of(model)` in each piece, with the smallest possible largest piece
    units: tuple[range, ...] = field(init=False, default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        check_fields(self)
        for axis in self.mesh.axes:
            if axis not in AXES:
                raise unknown_name("axis", axis, list(AXES))
        if self.zero_stage > 1 and (stages := self.size(PIPELINE)) > 1:
            raise ValueError(
                f"zero_stage must be 1 with pipeline ranks, as every micro-batch would reduce its gradients again: got "
                f"{self.zero_stage} with {stages} stages; try zero_stage=1."
            )
        context, cuts = self.size(CONTEXT), self.size(TENSOR) > 1 and not self.sequence_parallel
        if self.recompute == "selective" and (context > 1 or cuts):
            got = f"{context} context ranks" if context > 1 else "tensor ranks without sequence parallelism"
            raise ValueError(
                f'recompute must be "none" or "full" with {got}, whose collectives write into results that "selective" '
                'keeps: got "selective"; try "full".'
            )
        self._check_batch()
        self._check_sequence()
        self._check_vocabulary()
        self._check_experts()
        kind = SCHEDULES[self.schedule]
        self._check_layers(self.num_chunks if kind.takes_chunks else kind.num_chunks)  # a plan may be long
        plan = self.plan.plan
        self._check_split(any(action.kind is Kind.W for row in plan for action in row))
        with disable_current_modes():  # without simulated time and memory within a launch
            model = self.model(device="meta")
            if self.size(TENSOR) > 1:
                tensor_plans.check_plan(model, self.tensor_plan, self.size(TENSOR))
            costs = [flops_of(unit, self.seq_len) - self._unvisited_flops(unit) for unit in units_of(model)]
        object.__setattr__(self, "units", balanced_cut(costs, plan.num_pieces))

    @cached_property
    def plan(self) -> CommunicationPlan:
        """The pipeline's, with messages."""
        return with_communication(make(self.schedule, self.size(PIPELINE), self.num_micro_batches, self.num_chunks))

    @cached_property
    def tensor_plan(self) -> tensor_plans.Plan:
        """The cuts of modules over the tensor axis."""
        plans = {
            False: (tensor_plans.GPT_PLAN, tensor_plans.GPT_SEQUENCE_PLAN),
            True: (tensor_plans.LLAMA_PLAN, tensor_plans.LLAMA_SEQUENCE_PLAN),
        }
        whole = plans[isinstance(self.config, LlamaConfig)][self.sequence_parallel]
        plan = {
            name: replace(style, uneven=self.uneven_vocabulary) if isinstance(style, tensor_plans.Vocabulary) else style
            for name, style in whole.items()
            if not (self.num_experts and f"{name}.".startswith("blocks.*.mlp."))  # `ExpertParallel` cuts mixtures
        }
        if self.num_experts and self.sequence_parallel:
            plan["blocks.*.mlp"] = tensor_plans.OfExperts()
        return plan

    def model(self, seed: int = 0, **options: Any) -> GPT | Llama:
        """The whole model, with its experts; `options` as in `model_of`."""
        model, is_meta = model_of(self.config, seed=seed, **options), options.get("device") == "meta"
        if not self.num_experts:
            return model
        return with_experts(model, self.num_experts, self.num_active, seed=seed, balanced=is_meta)

    def size(self, axis: str) -> int:
        """Ranks along an axis; 1 if the mesh does not have it."""
        return self.mesh.sizes.get(axis, 1)

    @property
    def full_mesh(self) -> Mesh:
        """The mesh with all axes, missing ones of size 1: the same ranks at the same places."""
        return Mesh(**self.mesh.sizes, **{axis: 1 for axis in AXES if axis not in self.mesh.axes})

    @property
    def replicas(self) -> int:
        """Ranks with different sequences."""
        return self.size(DATA) * self.size(EXPERT)

    @property
    def micro_batch_size(self) -> int:
        """Sequences of a micro-batch on one replica."""
        return self.batch_size // (self.replicas * self.num_micro_batches)

    def _unvisited_flops(self, unit: nn.Module) -> float:
        """Of a token's forward pass, FLOPs of the experts that it does not visit."""
        numel = sum(param.numel() for each in mixtures(unit) for param in each.experts.parameters())
        return 2 * numel * (1 - self.num_active / max(1, self.num_experts))

    def _check_batch(self) -> None:
        replicas, num = self.replicas, self.num_micro_batches
        if self.batch_size % (replicas * num):
            axes = "data * expert" if self.size(EXPERT) > 1 else "data"
            raise ValueError(
                f"batch_size must be a multiple of {axes} * num_micro_batches: got {self.batch_size} for {replicas} * "
                f"{num}; try {-(-self.batch_size // (replicas * num)) * replicas * num}."
            )

    def _check_sequence(self) -> None:
        if self.seq_len > self.config.max_seq_len:
            raise ValueError(
                f"a sequence must have at most max_seq_len={self.config.max_seq_len} tokens: got {self.seq_len}."
            )
        context, tensor = self.size(CONTEXT), self.size(TENSOR)
        lengths = {self.seq_len}
        if context > 1:
            config = self.config
            kv_heads = config.kv_heads if isinstance(config, LlamaConfig) else config.num_heads
            heads, kv_heads = (max(1, num // tensor) for num in (config.num_heads, kv_heads))
            lengths = set(check_context(self.seq_len, heads, kv_heads, context, self.order, self.attention).lengths)
        cuts = tensor if self.sequence_parallel else 1
        if len(lengths) > 1 or min(lengths) % cuts:
            pieces = (2 if context > 1 and self.order is zigzag_order else 1) * context * cuts
            raise ValueError(
                f"all ranks must have the same number of tokens of a sequence: got {self.seq_len} tokens for context "
                f"{context}" + f" and tensor {tensor} with sequence parallelism" * (cuts > 1) + "; pad to "
                f"{-(-self.seq_len // pieces) * pieces}."
            )

    def _check_vocabulary(self) -> None:
        size, tensor = self.config.vocab_size, self.size(TENSOR)
        if self.uneven_vocabulary == "refuse" and size % tensor:
            raise ValueError(
                f"the vocabulary must be a multiple of the tensor ranks: got {size} words for {tensor}; make it "
                f'{padded_vocabulary(size, tensor)}, or use uneven_vocabulary="pad" or "chunk".'
            )

    def _check_experts(self) -> None:
        if not self.num_experts:
            if (ranks := self.size(EXPERT)) > 1:
                raise ValueError(
                    f"an expert axis must be of a model with experts: got {ranks} ranks and num_experts=0; try "
                    f"num_experts={ranks}, or data={self.replicas} without the axis."
                )
            return
        d_ff, tensor = self.config.hidden_size, self.size(TENSOR)
        check_experts(self.num_experts, self.num_active, self.size(EXPERT), d_ff=d_ff, tensor_ranks=tensor)

    def _check_layers(self, num_chunks: int) -> None:
        units, num_pieces = self.config.num_layers + 2, self.size(PIPELINE) * num_chunks
        if num_pieces > units:
            raise ValueError(
                f"every piece of the pipeline needs a layer: got {num_pieces} pieces for {self.config.num_layers} "
                f"layers, an embedding and a head; try {num_pieces - 2} layers, or pipeline={units // num_chunks}."
            )

    def _check_split(self, is_split: bool) -> None:
        for name, usual in (("autocast", None), ("zero_stage", 1)):
            if is_split and (value := getattr(self, name)) != usual:
                raise ValueError(
                    f"deferred weight gradients do not work with {name}: got {name}={value} with {self.schedule}; try "
                    f'schedule="1f1b", or {name}={usual}.'
                )
