"""How a model is split over ranks, and how much of the training state each rank keeps: the axes of a plan.

    ranks = data * tensor * context * pipeline

Neighbouring ranks belong to the innermost axis, which talks most: tensor, then context, then data, then pipeline. So
with 8 GPUs a node and tensor=8, tensor parallelism stays inside the node. Experts are spread over ranks of the data and
context axes (`expert` divides data * context).

Source of the order: Narayanan et al., "Efficient large-scale language model training on GPU clusters using
Megatron-LM", SC21, arXiv 2104.04473, section 3.1.
"""

from dataclasses import dataclass
from numbers import Integral
from typing import Any

AXES = ("tensor", "context", "data", "pipeline")
SHARDING = (0, 1, 2, 3)
ZERO_PLUS_PLUS = ("qwZ", "hpZ", "qgZ")


@dataclass(frozen=True, slots=True)
class Parallel:
    """The split of one run.

    Attributes:
        data: replicas of the model (their states split among them by ZeRO); each takes other sequences.
        tensor: ranks that share every matrix product.
        pipeline: stages, each with some of the layers.
        context: ranks that share every sequence (ring attention; heads stay whole).
        expert: ranks that share the experts of a layer; divides data * context.
        chunks: pieces of the model on each stage, for interleaved schedules (v).
        sequence_parallel: norms, dropout and residuals split over the tensor axis (Korthikanti et al., 2022); None: on
            where tensor > 1.
        zero_stage: 0 nothing, 1 optimizer states, 2 and gradients, 3 and parameters split over the data axis
            (Rajbhandari et al., 2019, arXiv 1910.02054).
        reshard_after_forward: with stage 3, gather each layer's parameters again for its backward; False keeps them
            from forward to backward (FSDP's SHARD_GRAD_OP, as ZeRO-2 in traffic).
        zero_plus_plus: any of "qwZ" (parameters gathered in INT8), "hpZ" (a second copy in each node, gathered from
            there in backward), "qgZ" (gradients reduced in INT4) (Wang et al., 2023, arXiv 2306.10209).
        replicas: of a hybrid split, how many copies of the sharded state there are (HSDP); 1: one, over all of data.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    chunks: int = 1
    sequence_parallel: bool | None = None
    zero_stage: int = 0
    reshard_after_forward: bool = True
    zero_plus_plus: tuple[str, ...] = ()
    replicas: int = 1

    def __post_init__(self) -> None:
        for name in ("data", "tensor", "pipeline", "context", "expert", "chunks", "replicas"):
            # A whole number of numpy is one too, and counts as Python's: formulas tell arrays from numbers by type.
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        if isinstance(self.zero_stage, bool) or not isinstance(self.zero_stage, int) or self.zero_stage not in SHARDING:
            raise ValueError(f"zero_stage is 0, 1, 2 or 3: got {self.zero_stage!r}")
        if self.data * self.context % self.expert:
            raise ValueError(
                f"expert must divide data * context: got {self.expert} and {self.data} * {self.context}; "
                f"try {_largest_divisor(self.data * self.context, self.expert)}"
            )
        if self.data % self.replicas:
            raise ValueError(f"replicas must divide data: got {self.replicas} and {self.data}")
        if not (self.sequence_parallel is None or isinstance(self.sequence_parallel, bool)):
            raise ValueError(f"sequence_parallel is True, False or None: got {self.sequence_parallel!r}")
        if not isinstance(self.reshard_after_forward, bool):
            raise ValueError(f"reshard_after_forward is True or False: got {self.reshard_after_forward!r}")
        methods = self.zero_plus_plus
        if not isinstance(methods, (tuple, list)) or any(method not in ZERO_PLUS_PLUS for method in methods):
            raise ValueError(f"zero_plus_plus is a tuple of {', '.join(ZERO_PLUS_PLUS)}: got {methods!r}")
        if self.zero_plus_plus and self.zero_stage != 3:
            raise ValueError(f"zero_plus_plus is a kind of ZeRO-3: got zero_stage={self.zero_stage}; give zero_stage=3")
        if self.chunks > 1 and self.pipeline == 1:
            raise ValueError(f"chunks need a pipeline: got chunks={self.chunks} and pipeline=1")

    @property
    def num_ranks(self) -> int:
        return self.data * self.tensor * self.context * self.pipeline

    @property
    def has_sequence_parallel(self) -> bool:
        return self.tensor > 1 if self.sequence_parallel is None else self.sequence_parallel

    def __str__(self) -> str:
        sizes = [(axis, getattr(self, axis)) for axis in ("data", "tensor", "pipeline", "context", "expert")]
        words = [f"{axis} {size}" for axis, size in sizes if size > 1]
        words += [f"{self.chunks} chunks"] if self.chunks > 1 else []
        words += [f"ZeRO-{self.zero_stage}"] if self.zero_stage else []
        return ", ".join(words) or "one rank"


def whole_number(name: str, value: Any) -> int:
    """A count as an int. Raises ValueError for what is none, or less than 1."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name} must be a whole number, 1 or more: got {value!r}")
    return int(value)


def _largest_divisor(number: int, most: int) -> int:
    return next(d for d in range(min(most, number), 0, -1) if number % d == 0)
