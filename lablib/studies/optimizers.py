"""Recorded trials of every optimizer, and statistics of their differences over a few seeds.

Each optimizer was searched in the same way (studies/optimizer_search.py) and then run on seeds outside the search. A
seed sets the initial weights and the order of the text, the same for all: two optimizers are compared seed by seed, so
that the difficulty of a seed cancels.

    d_s = loss of A on seed s - loss of B on seed s             n seeds, mean d, standard deviation s_d
    95% interval of the true difference: d +- t s_d / sqrt(n)   t = 4.30 for n = 3, 2.78 for n = 5, 1.96 for many

An interval that contains 0 allows either to be the better one: within noise. An interval that does not may still be
chance, once in twenty comparisons; among ten optimizers other than AdamW expect one such in two tables.

Within noise is not equal: noisier losses put more within it. A choice asks another question, whether the loss in
quality can matter: A is as good as B if the upper end of the interval is at most `MARGIN_NATS`. Noise then only harms.
The margin, 0.05 nats per byte, is a fifth of Muon's gain here, and about the resolution of five seeds: intervals of
those near AdamW reach 0.02 to 0.05 to either side.

Cost: none. The trials are a file; `benchmarks/optimizer_evidence.py` makes them again.
Source: Student, "The probable error of a mean", 1908; protocol: studies/optimizer_search.py and
studies/optimizer_trial.py.
Simplified: differences are assumed normal, which three seeds cannot show. One model, one text, one length: the order
may differ elsewhere. Published results at larger sizes: `PUBLISHED`.
"""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lablib.signature import checked
from lablib.studies.optimizer_search import best_of_means
from lablib.text.files import read_text

if TYPE_CHECKING:
    import pandas as pd

RECORDED = Path(__file__).with_name("optimizers.jsonl")
MARGIN_NATS = 0.05
# Student's t at 97.5% for n - 1 degrees of freedom, n from 2.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


@dataclass(frozen=True)
class Published:
    """A published result: the usual advice, or a comparison under equal tuning."""

    claim: str
    source: str


PUBLISHED = (
    Published(
        "Ten optimizers, each tuned, 0.1 to 1.2 billion parameters: those that use matrices (Muon, SOAP) are the "
        "fastest, 1.4 times AdamW at 0.1 billion and 1.1 times at 1.2 billion; orders can flip while the rate decays.",
        "Wen et al., 2025, arXiv 2509.02046, abstract",
    ),
    Published(
        "With rates carried to other widths by a rule for each optimizer, Muon, SOAP and Shampoo stay near 1.4 times "
        "AdamW from 190 million to 1.4 billion parameters; with a wrong rule the gain vanishes with size.",
        "Qiu et al., 2025, arXiv 2512.05620, abstract",
    ),
    Published(
        "AdamW, Lion and Sophia, each tuned with muP, end in about the same range: Sophia with the least loss, Lion "
        "with the fewest GPU hours, AdamW best downstream.",
        "Schlotthauer et al., 2025, arXiv 2507.08472, abstract",
    ),
    Published(
        "Advice: Adafactor for very large models, if other states would not fit.",
        "Shazeer and Stern, 2018, arXiv 1804.04235; used by Raffel et al., 2019, arXiv 1910.10683, for T5",
    ),
    Published("Advice: LAMB for large batches, up to 32,868 sequences for BERT.", "You et al., 2019, arXiv 1904.00962"),
    Published(
        "Advice: Sophia for language models, half the steps of AdamW to the same loss.",
        "Liu et al., 2023, arXiv 2305.14342, abstract",
    ),
)


@dataclass(frozen=True)
class OptimizerResult:
    """Record of one optimizer."""

    name: str
    lr: float  # lr, weight_decay: the best of the search
    weight_decay: float
    num_trials: int  # settings that the search tried
    is_inside: bool  # whether a smaller and a larger rate were worse than the best
    losses: Mapping[int, float]  # seed -> held-out loss at the end, nats per byte
    tokens: Sequence[int]  # at each evaluation
    curve: Sequence[float]  # held-out loss at each evaluation, mean over seeds; of fewer sequences than `losses`
    bytes_per_parameter: float  # of state, mean over all parameters of the model
    temporary_bytes_per_parameter: float  # needed by a step beyond weights, gradients and state
    step_ratio: float  # processor seconds of a training step, over AdamW's in the same process
    optimizer_ratio: float  # the same of the optimizer's part

    @property
    def loss(self) -> float:
        return statistics.mean(self.losses.values())

    @property
    def needed_bytes_per_parameter(self) -> float:
        """Memory in addition to weights and gradients: state, and temporary memory of a step."""
        return self.bytes_per_parameter + self.temporary_bytes_per_parameter


@dataclass(frozen=True)
class Difference:
    """Loss of one optimizer minus the loss of another, seed by seed."""

    each: tuple[float, ...]  # of every seed that both ran
    mean: float
    half_width: float  # of the 95% interval around the mean

    @property
    def is_noise(self) -> bool:
        """Whether either may be the better one."""
        return not abs(self.mean) > self.half_width

    @property
    def at_most(self) -> float:
        """Upper end of the interval: the most that the first may lose relative to the second."""
        return self.mean + self.half_width

    def sentence(self, first: str, second: str) -> str:
        if self.is_noise:
            return (
                f"{first} and {second}: within noise ({self.mean:+.3f} +- {self.half_width:.3f} nats, "
                f"{len(self.each)} seeds)."
            )
        word = "less" if self.mean < 0 else "more"
        return f"{first} loses {abs(self.mean):.3f} +- {self.half_width:.3f} nats {word} than {second}."


@checked
def difference(first: Mapping[int, float], second: Mapping[int, float]) -> Difference:
    """The difference of two runs' losses on the seeds that both have, with its 95% interval.

    `first`, `second`: seed -> loss. Raises ValueError: fewer than two seeds in common, so that noise is unknown.
    """
    seeds = sorted(first.keys() & second.keys())
    if len(seeds) < 2:
        raise ValueError(f"two runs must have at least 2 seeds in common: got {len(seeds)}; run more seeds of both.")
    each = tuple(first[seed] - second[seed] for seed in seeds)
    t = _T[len(each) - 2] if len(each) - 2 < len(_T) else 1.96
    return Difference(each, statistics.mean(each), t * statistics.stdev(each) / math.sqrt(len(each)))


@checked
def recorded_results(path: Path = RECORDED) -> dict[str, OptimizerResult]:
    """The recorded trials, the least loss first, of every optimizer with a complete record (speed is recorded last).

    Raises OSError, ValueError: no such file, or a file of another kind.
    """
    text = read_text(path)
    try:
        rows = [json.loads(line) for line in text.splitlines()]
        names = dict.fromkeys(row["optimizer"] for row in rows if row["part"] == "speed")
        (settings,) = (row for row in rows if row["part"] == "settings")
        results = [_result(name, [row for row in rows if row["optimizer"] == name], settings) for name in names]
    except (KeyError, TypeError, IndexError, ValueError):
        raise ValueError(f"{path} must hold trials as benchmarks/optimizer_evidence.py writes them.") from None
    return {result.name: result for result in sorted(results, key=lambda result: result.loss)}


@checked
def about(path: Path = RECORDED) -> str:
    """Versions, dates and machine of the recorded trials, in words."""
    rows = [json.loads(line) for line in read_text(path).splitlines()]

    def all_of(key: str) -> str:
        return ", ".join(sorted({row[key] for row in rows}))

    seconds = sum(row["cpu_s"] for row in rows)
    return (
        f"{len(rows)} rows, {seconds / 60:.0f} minutes of one core ({all_of('machine')}), {all_of('date')}; torch "
        f"{all_of('torch')}, Python {all_of('python')}; settings {all_of('settings')}."
    )


@checked
def table(results: Mapping[str, OptimizerResult], reference: str = "adamw") -> "pd.DataFrame":
    """One row per optimizer: loss, its difference from the reference with its interval, a conclusion, and costs."""
    import pandas as pd

    rows = []
    for name, result in results.items():
        apart = difference(result.losses, results[reference].losses)
        verdict = "noise" if apart.is_noise else "less" if apart.mean < 0 else "more"
        rows.append(
            {
                "optimizer": name,
                "loss (nats)": result.loss,
                f"less {reference}'s": apart.mean,
                "+- 95%": apart.half_width,
                "verdict": "itself" if result is results[reference] else verdict,
                "lr": result.lr,
                "decay": result.weight_decay,
                "trials": result.num_trials,
                "state (B/parameter)": result.bytes_per_parameter,
                "step needs (B/parameter)": result.temporary_bytes_per_parameter,
                "step time (1 = AdamW)": result.step_ratio,
            }
        )
    return pd.DataFrame(rows).set_index("optimizer")


def _result(name: str, rows: Sequence[dict[str, Any]], settings: dict[str, Any]) -> OptimizerResult:
    parts = {part: [row for row in rows if row["part"] == part] for part in ("search", "final", "speed", "memory")}
    trials: dict[tuple[float, float], list[float]] = {}
    for row in parts["search"]:
        trials.setdefault((row["lr"], row["weight_decay"]), []).append(row["loss"])
    lr, decay = best_of_means(trials)
    rates = [rate for rate, other in trials if other == decay]
    finals = [row for row in parts["final"] if (row["lr"], row["weight_decay"]) == (lr, decay)]
    memory, speed = parts["memory"][0], parts["speed"][0]
    batch_size, seq_len, _ = settings["batch"]
    curves = [[loss for _, loss in row["curve"]] for row in finals]
    return OptimizerResult(
        name,
        lr,
        decay,
        len(trials),
        min(rates) < lr < max(rates),
        {row["seed"]: row["loss"] for row in finals},
        [step * batch_size * seq_len for step, _ in finals[0]["curve"]],
        [statistics.mean(losses) for losses in zip(*curves, strict=True)],
        memory["state_bytes"] / memory["num_parameters"],
        memory["temporary_bytes"] / memory["num_parameters"],
        speed["step_ratio"],
        speed["optimizer_ratio"],
    )
