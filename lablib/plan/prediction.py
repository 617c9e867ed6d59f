"""What a prediction says: time, its parts, memory of every stage, and whether it fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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

AXES = ("tensor", "context", "expert", "data", "pipeline", "host")  # of communication
TIGHT = 0.95  # of the memory


@dataclass(frozen=True)
class Prediction:
    """What one training step of a run would take.

    Attributes:
        name: the model's.
        cluster: the cluster's name.
        parallel: the split.
        num_gpus: ranks.
        batch, micro_batch, num_microbatches, seq_len: sequences a step, sequences and number of its micro-batches on a
            rank, tokens of a sequence.
        schedule, recompute, precision: as they were asked for.
        step_time_s: seconds of one step.
        model_flops, hardware_flops: of one step on all GPUs; the second counts what is computed again.
        peak_flops_per_s: of one GPU at the training precision: MFU and HFU are shares of it.
        parts: the step as a sum: seconds by what the busiest stage does, in the order of a waterfall.
        communication: axis -> (seconds in all, seconds not hidden) on the wires, a rank a step. Kernels that pack and
            unpack what travels are not among it, but in `parts`.
        bubble_fraction: share of the pipeline's time in which the busiest stage waits; a run's summary has that of
            the whole step for a mean rank.
        memory: of each stage, bytes by category at its peak. Gradients that every step makes anew (FSDP) may not be
            there yet when activations are most.
        memory_limit_bytes: of one GPU, what the driver and the communication library leave of its memory.
        cached_share: what the allocator keeps in its cache beside what is allocated, as a share of that.
        driver_bytes: what the driver and the communication library take of the GPU's memory.
        power_w: watts of one GPU, where the catalogue has it.
        software: the generation of training software that was taken (stack.py), and why.
        notes: what is to be said besides, shown below the table.
    """

    name: str
    cluster: str
    parallel: Parallel
    num_gpus: int
    batch: int
    micro_batch: int
    num_microbatches: int
    seq_len: int
    schedule: str
    recompute: str
    precision: str
    step_time_s: float
    model_flops: float
    hardware_flops: float
    peak_flops_per_s: float
    parts: Mapping[str, float]
    communication: Mapping[str, tuple[float, float]]
    bubble_fraction: float
    memory: tuple[Mapping[str, float], ...]
    memory_limit_bytes: float
    cached_share: float = 0.0
    driver_bytes: float = 0.0
    power_w: float | None = None
    software: Software = Software("", "")
    notes: tuple[str, ...] = field(default=())

    @property
    def tokens_per_step(self) -> int:
        """Of all sequences."""
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
        """Model FLOPs utilization: the share of the peak that the model's own FLOPs take."""
        return self.model_flops_per_s_per_gpu / self.peak_flops_per_s

    @property
    def hfu(self) -> float:
        """Hardware FLOPs utilization: the same with what is computed again."""
        return self.mfu * self.hardware_flops / self.model_flops

    @property
    def stage_bytes(self) -> tuple[float, ...]:
        """Bytes of each stage at its peak."""
        return tuple(sum(stage.values()) for stage in self.memory)

    @property
    def peak_memory_bytes(self) -> float:
        """What is allocated at the peak, on a GPU of the fullest stage."""
        return max(self.stage_bytes)

    @property
    def reserved_bytes(self) -> float:
        """What torch's allocator holds of the fullest GPU: what is allocated, and its cache."""
        return self.peak_memory_bytes * (1 + self.cached_share)

    @property
    def device_bytes(self) -> float:
        """What nvidia-smi shows: that, and what the driver and the communication library take."""
        return self.reserved_bytes + self.driver_bytes

    @property
    def fits(self) -> bool:
        """Whether the fullest stage is within the GPU's memory; a full allocator empties its cache first."""
        return self.peak_memory_bytes <= self.memory_limit_bytes

    @property
    def is_tight(self) -> bool:
        """Whether it fits by less than 5% of the memory: less than the planner's own error on some runs."""
        return self.fits and self.peak_memory_bytes > TIGHT * self.memory_limit_bytes

    @property
    def exposed_communication_s(self) -> float:
        """Seconds a step that communication adds, on all axes but the pipeline's: its messages are in the bubble."""
        return sum(exposed for _, exposed in self.communication.values())

    def gpu_hours(self, tokens: float) -> float:
        """GPU hours to train on so many tokens. Raises ValueError for what is no number of them."""
        _check_tokens(tokens)
        return tokens / self.tokens_per_s * self.num_gpus / 3600

    def energy_j(self, tokens: float | None = None) -> float | None:
        """Joules of the GPUs at their thermal design power, for so many tokens (one step by default); None unknown.

        Raises ValueError for what is no number of tokens.
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
        """One row a part of the step: seconds, and its share of the step. A part of zero is left out."""
        import pandas as pd

        parts = {name: time_s for name, time_s in self.parts.items() if abs(time_s) > 1e-9 * self.step_time_s}
        frame = pd.DataFrame({"time_s": parts | {"step": self.step_time_s}}).rename_axis("part")
        return frame.assign(share=frame["time_s"] / self.step_time_s)

    def memory_table(self) -> pd.DataFrame:
        """One row a stage: its peak, the bytes of each category then, and whether they fit into a GPU."""
        import pandas as pd

        frame = pd.DataFrame([dict(stage) for stage in self.memory]).rename_axis("stage")
        frame.insert(0, "peak_bytes", self.stage_bytes)
        return frame.assign(fits=frame["peak_bytes"] <= self.memory_limit_bytes)

    def figure(self, **options: Any) -> go.Figure:
        """The step as a waterfall."""
        return draw("figure_waterfall", self, **options)

    def figure_memory(self, **options: Any) -> go.Figure:
        """What every stage keeps at its peak, by category, under the GPU's limit."""
        return draw("figure_plan_memory", self, **options)

    def figure_communication(self, **options: Any) -> go.Figure:
        """Seconds of communication on every axis, exposed and hidden."""
        return draw("figure_communication", self, **options)

    def __repr__(self) -> str:
        return f"Prediction({self.sentence()})"

    def _repr_html_(self) -> str:
        table = self.table()
        table["share"] = [f"{share:.1%}" for share in table["share"]]
        notes = "".join(paragraph(note) for note in self.notes)
        return paragraph(self.sentence()) + table_html(table, float_format="{:.4g}".format) + notes


def _check_tokens(tokens: float) -> None:
    check_type("tokens", tokens, float)
    if not 0 <= tokens < inf:
        raise ValueError(f"tokens must be 0 or more, and finite: got {shown(tokens)}; try 1e12")
