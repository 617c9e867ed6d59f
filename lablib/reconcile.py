"""Compare a prediction with a measurement: one program on the simulator and on real processes.

The table has a row for each phase of compute, for each communication, and for the remaining time
(lablib/record/spent.py, which also defines the start of the time and of a communication).

    error = (predicted - measured) / measured             noise = (longest - shortest) / 2 / median, of the repeats

An error smaller than the noise is not significant. The measured side is the run with the median makespan. The load of
other programs is measured before and after the runs. On a busy machine the measured seconds include it. Runs that
differ without other load are noisy: more ranks than cores take turns, longer in one run than in another.

Ranks that share a GPU take turns on it, so for such runs only the compute time of rank 0 (the minimum of the repeats)
is compared: `Reconciliation.shared` has the reason, the other seconds of the table are NaN, and the sentence compares
calls, bytes and values.

On GPUs measured compute is kernel time only, and the launch of a kernel is time of the host. The predicted side is the
same: a span begins after its launch (`Device.launch_s`), and "idle" includes the launches that take longer than the
kernels before them. A catalogue device does not separate launch from kernel: no launch is hidden there, and predicted
idle time and makespan of small kernels are too long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from lablib.hardware import Cluster, find_cluster
from lablib.launch import launch
from lablib.process.host_load import HostLoad, busiest, host_load
from lablib.record.comparison import RecordedReconciliation, beside
from lablib.record.spent import KINDS, MAKESPAN, Spent, TimePart, counted, parts_of
from lablib.record.timeline import Timeline
from lablib.run import TIMES_MEAN_NOTHING, Run, Traffic
from lablib.signature import checked, whole_number
from lablib.text.markup import paragraph, table_html
from lablib.text.units import format_quantity, plural

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

QUIET_NOISE_PCT = 15.0  # noise below which the runs count as undisturbed


@dataclass(frozen=True)
class Reconciliation:
    """A prediction and the measurements it is compared with."""

    predicted: Run  # the simulated run
    measured: Run  # the run with the median makespan of `repeats`
    repeats: tuple[Run, ...]  # every measured run
    without: str = ""  # the phase left out on both sides ("" for none)
    notes: tuple[str, ...] = ()  # caveats about the numbers
    loads: tuple[HostLoad, ...] = ()  # load of other programs before and after the repeats; empty if not measured

    @staticmethod
    @checked
    def of(
        predicted: Run,
        repeats: Sequence[Run],
        without: str = "",
        notes: Sequence[str] = (),
        loads: Sequence[HostLoad] = (),
    ) -> Reconciliation:
        """Make one from existing runs. Raises ValueError for no runs, or for different numbers of ranks."""
        if not repeats:
            raise ValueError("a prediction is held against one measured run or more: got none")
        counts = {run.ranks for run in (predicted, *repeats)}
        if len(counts) > 1:
            raise ValueError(f"all runs must have the same number of ranks: got {sorted(counts)}")
        by_makespan = sorted(repeats, key=lambda run: counted(run, without).makespan_s)
        middle = by_makespan[(len(repeats) - 1) // 2]
        return Reconciliation(predicted, middle, tuple(repeats), without, tuple(notes), tuple(loads))

    @property
    def shared(self) -> str:
        """The reason why no times are compared: the note of a run on shared GPUs; "" if each rank had its own."""
        return next((note for note in self.measured.notes if note.endswith(TIMES_MEAN_NOTHING)), "")

    @property
    def error(self) -> float:
        """Relative error of the makespan: +0.1 if the prediction is a tenth too long. NaN if ranks shared GPUs."""
        if self.shared:
            return nan
        predicted_s, measured_s = (counted(run, self.without).makespan_s for run in (self.predicted, self.measured))
        return predicted_s / measured_s - 1 if measured_s else float("nan")

    def table(self) -> pd.DataFrame:
        """One row per phase and communication, then exposed, waiting, idle and makespan.

        Columns: kind, name, group, size_bytes; calls on either side; predicted_s and measured_s (NaN if missing on a
        side); error_pct, signed; noise_pct of the repeats; share_pct of the measured makespan.
        """
        import pandas as pd

        predicted, measured, *repeats = (self._parts(run) for run in (self.predicted, self.measured, *self.repeats))
        makespan_s = measured[MAKESPAN].time_s
        rows = []
        parts = predicted.keys() | measured.keys()
        for part in sorted(parts, key=lambda one: (KINDS.index(one.kind), one.name, one.group, one.size_bytes)):
            predicted_s, measured_s = _seconds(predicted, part), _seconds(measured, part)
            if self.shared and part.kind == "compute":
                measured_s = min((one[part].time_s for one in repeats if part in one), default=nan)
            rows.append(
                {
                    "kind": part.kind,
                    "name": part.name,
                    "group": part.group,
                    "size_bytes": part.size_bytes,
                    "predicted_calls": _calls(predicted, part),
                    "measured_calls": _calls(measured, part),
                    "predicted_s": predicted_s,
                    "measured_s": measured_s,
                    "error_pct": _error_pct(predicted_s, measured_s),
                    "noise_pct": _noise_pct([one[part].time_s if part in one else 0.0 for one in repeats]),
                    "share_pct": 100 * measured_s / makespan_s if makespan_s else nan,
                }
            )
        return pd.DataFrame(rows)

    def _parts(self, run: Run) -> dict[TimePart, Spent]:
        parts = parts_of(run, self.without)
        if not self.shared:
            return parts
        of_rank_0 = replace(run, timeline=Timeline.of(run.timeline.select(0), 1), traffic=Traffic(()))
        alone = parts_of(of_rank_0, self.without)
        work = {part: spent for part, spent in alone.items() if part.kind == "compute"}
        return work | {part: Spent(nan, spent.calls) for part, spent in parts.items() if part.kind != "compute"}

    def figure(self, **options: Any) -> go.Figure:
        """Both timelines, one above the other on the same time axis. Options of `figure_reconcile`."""
        from lablib.figures import figure_reconcile

        predicted, measured = counted(self.predicted, self.without), counted(self.measured, self.without)
        labels = (f"predicted ({self.predicted.cluster})", f"measured ({self.measured.backend})")
        columns = {str(name): list(values) for name, values in self.table().items()}
        given: dict[str, Any] = {"labels": labels, "summary": self.sentence(), "columns": columns}
        given |= (
            {"title": "Predicted and measured; ranks shared GPUs, so times are not compared"} if self.shared else {}
        )
        return figure_reconcile(predicted, measured, **(given | options))

    def sentence(self) -> str:
        """Makespans, their error and noise, and the part with the largest difference; other facts for shared GPUs."""
        if self.shared:
            return self._sentence_without_times()
        table = self.table().fillna({"predicted_s": 0.0, "measured_s": 0.0})
        *rows, total = table.to_dict("records")
        text = (
            f"Predicted {format_quantity(total['predicted_s'], 's')}, measured "
            f"{format_quantity(total['measured_s'], 's')}"
        )
        noise = f", noise {total['noise_pct']:.0f}% over {len(self.repeats)} runs" if len(self.repeats) > 1 else ""
        text += f": error {total['error_pct']:+.0f}%{noise}."
        gaps = {_title(row): row["predicted_s"] - row["measured_s"] for row in rows if row["kind"] != "communication"}
        worst = max(gaps, key=lambda name: abs(gaps[name]), default="")
        if worst and gaps[worst]:
            more = "more" if gaps[worst] > 0 else "less"
            text += f" Furthest off is {worst}: {format_quantity(abs(gaps[worst]), 's')} a rank {more} than measured."
        return " ".join([text, *self.notes])

    def _sentence_without_times(self) -> str:
        rows = self.table().query("kind == 'compute'").fillna(0.0).to_dict("records")
        predicted_s, measured_s = (sum(row[side] for row in rows) for side in ("predicted_s", "measured_s"))
        text = [f"Times are not compared, as ranks that share a GPU take turns on it ({self.shared})."]
        if measured_s:
            text.append(
                f"Compute of rank 0: predicted {format_quantity(predicted_s, 's')}, measured "
                f"{format_quantity(measured_s, 's')}, error {_error_pct(predicted_s, measured_s):+.0f}%."
            )
        others = [note for note in self.notes if self.shared not in note]
        return " ".join(filter(None, [*text, self._still_readable(), self._values_text(), *others]))

    def _values_text(self) -> str:
        """The ranks on which both sides returned the same values."""
        if self.predicted.fidelity != "values":
            return "Values are not compared: the prediction computed shapes alone."
        both = list(zip(self.predicted.values, self.measured.values, strict=True))
        if all(one is None and other is None for one, other in both):
            return ""
        differ = [str(rank) for rank, (one, other) in enumerate(both) if not _are_close(one, other)]
        if not differ:
            return "Values are the same on every rank."
        return f"Values differ on ranks {', '.join(differ)} (a GPU draws other random numbers than a CPU)."

    @property
    def is_quiet(self) -> bool:
        """Whether no other load was seen and the runs agree. Then errors beyond noise are the prediction's."""
        if self.shared:
            return False
        load, noise_pct = busiest(self.loads), self._makespan_noise_pct()
        return (load is None or load.is_quiet) and not noise_pct > QUIET_NOISE_PCT

    def reading(self) -> str:
        """Load of the machine, agreement of the runs, and the valid conclusions if they do not agree."""
        if self.shared:
            return f"{self.shared}. {self._still_readable()}".strip()
        load, noise_pct = busiest(self.loads), self._makespan_noise_pct()
        told = [str(load)] if load else []
        told += [f"the makespans of {len(self.repeats)} runs lie within {noise_pct:.0f}% of their middle"]
        seen = " and ".join(told if noise_pct == noise_pct else told[:-1])
        if self.is_quiet:
            text = "The machine was quiet: an error beyond a row's noise is the prediction's."
        elif load and not load.is_quiet:
            text = f"The machine was busy: measured seconds are longer than the program needs. {self._still_readable()}"
        else:
            text = f"{self._why_noisy(load)}: errors smaller than a row's noise say nothing. {self._still_readable()}"
        return f"{seen[:1].upper()}{seen[1:]}. {text}" if seen else text

    def _why_noisy(self, load: HostLoad | None) -> str:
        """The known reason why the runs differ, if no other load was seen."""
        if load is None:
            return "The runs differ, and other programs were not measured"
        ranks = self.measured.ranks
        if ranks > load.cores:
            cores = plural(load.cores, "cores")
            return f"Few other programs ran, but {ranks} ranks share {cores} and take turns, so the runs differ"
        return "Few other programs ran, but the runs differ by themselves"

    def _makespan_noise_pct(self) -> float:
        return _noise_pct([counted(run, self.without).makespan_s for run in self.repeats])

    def _still_readable(self) -> str:
        """Facts that noise does not affect: the number of calls of each communication, and the longest work."""
        rows = self.table().fillna({"predicted_s": 0.0, "measured_s": 0.0}).to_dict("records")
        calls = [row for row in rows if row["kind"] == "communication"]
        per_name: Counter[str] = Counter()
        for row in calls:
            per_name[row["name"]] += row["measured_calls"]
        counts = ", ".join(f"{name} {count}" for name, count in per_name.items())
        text = f"What can still be read: calls and their bytes are the same on both sides ({counts})" if calls else ""
        if any(row["predicted_calls"] != row["measured_calls"] for row in calls):
            text = "Calls differ between the two sides, which no other program explains"
        work = [row for row in rows if row["kind"] == "compute"]
        longest = {max(work, key=lambda row: row[side])["name"] for side in ("predicted_s", "measured_s") if work}
        agree = f"on both, {longest.pop()} is the longest work" if len(work) > 1 and len(longest) == 1 else ""
        said = "; ".join(filter(None, [text, agree]))
        return f"{said[0].upper()}{said[1:]}." if said else ""

    def record(self) -> RecordedReconciliation:
        """The numbers without the runs, with machine, date, versions and load."""
        from lablib.calibration.machine import machine_text, versions  # these need torch

        about = {"machine": machine_text(self.measured.backend == "nccl"), **versions()}
        about |= {"backend": self.measured.backend, "ranks": str(self.measured.ranks)}
        about |= {"load": "; ".join(map(str, self.loads))}
        rows = [_plain(row) for row in self.table().to_dict("records")]
        return RecordedReconciliation(about, self.sentence(), self.reading(), rows)

    @checked
    def save(self, path: str | Path) -> None:
        """Write `record()` as JSON. Raises OSError if the file cannot be written."""
        self.record().save(path)

    @checked
    def beside(
        self, recorded: RecordedReconciliation, columns: Sequence[str] = ("error_pct", "noise_pct")
    ) -> pd.DataFrame:
        """Columns of this table and of a recorded one by part: "error_pct here", "error_pct recorded", ..."""
        return beside(self.table(), recorded.table(), columns)

    def __repr__(self) -> str:
        return f"Reconciliation({self.sentence()})"

    def _repr_html_(self) -> str:
        table = table_html(self.table(), index=False, float_format="{:.3g}".format, na_rep="-")
        return paragraph(self.sentence()) + table


@checked
def reconcile(
    fn: Callable[..., Any],
    *args: Any,
    ranks: int = 4,
    backend: str = "gloo",
    cluster: str | Cluster = "this-machine",
    repeats: int = 5,
    without: str = "",
    timeout_s: float | None = None,
    fidelity: str = "values",
    share_gpus: bool = False,
) -> Reconciliation:
    """Run a program predicted and measured.

    Args:
        fn, args, ranks, timeout_s, share_gpus: as for `launch`.
        backend: backend of the measurement: "gloo" or "nccl".
        cluster: cluster of the prediction; "this-machine" is the one measured by `lab calibrate`.
        repeats: number of measured runs; one more is run first as a warm-up and does not count.
        without: a phase to leave out on both sides, such as the "setup" at the start of a program.
        fidelity: of the prediction. "shapes" predicts without computing, for programs too large for this CPU that do
            not read the values of a tensor.

    Raises:
        ValueError: an argument is invalid, or there is no profile of this machine yet.
        LaunchError: the program failed on either side.
    """
    repeats = whole_number("repeats", repeats, example=5)
    if backend == "sim":
        raise ValueError('a prediction is held against a real backend: got "sim"; use backend="gloo" or "nccl"')
    simulated = find_cluster(cluster)
    predicting = _with_launches(simulated) if backend == "nccl" else simulated
    predicted = launch(fn, *args, ranks=ranks, cluster=predicting, timeout_s=timeout_s, fidelity=fidelity)
    loads, runs = [], []
    for number in range(1 + repeats):
        runs.append(launch(fn, *args, ranks=ranks, backend=backend, timeout_s=timeout_s, share_gpus=share_gpus))
        if number in (0, repeats):  # after the warm-up and after the last
            loads.append(host_load())
    return Reconciliation.of(predicted, runs[1:], without, _notes(simulated, ranks, backend, runs[-1]), loads)


def _with_launches(cluster: Cluster) -> Cluster:
    """The cluster for a comparison with kernels: without a measured launch time, it is all of the overhead."""
    device = cluster.device
    return cluster if device.launch_s else cluster.replace(device=replace(device, launch_s=device.kernel_overhead_s))


def _notes(cluster: Cluster, ranks: int, backend: str, run: Run) -> list[str]:
    now = {"ranks": str(ranks), "backend": backend}
    links = cluster.profile.get("links")
    if links:  # measured on one GPU: the profile is valid for any number of ranks
        del now["ranks"]
    others = [f"{key} {value}" for key, value in cluster.profile.items() if key in now and value != now[key]]
    told = [f"The profile of {cluster.name} is for {' and '.join(others)}."] if others else []
    told += [f"The links of {cluster.name} are those {links}."] if links and ranks > 1 else []
    if backend == "nccl" and cluster.device.kernel_overhead_s and not cluster.device.launch_s:
        told.append(
            f"{cluster.device.name} does not tell launch from kernel: all of its kernel_overhead_s is taken for "
            "launch. Predicted compute leaves out the least time that a kernel takes, and predicted idle time has it."
        )
    return told + [note[:1].upper() + note[1:] + "." for note in run.notes]


def _are_close(one: Any, other: Any) -> bool:
    """Whether two returned values are equal to a thousandth: numbers, tensors, and lists and dictionaries of them."""
    from torch.testing import assert_close

    try:
        assert_close(one, other, rtol=1e-3, atol=1e-5, equal_nan=True, check_device=False)
    except AssertionError:
        return False
    except TypeError:  # other types, such as texts
        return bool(one == other)
    return True


def _seconds(parts: Mapping[TimePart, Spent], part: TimePart) -> float:
    return parts[part].time_s if part in parts else nan


def _calls(parts: Mapping[TimePart, Spent], part: TimePart) -> int:
    return parts[part].calls if part in parts else 0


def _error_pct(predicted_s: float, measured_s: float) -> float:
    """Error in percent; NaN if a side is missing or the measurement is zero."""
    return 100 * (predicted_s / measured_s - 1) if measured_s else nan


def _noise_pct(seconds: Sequence[float]) -> float:
    """Half the range over the median; NaN for one repeat."""
    middle_s = median(seconds)
    return 100 * (max(seconds) - min(seconds)) / 2 / middle_s if len(seconds) > 1 and middle_s else nan


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row for JSON: None for NaN, and four significant digits of measured numbers."""
    plain = {str(key): None if value != value else value for key, value in row.items()}
    return {
        key: float(f"{value:.4g}") if value is not None and key.endswith(("_s", "_pct")) else value
        for key, value in plain.items()
    }


def _title(row: Mapping[str, Any]) -> str:
    return {"compute": row["name"], "exposed": "exposed communication"}.get(row["kind"], row["kind"])
