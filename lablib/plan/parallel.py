"""Split of a model over ranks: the axes of a plan, and the shards of ZeRO.

    ranks = data * tensor * context * pipeline

Neighbouring ranks belong to the innermost axis, which communicates most: tensor, then context, then data, then
pipeline. With 8 GPUs per node and tensor=8, tensor parallelism stays inside the node.

The ranks of a stage are divided a second time for the experts, in the same order:

    tensor * context * data = expert_tensor * expert * copies

`expert_tensor` neighbours share the matrices of each expert, `expert` such groups share the experts of a layer, and
`copies` ranks have the same ones. With expert_tensor = tensor, experts are spread over the ranks of data and context;
with 1 they are whole, and spread over tensor ranks first.

Source of the order: Narayanan et al., "Efficient large-scale language model training on GPU clusters using
Megatron-LM", SC21, arXiv 2104.04473, section 3.1; of the second division: Liu et al., "MoE Parallel Folding", 2025,
arXiv 2504.14960 (`--expert-tensor-parallel-size` of Megatron-Core).
"""

from dataclasses import dataclass
from typing import Annotated

from lablib.signature import Count, OneOf, check_fields
from lablib.text.units import largest_divisor

SHARDING = (0, 1, 2, 3)
ZERO_PLUS_PLUS = ("qwZ", "hpZ", "qgZ")
_AXES = ("data", "tensor", "pipeline", "context", "expert", "chunks", "replicas")


@dataclass(frozen=True, slots=True)
class Parallel:
    """The split of one run. Numbers below 1, unknown words and axes that do not divide are a ValueError."""

    data: Count = 1  # replicas of the model (ZeRO splits their states); each takes other sequences
    tensor: Count = 1  # ranks that share every matrix product
    pipeline: Count = 1  # stages, each with some of the layers
    context: Count = 1  # ranks that share every sequence (ring attention; heads stay whole)
    expert: Count = 1  # ranks that share the experts of a layer
    chunks: Count = 1  # pieces of the model on each stage, for interleaved schedules (v)
    # norms, dropout and residuals split over the tensor axis (Korthikanti et al., 2022); None: on if tensor > 1
    sequence_parallel: bool | None = None
    # states split over the data axis: 0 none, 1 optimizer states, 2 and gradients, 3 and parameters (Rajbhandari et
    # al., 2019, arXiv 1910.02054)
    zero_stage: Annotated[int, OneOf(SHARDING)] = 0
    # with stage 3, gather each layer's parameters again for its backward; False keeps them from forward to backward
    # (FSDP's SHARD_GRAD_OP, as ZeRO-2 in traffic)
    reshard_after_forward: bool = True
    # any of "qwZ" (parameters gathered in INT8), "hpZ" (a second copy in each node, gathered from there in backward),
    # "qgZ" (gradients reduced in INT4) (Wang et al., 2023, arXiv 2306.10209)
    zero_plus_plus: tuple[Annotated[str, OneOf(ZERO_PLUS_PLUS)], ...] = ()
    replicas: Count = 1  # copies of the sharded state in a hybrid split (HSDP); 1: one, over all of data
    # ranks that share the matrices of each expert; None: as many as `tensor`. Another number needs sequence parallelism
    # if tensor > 1. expert * expert_tensor divides tensor * context * data.
    expert_tensor: Count | None = None

    def __post_init__(self) -> None:
        if isinstance(self.zero_plus_plus, list):
            object.__setattr__(self, "zero_plus_plus", tuple(self.zero_plus_plus))
        check_fields(self)
        for name in (*_AXES, "zero_stage", *(["expert_tensor"] if self.expert_tensor is not None else [])):
            # Whole numbers of numpy become Python's: formulas distinguish arrays from numbers by type.
            object.__setattr__(self, name, int(getattr(self, name)))
        if self.data % self.replicas:
            raise ValueError(
                f"replicas must divide data: got {self.replicas} and {self.data}; "
                f"try {largest_divisor(self.data, self.replicas)}"
            )
        if not self.reshard_after_forward and self.zero_stage != 3:
            raise ValueError(
                f"reshard_after_forward=False is a kind of ZeRO-3: got zero_stage={self.zero_stage}; give zero_stage=3"
            )
        if self.zero_plus_plus and self.zero_stage != 3:
            raise ValueError(f"zero_plus_plus is a kind of ZeRO-3: got zero_stage={self.zero_stage}; give zero_stage=3")
        if self.chunks > 1 and self.pipeline == 1:
            raise ValueError(f"chunks need a pipeline: got chunks={self.chunks} and pipeline=1; give chunks=1")
        self._check_experts()

    def _check_experts(self) -> None:
        if self.expert_tensor is None:
            if self.data * self.context % self.expert:
                raise ValueError(
                    f"expert must divide data * context: got {self.expert} and {self.data} * {self.context}; "
                    f"try {largest_divisor(self.data * self.context, self.expert)}"
                )
            return
        ranks = self.tensor * self.context * self.data
        if ranks % (self.expert * self.expert_tensor):
            within = ranks // largest_divisor(ranks, self.expert)
            raise ValueError(
                f"expert * expert_tensor must divide tensor * context * data: got {self.expert} * {self.expert_tensor} "
                f"and {self.tensor} * {self.context} * {self.data}; try expert={largest_divisor(ranks, self.expert)}, "
                f"expert_tensor={largest_divisor(within, self.expert_tensor)}"
            )
        if self.expert_tensor != self.tensor > 1 and not self.has_sequence_parallel:
            raise ValueError(
                "expert_tensor other than tensor needs sequence parallelism, or tensor ranks send the same tokens: got "
                f"expert_tensor={self.expert_tensor} and tensor={self.tensor}; leave out one of expert_tensor and "
                "sequence_parallel=False"
            )

    @property
    def num_ranks(self) -> int:
        """Ranks of the whole run."""
        return self.data * self.tensor * self.context * self.pipeline

    @property
    def expert_tensor_ranks(self) -> int:
        """Ranks that share the matrices of each expert."""
        return self.tensor if self.expert_tensor is None else self.expert_tensor

    @property
    def has_sequence_parallel(self) -> bool:
        """Whether sequence parallelism is on, by request or by default."""
        return self.tensor > 1 if self.sequence_parallel is None else self.sequence_parallel

    def __str__(self) -> str:
        sizes = [(axis, getattr(self, axis)) for axis in ("data", "tensor", "pipeline", "context", "expert")]
        words = [f"{axis} {size}" for axis, size in sizes if size > 1]
        if self.expert_tensor_ranks != self.tensor:
            words += [f"expert tensor {self.expert_tensor_ranks}"]
        words += [f"{self.chunks} chunks"] if self.chunks > 1 else []
        words += [f"ZeRO-{self.zero_stage}"] if self.zero_stage else []
        return ", ".join(words) or "one rank"
