"""Recorded runs of compression methods: loss and bytes on a small GPT, with equal tuning.

Four simulated ranks train a GPT of 2 layers and width 32 on bytes of Python's standard library, 2 sequences of 64 each
per step, 192 steps of AdamW. Every method gets the same search: three rates, factors of two apart, on one seed, a
fourth if the best is at the edge; then three other seeds at its best rate. A seed sets the initial weights and the
order of the text, the same for all methods.

    method                       payload
    none                         gradients in 32 bits, every step
    INT8, INT4                   codes in blocks of 256, in two phases
    top-k, random-k              1% of the gradients
    PowerSGD 1, 4                factors of rank 1, 4
    one bit                      signs and a scale; "1-bit Adam" sends momentum as these, after a fifth of the steps
    local SGD H, DiLoCo H        parameters every H steps, averaged, or given to an outer optimizer
    streaming DiLoCo H           the same in two fragments, two steps late
    stale s                      gradients in 32 bits, applied s steps later

"no feedback" is the method without error feedback; all other methods that drop information use it. "SGD, ..." is the
same with SGD and momentum instead of AdamW: feedback corrects updates that are linear in the gradient; Adam's are not.

Cost: none. The runs are a file; `benchmarks/compression_evidence.py` makes them again.
Source: own runs; comparison of differences: lablib/studies/optimizers.py.
Simplified: 192 steps are the beginning of a training: DiLoCo's outer momentum sees 3 synchronizations at H = 64. One
model, 4 ranks, 1% of 36,000 gradients: the order of methods may differ elsewhere.
"""

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lablib.signature import checked
from lablib.studies.optimizers import difference
from lablib.text.files import read_text

if TYPE_CHECKING:
    import pandas as pd

RECORDED = Path(__file__).with_name("compression.jsonl")


@dataclass(frozen=True)
class CompressedRun:
    """Record of one method."""

    name: str
    lr: float  # the best of the search
    is_inside: bool  # whether a smaller and a larger rate were worse
    losses: Mapping[int, float]  # seed -> held-out loss at the end, nats per byte; infinite if training diverged
    sent_bytes: float  # mean bytes sent per rank and step
    every: int = 1  # steps between synchronizations

    @property
    def loss(self) -> float:
        return statistics.mean(self.losses.values())


@checked
def recorded_runs(path: Path = RECORDED) -> dict[str, CompressedRun]:
    """Every method with all three seeds, in the order of the runs.

    Raises OSError, ValueError: no such file, or a file of another kind.
    """
    try:
        rows = [json.loads(line) for line in read_text(path).splitlines()]
        settings = rows[-1]["settings"]
        rows = [row for row in rows if row["settings"] == settings]
        names = dict.fromkeys(row["method"] for row in rows if row["part"] == "final")
        runs = [_run(name, [row for row in rows if row["method"] == name]) for name in names]
    except (KeyError, TypeError, IndexError, ValueError):
        raise ValueError(f"{path} must hold runs as benchmarks/compression_evidence.py writes them.") from None
    return {run.name: run for run in runs if len(run.losses) > 2}


@checked
def table(runs: Mapping[str, CompressedRun], reference: str = "none") -> "pd.DataFrame":
    """One row per method: bytes per step, reduction factor, loss, and its difference from the reference's."""
    import pandas as pd

    rows = []
    for name, run in runs.items():
        apart = difference(run.losses, runs[reference].losses)
        rows.append(
            {
                "method": name,
                "sent (B/step)": round(run.sent_bytes),
                "times fewer": runs[reference].sent_bytes / run.sent_bytes,
                "loss (nats)": run.loss,
                f"less {reference}'s": apart.mean,
                "+- 95%": apart.half_width,
                "lr": run.lr,
            }
        )
    return pd.DataFrame(rows).set_index("method")


def _run(name: str, rows: list[dict[str, Any]]) -> CompressedRun:
    search = {row["lr"]: row["loss"] for row in rows if row["part"] == "search"}
    finals = [row for row in rows if row["part"] == "final"]
    lr = finals[-1]["lr"]
    losses = {row["seed"]: float(row["loss"]) for row in finals}
    last = finals[-1]
    return CompressedRun(name, lr, min(search) < lr < max(search), losses, last["sent_bytes"], last["every"])
