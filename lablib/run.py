"""Result of a launch: values, timeline, memory, traffic and output, the same records on every backend."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from lablib.hardware.device import Device
from lablib.record.memory import Memory
from lablib.record.saved import plain_records, records_of
from lablib.record.summary import Summary
from lablib.record.timeline import COMPUTE, Span, Timeline
from lablib.record.traffic import Traffic, Transfer
from lablib.signature import check_types, checked
from lablib.text.files import parse_json, read_text, write_bytes, write_text
from lablib.text.messages import safe_str
from lablib.text.units import plural

__all__ = ["COMPUTE", "Memory", "Run", "Span", "Summary", "Timeline", "Traffic", "Transfer"]


TIMES_MEAN_NOTHING = "values are right, times mean nothing"  # ends the note of a run with ranks that shared GPUs
_FORMAT = "lablib run 1"
_KEPT = ("stdout", "backend", "cluster", "wall_s", "notes", "fidelity")
_MAX_BYTES = 2**30


@dataclass(frozen=True)
class Run:
    """The result of one launched program.

    Attributes:
        values: return value of `fn` on each rank.
        timeline: spans per rank and stream.
        traffic: every communication.
        stdout: output of each rank.
        backend: "sim", "gloo" or "nccl".
        cluster: name of the simulated cluster, or of the machine that ran it.
        wall_s: real seconds from call to return.
        notes: caveats about these numbers (e.g. several ranks shared one GPU).
        memory: bytes per rank and category over time on "sim"; the peak of each rank on "nccl", by its GPU's allocator;
            empty if not counted ("gloo": a CPU's allocator keeps no count; `trace=False` on "sim").
        device: the simulated accelerator; None on real backends.
        fidelity: "values" (real tensors) or "shapes" (meta tensors: time, memory and traffic, no values).
    """

    values: list[Any]
    timeline: Timeline
    traffic: Traffic
    stdout: list[str]
    backend: str
    cluster: str
    wall_s: float = 0.0
    notes: Sequence[str] = field(default=())
    memory: Memory = field(default_factory=Memory)
    device: Device | None = None
    fidelity: str = "values"

    @property
    def ranks(self) -> int:
        return len(self.values)

    @checked
    def to_perfetto(self, path: str | Path) -> Path:
        """Write timeline and memory as one trace for ui.perfetto.dev (lablib/record/perfetto.py)."""
        return self.timeline.to_perfetto(path, self.memory)

    @checked
    def to_memory_viz(self, path: str | Path) -> Path:
        """Write the memory as a snapshot for torch's viewer, pytorch.org/memory_viz (lablib/record/memory_viz.py).

        Raises:
            ValueError: the memory of this run was not counted.
            OSError: the file cannot be written.
        """
        from lablib.record.memory_viz import snapshot_pickle

        write_bytes(path, snapshot_pickle(self.memory))
        return Path(path)

    @checked
    def to_tensorboard(self, folder: str | Path) -> Path:
        """Write the numbers of each step (lablib/record/steps.py) as an event file of TensorBoard. Returns the folder.

        Raises:
            ValueError: the run has fewer than two steps of an optimizer.
            OSError: the file cannot be written.
        """
        samples = self._step_metrics()
        # By name: trainers are above runs in the order of imports.
        writer = import_module("lablib.train.metric_writers").TensorBoard(folder)
        sample = import_module("lablib.train.monitor").Sample
        for step, (end_s, metrics) in enumerate(samples, 2):
            writer.write(sample(end_s, step, metrics), ())
        writer.close()
        return Path(folder)

    def to_wandb(self, **options: Any) -> None:
        """Log the numbers of each step to Weights & Biases: `run.to_wandb(project="sim")`, as `wandb.init(**options)`.

        Raises:
            ValueError: the run has fewer than two steps of an optimizer.
            ModuleNotFoundError: the package wandb is not installed.
        """
        samples = self._step_metrics()
        try:
            wandb = import_module("wandb")
        except ModuleNotFoundError as error:
            error.add_note("to_wandb needs the package wandb: pip install 'lablib[thirdparty]'")
            raise
        about = {"backend": self.backend, "cluster": self.cluster, "ranks": self.ranks, "fidelity": self.fidelity}
        with wandb.init(**{"config": about} | options) as logged:
            for step, (_, metrics) in enumerate(samples, 2):
                logged.log(metrics, step=step)

    def _step_metrics(self) -> list[tuple[float, dict[str, float]]]:
        from lablib.record.steps import step_metrics

        if not (found := list(step_metrics(self))):
            raise ValueError(
                "the numbers of steps need two steps of a torch optimizer or more: got fewer; run more steps"
            )
        return found

    @checked
    def save(self, path: str | Path) -> Path:
        """Write the run as JSON, for `Run.load` in another process or on another machine.

        It saves timeline, traffic, memory, output and notes, but only the number of `values`, and no `device`.

        Raises:
            OSError: the file cannot be written.
        """
        kept = {name: getattr(self, name) for name in _KEPT} | {"num_values": len(self.values)}
        records = plain_records(self.timeline, self.traffic, self.memory)
        write_text(
            path, json.dumps({"format": _FORMAT, **kept, **records}, default=lambda number: number.item()) + "\n"
        )
        return Path(path)

    @staticmethod
    @checked
    def load(path: str | Path) -> Run:
        """Read a run written by `save`, or by a program on several nodes (`lab run SCRIPT.py --nnodes 2`).

        Raises:
            OSError: the file cannot be read.
            ValueError: it has other contents.
        """
        try:
            plain = parse_json(read_text(path, _MAX_BYTES))
            if plain["format"] != _FORMAT:
                raise ValueError(plain["format"])
            timeline, traffic, memory = records_of(plain)
            kept: dict[str, Any] = {name: plain[name] for name in _KEPT} | {"notes": tuple(plain["notes"])}
            return Run([None] * plain["num_values"], timeline, traffic, memory=memory, **kept)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise ValueError(
                f"{path} must be a run that save() wrote ({_FORMAT}): {safe_str(error)}; save it again"
            ) from None

    @staticmethod
    @checked
    def from_profile(traces: str | Path | Sequence[str | Path], memory: str | Path | Sequence[str | Path] = ()) -> Run:
        """Read a run that lablib did not launch, from traces of torch.profiler (lablib/real/profile.py).

        Args:
            traces: files of `profiler.export_chrome_trace`, one per rank, in any order; .json or .json.gz.
            memory: files of `torch.cuda.memory._dump_snapshot`, in the order of ranks (memory_snapshot.py).

        Raises:
            OSError: a file cannot be read.
            ValueError: it has other contents, or the traces are not of the same steps of one job.
        """
        files, snapshots = ([one] if isinstance(one, (str, Path)) else list(one) for one in (traces, memory))
        # On demand, and by name: real processes are above runs in the order of imports.
        return import_module("lablib.real.profile").run_of_profile(files, snapshots)

    def summary(self, steps: int = 1, timeline: Timeline | None = None, device: Device | None = None) -> Summary:
        """Time of the run by rank.

        Args:
            steps: number of equal steps in the run: times, FLOPs and bytes are per step.
            timeline: a part of the run's, such as `run.timeline.without("setup")`; None: all of it.
            device: the device for MFU and HFU; None: the run's.

        Raises:
            ValueError: a timeline of another number of ranks.
        """
        check_types("summary", (("timeline", timeline, Timeline | None), ("device", device, Device | None)))
        whole = self.timeline if timeline is None else timeline
        if whole.num_ranks != self.timeline.num_ranks:
            raise ValueError(
                f"timeline must be a part of this run's, of {plural(self.timeline.num_ranks, 'ranks')}: got one of "
                f'{plural(whole.num_ranks, "ranks")}; try run.timeline.without("setup")'
            )
        return Summary.of(whole, self.traffic, self.memory, device or self.device, steps)

    def __repr__(self) -> str:
        return (
            f"Run({plural(self.ranks, 'ranks')} on {self.backend} ({self.cluster}): makespan "
            f"{self.timeline.makespan_s:.4g} s, "
            f"{plural(len(self.traffic), 'communications')}, {self.traffic.sent_bytes():.4g} bytes sent)"
        )
