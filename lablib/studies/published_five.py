"""Five published runs, and step times from utilizations: a naive estimate next to the planner.

    naive step = 6 N T / (GPUs * peak * utilization)        N parameters, T tokens of a step, peak of the precision

The runs differ in size, machine, split and precision. They were chosen before they were predicted.

Cost: a prediction per run.
Source: lablib/validation/published_runs.jsonl has the source of each row. Simplified: one row per source.
"""

from __future__ import annotations

from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any

from lablib.models.transformer_sizes import transformer_parameters
from lablib.plan.predict import predict
from lablib.signature import Positive, checked
from lablib.text.units import format_quantity
from lablib.validation.rows import published_rows
from lablib.validation.score import Scored, score

if TYPE_CHECKING:
    import pandas as pd

IDS = ("megatron-sc21-1.7b", "korthikanti22-175b-selective", "bloom-L617", "mpt-L98", "titan-t5-1f1b")


class PublishedRuns:
    """Five runs, the smallest model first."""

    @cached_property
    def runs(self) -> dict[str, Scored]:
        """Name -> run, with its measured and its predicted step."""
        rows = [row for row in published_rows() if row.id in IDS]
        found = sorted(score(rows, predict).scored, key=_size)
        gpus = [f"{run.row.hardware['gpus']} {run.row.hardware['gpu'][:4]}" for run in found]
        return {f"{_size(run) / 1e9:.3g}B on {on}": run for run, on in zip(found, gpus, strict=True)}

    def table(self) -> pd.DataFrame:
        """The runs, without their times."""
        import pandas as pd

        rows = {}
        for name, run in self.runs.items():
            case = run.case
            row = {"split": str(case.parallel), "sequences": case.batch, "tokens of each": case.seq_len}
            rows[name] = row | {"recompute": case.recompute, "precision": case.precision}
        return pd.DataFrame(rows).T

    def utilizations(self) -> list[float]:
        """Measured shares of the peak in percent, and their mean."""
        found = [100 * naive_step_s(run, 100) / (run.measured.step_time_s or inf) for run in self.runs.values()]
        return [*found, sum(found) / len(found)]

    def errors(self, *percents: float) -> pd.DataFrame:
        """Measured seconds and utilization; seconds and errors of the planner, of utilizations in percent (one for
        each run), and of one for all.
        """
        import pandas as pd

        *own, for_all = percents
        if len(own) != len(self.runs):
            raise ValueError(f"give {len(self.runs)} utilizations, and one for all: got {len(percents)} numbers")
        rows: dict[str, dict[str, Any]] = {}
        sums: dict[str, float] = dict.fromkeys(("planner", "yours", "one for all"), 0.0)
        for (name, run), percent in zip(self.runs.items(), own, strict=True):
            measured = run.measured.step_time_s or inf
            times = (run.step_time_s, naive_step_s(run, percent), naive_step_s(run, for_all))
            utilization = naive_step_s(run, 100) / measured
            rows[name] = {"measured": format_quantity(measured, "s"), "utilization": f"{utilization:.0%}"}
            for who, time_s in zip(sums, times, strict=True):
                rows[name][who] = f"{format_quantity(time_s, 's')} ({time_s / measured - 1:+.0%})"
                sums[who] += abs(time_s / measured - 1) / len(own)
        rows["mean error"] = {"measured": "", "utilization": ""} | {who: f"{error:.0%}" for who, error in sums.items()}
        return pd.DataFrame(rows).T


@checked
def naive_step_s(run: Scored, percent: Positive) -> float:
    """Seconds of a step by 6 N T at a utilization in percent."""
    case = run.case
    peak = case.parallel.num_ranks * case.cluster.device.peak(case.precision)
    return 6 * _size(run) * case.batch * case.seq_len / (peak * percent / 100)


def _size(run: Scored) -> int:
    return transformer_parameters(run.case.model).total
