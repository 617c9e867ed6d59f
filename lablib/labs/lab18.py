"""Lab 18: a capstone in steps of a notebook: choices, locked predictions, both runs, the report; its one import."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from lablib import capstone
from lablib.capstone import figures as report_figures
from lablib.capstone import findings, simulate_large, train_small
from lablib.capstone.brief import MEASURES, as_transformer
from lablib.capstone.small_run import ANSWERS
from lablib.course import Guess, Guesses, checks_for, guess, try_out
from lablib.course.answers import own_answers
from lablib.course.checks.expect import NotAttempted
from lablib.course.places import find_labs_folder, work_folder
from lablib.course.progress import progress_path
from lablib.course.table import table as text_table
from lablib.figures import show
from lablib.figures.chart import Axis, Panel, ReferenceLine, chart, line
from lablib.models.scaling_law import REPLICATION
from lablib.models.training_compute import over_six_n_d
from lablib.plan import Prediction, search
from lablib.text.files import write_text
from lablib.text.units import format_quantity, plural
from lablib.train.config import DataConfig, ModelConfig, OptimizerConfig, TrainConfig
from lablib.validation.explain import kinds_of

# Losses of the first steps of the small run, two ranks, gloo, batches of 16 sequences of 64 bytes of Python's sources.
_FIRST = "5.39 5.26 5.1 4.93 4.85 4.65 4.5 4.15 4.2 3.98 3.94 3.61 3.51 3.36 3.45 3.09 3.11 3.2 3.26 3.26"
FIRST_LOSSES = tuple(map(float, _FIRST.split()))
ASKED = ("large step, s", "memory of a GPU, GB", "small loss, nats", "small step, ms")
_WIDTH = 95  # characters of a printed line in JupyterLab next to its list of files
_HEADING = ("#", "report", "author", "brief", "nats", "hours", "off by", "points")  # of the leader board
_METHOD = "a guess before the runs, next to the planner's numbers"
# For each brief: layers, width, heads, sequences of a step, and a plan that is possible.
STARTS = {
    "one-billion": (24, 2048, 16, 512, ("parallel.zero_stage=1", "data.micro_batch=4")),
    "thirteen-billion": (40, 5120, 40, 512, ("parallel.zero_stage=3", "data.micro_batch=2", "memory.recompute=full")),
    "long-context": (32, 2560, 32, 64, ("parallel.zero_stage=3", "data.micro_batch=1", "memory.recompute=full")),
}


def figure_question() -> go.Figure:
    """The first steps of a small run; the rest of the axis is empty."""
    steps = list(range(1, len(FIRST_LOSSES) + 1))
    rules = [ReferenceLine(x=60, text="end of the run?", place="top left")]
    axes = Axis("step", span=(0, 64)), Axis("loss", "nats", span=(2, 6))
    panel = Panel(*axes, [line(0, "loss", steps, FIRST_LOSSES)], rules)
    sentence = f"{len(steps)} steps of a small run. Where does it end, and which conclusion holds for a large one?"
    return chart("Plan, predict, run, reconcile", panel, sentence)


def forecast(steps: Sequence[int], losses: Sequence[float], at_step: int) -> float:
    """The loss at `at_step` by E + A / t^a, fitted by least squares for each a of a grid."""
    t, y = np.asarray(steps, dtype=float), np.asarray(losses, dtype=float)
    best = (np.inf, 0.0)
    for a in np.linspace(0.05, 1.5, 291):
        columns = np.stack([np.ones_like(t), t**-a], axis=1)
        found = np.linalg.lstsq(columns, y, rcond=None)[0]
        residual = float(((columns @ found - y) ** 2).sum())
        best = min(best, (residual, float(found[0] + found[1] * at_step**-a)))
    return best[1]


def own_parts() -> dict[str, Callable[..., Any]]:
    """Answers of the learner's copies in work/ that pass today, as parts of the small run; prints those left out."""
    found, notes = own_answers(ANSWERS)
    if "all_reduce" in found:
        found.pop("average_gradients", None)  # a run has one of the two
    print("".join(f"{fill(note, _WIDTH)}\n" for note in notes), end="")
    return found


def table(rows: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Name -> values as a table, a row each."""
    return pd.DataFrame(rows).T.fillna("")


def small_config(quick: bool) -> TrainConfig:
    """The small run: 60 steps on bytes, or 100."""
    steps = 60 if quick else 100
    rate = OptimizerConfig(lr=3e-3, schedule="wsd", num_warmup=6, num_decay=steps // 3, max_norm=1.0)
    return TrainConfig(
        model=ModelConfig(num_layers=2, d_model=64, num_heads=4),
        data=DataConfig(batch_size=16, seq_len=64),
        optimizer=rate,
        num_steps=steps,
    )


class Capstone:
    """One capstone, step by step. `report` is the report so far."""

    def __init__(self, brief: str, ranks: int, backend: str, quick: bool):
        found = capstone.find_brief(brief)
        layers, width, heads, batch, changes = STARTS.get(brief, STARTS["one-billion"])
        sizes = ModelConfig(
            num_layers=layers, d_model=width, num_heads=heads, vocab_size=found.vocab_size, max_seq_len=found.seq_len
        )
        config = TrainConfig(model=sizes, data=DataConfig(batch_size=batch, seq_len=found.seq_len))
        self._start = capstone.changed(config, ["precision.products=bfloat16"])
        self.brief, self.backend, self.changes = found, backend, list(changes)
        large = capstone.changed(self._start, self.changes)
        self.report = capstone.Report("", "", found, large, small_config(quick), ranks, brief_name=brief)

    def table(self) -> pd.DataFrame:
        """The brief in numbers."""
        brief, device = self.brief, self.brief.machine.device
        rows = {
            "GPUs": f"{brief.gpus} of {brief.cluster}, {format_quantity(device.memory_bytes, 'B')} each",
            "peak of a GPU, BF16": format_quantity(device.peak("bfloat16"), "FLOP/s"),
            "budget": f"{brief.gpu_hours:,g} GPU hours within {brief.days:g} days",
            "parameters": f"{brief.min_parameters / 1e9:g} to {brief.max_parameters / 1e9:g} billion",
            "corpus": f"{brief.corpus_tokens / 1e9:g} billion tokens, {brief.seq_len:,} at a time",
            "goal": f"a loss of {brief.goal_loss:g} nats by the scaling law",
            "better is": MEASURES[brief.measure],
        }
        return table({name: {"": value} for name, value in rows.items()})

    def figure_sizes(self) -> go.Figure:
        """The loss of each size for the budget of the brief, at three shares of the peak.

        FLOPs are counted as by the planner's MFU: 6 N D, and attention in proportion as in the lab's model.
        """
        brief = self.brief
        attention = float(over_six_n_d(as_transformer(self._start.model), brief.seq_len))
        low, high = brief.min_parameters / 3, brief.max_parameters * 3
        sizes = [low * (high / low) ** (i / 60) for i in range(61)]
        hours, peak = min(brief.gpu_hours, brief.days * 24 * brief.gpus), brief.machine.device.peak("bfloat16")
        marks = []
        for number, share in enumerate((0.5, 0.4, 0.3)):
            flops = share * hours * 3600 * peak
            losses = [REPLICATION.loss(size, flops / (6 * size * attention), brief.corpus_tokens) for size in sizes]
            marks.append(line(number, f"{share:.0%} of the peak", sizes, losses))
        ends = [
            ReferenceLine(x=brief.min_parameters, text="least of the brief", place="top left"),
            ReferenceLine(x=brief.max_parameters, text="most", place="top right"),
            ReferenceLine(y=brief.goal_loss, text="goal", place="bottom right"),
        ]
        ticks = {each * 1e9: f"{each:g}" for each in (0.5, 1, 2, 4, 8, 16, 32) if low <= each * 1e9 <= high}
        losses = [brief.goal_loss, *(each for mark in marks for each in mark.y)]
        air = 0.05 * (max(losses) - min(losses))  # more above, for the labels
        upwards = Axis("loss by the scaling law", "nats", span=(min(losses) - air, max(losses) + 3 * air))
        panel = Panel(Axis("parameters, billions", log=True, ticks=ticks), upwards, marks, ends)
        billions = f"{brief.corpus_tokens / 1e9:g} billion tokens"
        sentence = f"{hours:,g} GPU hours of {brief.cluster}, and a corpus of {billions}: the loss of each size."
        sentence += f" Attention adds {attention - 1:.0%} to 6 N D."
        return chart("Loss against size, for one budget", panel, sentence)

    def planned(self, changes: Sequence[str]) -> Prediction:
        """The planner's step of the brief's model with these changes. ValueError: unknown fields, wrong axes."""
        return capstone.plan_step(capstone.changed(self._start, list(changes)), self.brief.cluster, self.brief.gpus)

    def compare(self, plans: Mapping[str, Sequence[str]]) -> pd.DataFrame:
        """A row for each plan: step, memory, share of the peak, the largest part besides products."""
        rows = {}
        for name, changes in plans.items():
            try:
                found = self.planned(changes)
            except ValueError as error:
                print(f"{name}: {error}")
                continue
            others = {part: time_s for part, time_s in found.parts.items() if part != "products"}
            rows[name] = {
                "step": format_quantity(found.step_time_s, "s"),
                "memory": format_quantity(found.peak_memory_bytes, "B"),
                "MFU": f"{found.mfu:.0%}",
                "after products": max(others, key=lambda part: others[part]),
                "fits": "yes" if found.fits else "no",
            }
        return table(rows)

    def choose(self, changes: Sequence[str] | None, others: Mapping[str, Sequence[str]], share: float = 0.7) -> str:
        """Take a plan with as many steps as this share of the budget allows, by the planner; remember the others.

        None: the plan that the project began with.
        """
        self.changes = changes = list(self.changes if changes is None else changes)
        large = capstone.changed(self._start, changes)
        step_s = capstone.plan_step(large, self.brief.cluster, self.brief.gpus).step_time_s
        most = share * min(self.brief.gpu_hours, self.brief.days * 24 * self.brief.gpus)
        large = replace(large, num_steps=max(1, int(most * 3600 / self.brief.gpus / step_s)))
        alternatives = []
        for name, other in others.items():
            instead = tuple(_undone(changes, other))
            try:
                found = capstone.plan_step(capstone.changed(large, instead), self.brief.cluster, self.brief.gpus)
            except ValueError:
                continue
            if capstone.changed(large, instead) != large:
                reason = f"{name}: a step of {found.step_time_s / step_s:.2f} times"
                alternatives.append(capstone.Alternative(instead, found.step_time_s, found.peak_memory_bytes, reason))
        self.report = replace(self.report, large=large, alternatives=tuple(alternatives))
        loss = self.brief.loss(large)
        return f"{large.num_steps:,} steps; {loss:.3f} nats by the scaling law, the goal is {self.brief.goal_loss:g}"

    def terms(self, *_: float) -> tuple[dict[str, float], dict[str, float]]:
        """Seconds of a step by kind of work: by the planner, and of the simulated step."""
        planned = kinds_of(self.planned(self.changes))
        return planned, dict(capstone.simulate_step(self.report.large, self.brief.cluster, self.brief.gpus).terms)

    def farthest_kind(self) -> str:
        """The kind of work in which the planner and the simulated step differ by the most seconds."""
        planned, simulated = self.terms()
        return max(simulated, key=lambda name: abs(planned[name] - simulated[name]))

    def terms_table(self, *_: float) -> pd.DataFrame:
        """The terms of both, the step, and the step that was predicted."""
        planned, simulated = self.terms()
        rows = {name: {"planner": planned[name], "simulated": time_s} for name, time_s in simulated.items()}
        rows["step"] = {"planner": sum(planned.values()), "simulated": sum(simulated.values())}
        rows["your prediction"] = {"planner": self.report.predicted.step_s or 0.0}
        return table({name: {by: f"{time_s:.4f} s" for by, time_s in row.items()} for name, row in rows.items()})

    def run(self, own: Mapping[str, Callable[..., Any]] | None = None, method: str = _METHOD) -> Callable[..., Any]:
        """A function of the four predictions: it locks them, runs both, and returns the table."""

        def both(step_s: float, memory_gb: float, small_loss: float, small_step_ms: float) -> pd.DataFrame:
            report = self.report
            said = capstone.Predicted(
                step_s=step_s,
                memory_bytes=memory_gb * 1e9,
                gpu_hours=capstone.gpu_hours(report, step_s),
                loss=self.brief.loss(report.large),
                small_loss=small_loss,
                small_step_s=small_step_ms / 1e3,
                small_memory_bytes=_small_bytes(report.small),
                method=method,
            )
            report = capstone.locked(replace(report, predicted=said), capstone.now())
            report = capstone.with_runs(report, small=train_small(report, self.backend, capstone.Parts(**(own or {}))))
            self.report = capstone.with_runs(report, large=simulate_large(report))
            return self.errors()

        return both

    def errors(self) -> pd.DataFrame:
        """Predicted, measured, error and band of each quantity, by its name in the report."""
        rows, found = {}, capstone.errors(self.report)
        for name, value in capstone.measured(self.report).items():
            quantity, said = capstone.QUANTITIES[name], getattr(self.report.predicted, name)
            inside = quantity.is_within(said, value)
            band = f"{quantity.band:g} nats" if quantity.is_loss else f"factor {quantity.band:g}"
            rows[name] = {
                "quantity": quantity.title,
                "predicted": quantity.text(said),
                "measured": quantity.text(value),
                "error": quantity.error_text(found[name]),
                "band": f"{band}: {'within' if inside else 'beyond'}",
            }
        return table(rows)

    def compare_guesses(self, loss: Guess, share: Guess, predicted: Guesses) -> None:
        """Print guesses next to the runs: the small loss, the share of the peak in the simulated step, and `ASKED`."""
        report, seen = self.report, capstone.measured(self.report)
        loss.reveal(seen["small_loss"])
        flops = capstone.plan_step(report.large, self.brief.cluster, self.brief.gpus).model_flops
        rate = flops / seen["step_s"] / self.brief.gpus
        share.reveal(100 * rate / self.brief.machine.device.peak("bfloat16"))
        predicted.compare(seen["step_s"], seen["memory_bytes"] / 1e9, seen["small_loss"], 1e3 * seen["small_step_s"])

    def loss_figure(self, *_: float) -> go.Figure:
        """The loss of the small run."""
        figure = report_figures.figure_loss(self.report)
        assert figure is not None
        return figure

    def explain(self, reasons: Mapping[str, str], explanations: Mapping[str, str], conclusion: str) -> str:
        """Write the texts into the report; returns the number of words. ValueError: an unknown quantity."""
        if unknown := set(explanations) - set(self.report.reconciled):
            raise ValueError(f"explanations are of {', '.join(self.report.reconciled)}: got {', '.join(unknown)}")
        rows = {
            name: replace(row, explanation=explanations.get(name, row.explanation))
            for name, row in self.report.reconciled.items()
        }
        self.report = replace(self.report, reasons=dict(reasons), reconciled=rows, conclusion=conclusion)
        texts = " ".join((*reasons.values(), *explanations.values(), conclusion)).replace("...", " ")  # the lab's own
        words = len(texts.split())
        return f"The report has {plural(words, 'words')} of yours."

    def judge(self) -> None:
        """Print findings, and the points of each criterion."""
        found = findings(self.report)
        criteria = capstone.rubric(self.report, found)
        rows = []
        for each in criteria:
            points = "instructor" if each.points is None else f"{each.points:g}"
            rows.append((each.name, points, str(each.most), each.text))
        print("\n".join(fill(str(each), _WIDTH) for each in found) or "No findings.")
        print("\n" + text_table(("criterion", "points", "of", "why"), rows, _WIDTH))
        points, most = capstone.machine_points(criteria)
        print(f"\n{points:g} of {most} points that a program gives")

    def save(self, name: str | None) -> str:
        """Write report and page into the work folder; None: nothing is saved."""
        if not name:
            return "Nothing is saved without a name."
        self.report = replace(self.report, author=name, title=self.report.title or f"{self.brief.title}, by {name}")
        if not progress_path():
            return "Nothing is saved, as LAB_PROGRESS=off."
        folder = _reports()
        path = folder / f"{''.join(c if c.isalnum() else '_' for c in name)}.toml"
        capstone.write_report(replace(self.report, where=str(path)), path)
        write_text(path.with_suffix(".html"), capstone.as_html(self.report, findings(self.report)))
        return f"{path} and the page next to it: written"

    def board(self) -> None:
        """Print the reports of the work folder, then the worked examples; large runs are not simulated again."""
        examples = find_labs_folder().parent / "examples" / "capstone"
        for title, folder in (("Reports on this machine", _reports()), ("Worked examples", examples)):
            if any(folder.glob("*.toml")):
                board = capstone.read_board(folder, simulate=False)
                rows = board.rows()
                print(f"{title}\n\n{text_table(_HEADING, [row[:-1] for row in rows])}\n")
                print("".join(f"{fill(f'{row[1]} does not count: {row[-1]}', _WIDTH)}\n" for row in rows if row[-1]))


def priced(plan: Sequence[str]) -> str:
    """The planner's step and memory of a plan for the brief "one-billion"; prints the bounds of exercise 3."""
    project = Capstone("one-billion", 1, "sim", True)
    brief, batch = project.brief, project.report.large.data.batch_size
    model = as_transformer(project.report.large.model)
    best = search(model, brief.cluster, batch, gpus=brief.gpus, seq_len=brief.seq_len).best
    print(f"at most {format_quantity(1.25 * best.step_time_s, 's')} and 20 GB")
    if plan is ...:
        raise NotAttempted
    found = project.planned(plan)
    return f"{format_quantity(found.step_time_s, 's')}, {format_quantity(found.peak_memory_bytes, 'B')}"


def _undone(chosen: Sequence[str], other: Sequence[str]) -> list[str]:
    """The changes of another plan after the chosen plan's: its fields go back to their defaults first."""
    default = TrainConfig()
    names = {change.partition("=")[0] for change in other}
    back = list[str]()
    for change in chosen:
        name = change.partition("=")[0]
        section, _, key = name.partition(".")
        if name not in names:
            value = getattr(getattr(default, section), key)
            back.append(f"{name}={str(value).lower() if isinstance(value, bool) else value}")
    return [*back, *other]


def _small_bytes(config: TrainConfig) -> float:
    """Bytes of the small run on a rank: 16 for each parameter, and the logits of its sequences, three times."""
    model = config.model
    parameters = 12 * model.num_layers * model.d_model**2 + (model.vocab_size + model.max_seq_len) * model.d_model
    tokens = config.data.batch_size / 2 * config.data.seq_len
    activations = tokens * model.num_layers * (34 * model.d_model / 2) * 4
    return 16 * parameters + activations + 3 * 4 * tokens * model.vocab_size


def _reports() -> Path:
    return work_folder(find_labs_folder()) / "18_reports"
