"""Memory of one training step on one device, predicted: the highest moment of every operator, by category.

    peak = max over operators of (parameters + gradients + optimizer state + activations + temporary tensors)

For the plain GPT (GPT-2, GPT-3, Megatron's, own sizes) every operator is listed (`memory/step_script.py`), and bytes
equal a run on the simulator. For other Transformers the moments are the planner's (step_outline.py).

Cost in bytes: of each of P parameters 16 with AdamW, in float32 (4 + 4 + 8) or in 16 bits with a float32 master
(2 + 2 + 12); of each token and layer 16 D numbers and 4 (4 + H) bytes with flash attention, or D numbers checkpointed;
of each token 8 V bytes and more for the scores of the vocabulary.

Legend: P parameters, D width, H heads, V vocabulary.
Source: Rajbhandari et al., "ZeRO", 2019, arXiv 1910.02054, section 3.1 (16 bytes); Korthikanti et al., 2022, arXiv
2205.05198, section 4 (activations).
Simplified: no fragmentation: an allocator takes some percent more. No parallelism: `lablib.plan.predict` has that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Annotated

import numpy as np

from lablib.errors import find_named
from lablib.hardware.device import Device
from lablib.hardware.devices import DEVICES
from lablib.memory.step_script import StepScript, is_plain
from lablib.memory.step_trace import Op, StepOptions, StepTrace, line_of
from lablib.models.published import find_transformer
from lablib.models.sizes import GPTConfig
from lablib.models.transformer import Transformer
from lablib.plan.recompute import recompute_policy
from lablib.signature import Count, OneOf, checked
from lablib.studies.step_outline import outline
from lablib.text.units import format_quantity

# Bytes of a weight, and whether the optimizer steps copies of the weights in 32 bits.
PRECISIONS: Mapping[str, tuple[int, bool]] = MappingProxyType(
    {"float32": (4, False), "16 bits": (2, False), "16 bits, float32 master": (2, True)}
)
# Tensors of state a weight, and tensors a weight made for a moment. torch's default on a GPU goes operator by operator
# (`foreach`), and makes a denominator as large as the model; `fused=True` is one kernel, and makes nothing.
OPTIMIZERS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {"adamw": (2, 1), "adamw, fused": (2, 0), "sgd-momentum": (1, 0), "sgd": (0, 0)}
)
# Bytes that driver and kernels take of a device before the program allocates anything (lablib/plan/derating.py).
CONTEXT_BYTES = 1.3e9


@dataclass(frozen=True, eq=False)
class StepMemory:
    """The memory of one step. Arrays have one entry an operator, in order."""

    name: str
    # seq_len, micro_batch, num_microbatches: tokens of a sequence, sequences at once, micro-batches of the step
    seq_len: int
    micro_batch: int
    num_microbatches: int
    precision: str
    optimizer: str
    recompute: str
    device: Device  # the device that it must fit into
    is_exact: bool  # whether every operator is known; if not, the moments are the planner's
    ops: tuple[Op, ...]
    start_s: np.ndarray  # start of each, by its roofline; `end_s` is the end of the step
    end_s: float
    held: Mapping[str, np.ndarray]  # category -> bytes at the operator's highest moment
    made_bytes: np.ndarray  # bytes that the operator allocates
    limit_bytes: float  # bytes of the device that a program may use
    largest_micro_batch: int  # the most sequences that fit; 0: not one

    @property
    def total(self) -> np.ndarray:
        return np.sum(list(self.held.values()), axis=0)

    @property
    def peak_index(self) -> int:
        """Index of the first operator with the most bytes held."""
        return int(np.argmax(self.total))

    @property
    def peak_bytes(self) -> int:
        return int(self.total[self.peak_index])

    @property
    def at_peak(self) -> dict[str, int]:
        """Bytes by category then."""
        return self.at(self.peak_index)

    @property
    def margin_bytes(self) -> float:
        """Bytes left of the limit; below 0: bytes missing."""
        return self.limit_bytes - self.peak_bytes

    @property
    def fits(self) -> bool:
        return self.margin_bytes >= 0

    def __repr__(self) -> str:
        peak, limit = (format_quantity(size, "B") for size in (self.peak_bytes, self.limit_bytes))
        return f"StepMemory({self.name}: peak {peak} of {limit}, {len(self.ops)} operators)"

    def at(self, index: int) -> dict[str, int]:
        """Bytes by category at the highest moment of an operator."""
        return {name: int(held[index]) for name, held in self.held.items()}

    def index_at(self, time_s: float) -> int:
        """The operator that runs then."""
        return max(0, int(np.searchsorted(self.start_s, time_s, "right")) - 1)

    def where(self, index: int) -> str:
        """An operator in words: when it runs, the bytes it allocates, and its lines of the program."""
        op, made = self.ops[index], int(self.made_bytes[index])
        when = [op.phase] * (op.phase not in op.name) + [f"layer {op.layer}"] * (op.layer >= 0)
        makes = f", which allocates {format_quantity(made, 'B')}" if made else ""
        text = op.name + (f" ({', '.join(when)})" if when else "") + makes
        if not op.line:
            return f"{text}: a moment of the planner, without a program."
        if op.phase not in ("backward", "recompute") or op.line.startswith("training_step.py"):
            return f"{text}. Line: {op.line}"
        how = "the derivative of" if op.phase == "backward" else "once more"
        return f"{text}. Line: {line_of('memory/training_step.py', 'loss.backward()')}, {how} {op.line}"

    def explain(self, index: int) -> str:
        """The same, with the bytes held then."""
        sizes = sorted(self.at(index).items(), key=lambda item: -item[1])
        parts = ", ".join(f"{format_quantity(size, 'B')} {name}" for name, size in sizes if size)
        total = format_quantity(int(self.total[index]), "B")
        return f"At this moment {total} are held ({parts}). It runs {self.where(index)}"


@checked
def memory_of_step(
    model: str | Transformer | GPTConfig = "gpt2",
    seq_len: Count | None = None,
    micro_batch: Count = 1,
    *,
    precision: Annotated[str, OneOf(PRECISIONS)] = "16 bits, float32 master",
    optimizer: Annotated[str, OneOf(OPTIMIZERS)] = "adamw",
    recompute: str = "none",
    num_microbatches: Count = 1,
    device: str | Device = "H100-80GB-SXM",
) -> StepMemory:
    """Memory of one training step, moment by moment, and whether it fits.

    Arguments:
        model: sizes, or a name of the catalogue of published models.
        seq_len: tokens of a sequence; the model's longest by default.
        micro_batch: sequences that go through the model at once.
        recompute: "none", "full" (each layer checkpointed) or "every k" layers.
        num_microbatches: micro-batches per step; the third and later are as the second.

    Raises:
        ValueError: an unknown model or device, a sequence longer than the model's positions, a policy that flash
            attention leaves without effect.
    """
    sizes = find_transformer(model)
    seq_len = sizes.max_seq_len if seq_len is None else seq_len
    if sizes.positions == "learned" and seq_len > sizes.max_seq_len:
        rule = f"{sizes.name} has {sizes.max_seq_len:,} learned positions, and a sequence at most as many tokens"
        raise ValueError(f"{rule}: got {seq_len:,}; try {sizes.max_seq_len:,}.")
    found = find_named("device", device, DEVICES, Device)
    kind = _kind(precision, optimizer, recompute, num_microbatches)
    step = _step(sizes, seq_len, kind)
    # The dtype of the products: with 16-bit weights the device's fastest.
    wanted = ("bfloat16", "float16", "float32") if kind.width == 2 else ("float32",)
    dtype = next(name for name in wanted if name in found.peak_flops_per_s)
    ends_s = np.cumsum(step.times_s(micro_batch, found, dtype))
    return StepMemory(
        *(sizes.name, seq_len, micro_batch, num_microbatches, precision, optimizer, recompute, found),
        is_exact=is_plain(sizes),
        ops=step.ops,
        start_s=np.concatenate(([0.0], ends_s[:-1])),
        end_s=float(ends_s[-1]),
        held=step.held(micro_batch),
        made_bytes=step.made_bytes(micro_batch),
        limit_bytes=found.memory_bytes - CONTEXT_BYTES,
        largest_micro_batch=step.largest_micro_batch(found.memory_bytes - CONTEXT_BYTES),
    )


def _kind(precision: str, optimizer: str, recompute: str, num_microbatches: int) -> StepOptions:
    policy = recompute_policy(recompute)
    if policy.kind == "selective" or policy.first is not None:
        rule = 'recompute is "none", "full" or "every k" here: flash attention keeps no scores to leave out'
        raise ValueError(f'{rule}: got "{recompute}"; try "every 2".')
    # The third micro-batch and later ones hold as much as the second.
    every = 0 if policy.kind == "none" else policy.every
    return StepOptions(*PRECISIONS[precision], *OPTIMIZERS[optimizer], every, min(num_microbatches, 2))


@lru_cache(maxsize=32)
def _step(model: Transformer, seq_len: int, kind: StepOptions) -> StepTrace:
    """The operators, for every micro-batch."""
    return StepScript(model, seq_len, kind).run() if is_plain(model) else outline(model, seq_len, kind)
