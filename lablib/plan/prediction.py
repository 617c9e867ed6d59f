"""Result of a prediction: time and its parts, memory of every stage, and whether it fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from math import inf
from typing import TYPE_CHECKING, Any

from lablib.plan.default_stack import Software
from lablib.plan.parallel import Parallel
from lablib.record.draw import draw
from lablib.signature import check_type, shown
from lablib.text.markup import paragraph, table_html
from lablib.text.units import format_quantity, plural

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from lablib.plan.setup import Setup
    from lablib.validation.evidence import Evidence

AXES = ("tensor", "context", "expert", "data", "pipeline", "host")  # of communication
TIGHT = 0.95  # share of the memory limit


@dataclass(frozen=True)
class Prediction:
    """Predicted time and memory of one training step."""

    name: str  # the model's
    cluster: str  # the cluster's name
    parallel: Parallel  # the split
    num_gpus: int  # ranks
    # batch, micro_batch, num_microbatches, seq_len: sequences per step, sequences and number of micro-batches of a
    # rank, tokens of a sequence
    batch: int
    micro_batch: int
    num_microbatches: int
    seq_len: int
    schedule: str  # schedule, recompute, precision: arguments of the prediction
    recompute: str
    precision: str
    step_time_s: float  # seconds of one step
    model_flops: float  # model_flops, hardware_flops: of one step on all GPUs, without and with recomputation
    hardware_flops: float
    peak_flops_per_s: float  # of one GPU at the training precision: MFU and HFU are shares of it
    # the step as a sum: seconds of the busiest stage by activity, in the order of a waterfall
    parts: Mapping[str, float]
    # axis -> (all seconds, exposed seconds) on the wires, per rank and step. Kernels that pack and unpack messages are
    # in `parts` only.
    communication: Mapping[str, tuple[float, float]]
    # share of the pipeline's time in which the busiest stage waits; a run's summary has the average rank's share of the
    # whole step
    bubble_fraction: float
    # of each stage, bytes by category at its peak. Gradients that are allocated in every step (FSDP) may not exist yet
    # at the peak of the activations.
    memory: tuple[Mapping[str, float], ...]
    memory_limit_bytes: float  # memory of one GPU without the driver and the communication library
    cached_share: float = 0.0  # cache of the allocator, as a share of the allocated bytes
    driver_bytes: float = 0.0  # memory of the driver and the communication library on the GPU
    power_w: float | None = None  # watts of one GPU, if the catalogue has it
    software: Software = Software("", "")  # the generation of training software (stack.py), with the reason for it
    notes: tuple[str, ...] = field(default=())  # remarks, shown below the table
    # the checked arguments; `evidence` compares them with published runs
    setup: Setup | None = field(default=None, repr=False, compare=False)

    @cached_property
    def evidence(self) -> Evidence:
        """Published runs near this one, the planner's error there, and a band for the step time.

        Raises ValueError for a prediction without setup, as it is not from `predict`.
        """
        # validation/ is above plan/ in the order of imports: by name, as figures (record/draw.py).
        return import_module("lablib.validation.evidence").evidence_of(self)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of all sequences."""
        return self.batch * self.seq_len

    @property
    def tokens_per_s(self) -> float:
        """On all GPUs."""
        return self.tokens_per_step / self.step_time_s

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """The same for one GPU."""
        return self.tokens_per_s / self.num_gpus

    @property
    def model_flops_per_s_per_gpu(self) -> float:
        """FLOP/s of one GPU, each FLOP of the model counted once."""
        return self.model_flops / self.step_time_s / self.num_gpus

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization: share of the peak, with the model's own FLOPs."""
        return self.model_flops_per_s_per_gpu / self.peak_flops_per_s

    @property
    def hfu(self) -> float:
        """Hardware FLOPs utilization: the same with recomputation."""
        return self.mfu * self.hardware_flops / self.model_flops

    @property
    def stage_bytes(self) -> tuple[float, ...]:
        """Bytes of each stage at its peak."""
        return tuple(sum(stage.values()) for stage in self.memory)

    @property
    def peak_memory_bytes(self) -> float:
        """Bytes allocated at the peak, on a GPU of the fullest stage."""
        return max(self.stage_bytes)

    @property
    def reserved_bytes(self) -> float:
        """Bytes of torch's allocator on the fullest GPU: allocated, and its cache."""
        return self.peak_memory_bytes * (1 + self.cached_share)

    @property
    def device_bytes(self) -> float:
        """Bytes that nvidia-smi shows: reserved ones, the driver and the communication library."""
        return self.reserved_bytes + self.driver_bytes

    @property
    def fits(self) -> bool:
        """Whether the fullest stage is within the GPU's memory; a full allocator empties its cache first."""
        return self.peak_memory_bytes <= self.memory_limit_bytes

    @property
    def is_tight(self) -> bool:
        """Whether it fits by less than 5% of the memory, which is within the planner's error on some runs."""
        return self.fits and self.peak_memory_bytes > TIGHT * self.memory_limit_bytes

    @property
    def exposed_communication_s(self) -> float:
        """Seconds per step that communication adds, on all axes but the pipeline: its messages are in the bubble."""
        return sum(exposed for _, exposed in self.communication.values())

    def gpu_hours(self, tokens: float) -> float:
        """GPU hours to train on `tokens`. Raises ValueError unless tokens are 0 or more, and finite."""
        _check_tokens(tokens)
        return tokens / self.tokens_per_s * self.num_gpus / 3600

    def energy_j(self, tokens: float | None = None) -> float | None:
        """Joules of the GPUs at their thermal design power, for `tokens` (None: one step); None: power unknown.

        Raises ValueError unless tokens are 0 or more, and finite.
        """
        if tokens is not None:
            _check_tokens(tokens)
        if self.power_w is None:
            return None
        seconds = self.step_time_s if tokens is None else tokens / self.tokens_per_s
        return seconds * self.power_w * self.num_gpus

    def sentence(self) -> str:
        """The prediction in one sentence."""
        time, held = format_quantity(self.step_time_s, "s"), format_quantity(self.peak_memory_bytes, "B")
        fits = "fits, tight" if self.is_tight else "fits" if self.fits else "does not fit"
        return (
            f"{self.name} on {plural(self.num_gpus, 'GPUs')} of {self.cluster} ({self.parallel}): "
            f"a step of {plural(self.batch, 'sequences')} takes {time}, {self.tokens_per_s:,.0f} "
            f"tokens/s, MFU {self.mfu:.1%}; "
            f"{held} of {format_quantity(self.memory_limit_bytes, 'B')} a GPU: {fits}. "
            f"Software: {self.software}."
        )

    def table(self) -> pd.DataFrame:
        """One row per part of the step: seconds, and share of the step. Parts of zero are left out."""
        import pandas as pd

        parts = {name: time_s for name, time_s in self.parts.items() if abs(time_s) > 1e-9 * self.step_time_s}
        frame = pd.DataFrame({"time_s": parts | {"step": self.step_time_s}}).rename_axis("part")
        return frame.assign(share=frame["time_s"] / self.step_time_s)

    def memory_table(self) -> pd.DataFrame:
        """One row per stage: its peak, the bytes of each category, and whether they fit."""
        import pandas as pd

        frame = pd.DataFrame([dict(stage) for stage in self.memory]).rename_axis("stage")
        frame.insert(0, "peak_bytes", self.stage_bytes)
        return frame.assign(fits=frame["peak_bytes"] <= self.memory_limit_bytes)

    def figure(self, **options: Any) -> go.Figure:
        """The step as a waterfall."""
        return draw("figure_waterfall", self, **options)

    def figure_memory(self, **options: Any) -> go.Figure:
        """Peak memory of every stage, by category, under the GPU's limit."""
        return draw("figure_plan_memory", self, **options)

    def figure_communication(self, **options: Any) -> go.Figure:
        """Seconds of communication on every axis, exposed and hidden."""
        return draw("figure_communication", self, **options)

    def evidence_sentence(self) -> str:
        """The evidence in one sentence; "" for a prediction without setup."""
        return self.evidence.sentence() if self.setup else ""

    def __repr__(self) -> str:
        return f"Prediction({self.sentence()})"

    def _repr_html_(self) -> str:
        table = self.table()
        table["share"] = [f"{share:.1%}" for share in table["share"]]
        notes = "".join(map(paragraph, filter(None, (self.evidence_sentence(), *self.notes))))
        return paragraph(self.sentence()) + table_html(table, float_format="{:.4g}".format) + notes


def _check_tokens(tokens: float) -> None:
    check_type("tokens", tokens, float)
    if not 0 <= tokens < inf:
        raise ValueError(f"tokens must be 0 or more, and finite: got {shown(tokens)}; try 1e12")
