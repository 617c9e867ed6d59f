"""The report of a capstone: choices, predictions, runs and reconciliation, as one TOML file.

    title = "1.2 billion parameters in 300 GPU hours"
    author = "Ada"
    brief = "one-billion"            a name of the course, or a TOML file next to the report
    small_ranks = 2
    [reasons]                        a sentence for each choice
    [large], [small]                 two configurations of `lab train`
    [predicted]                      numbers stated before the runs
    [lock]                           written by `lab capstone lock`
    [[alternatives]]                 other plans, and why not
    [small_run], [large_run]         written by `lab capstone run`
    [reconciled.step_s]              the error of each prediction, and its explanation
    conclusion = "..."

A learner writes choices, reasons, predictions, alternatives, explanations and the conclusion; the rest is written by
`lab capstone`. Parts may be missing while the report is written; consistency.py names them.

Source: none; TOML 1.0.
"""

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from lablib.capstone.brief import Brief, find_brief
from lablib.configs.reading import read_toml, text_of
from lablib.errors import unknown_name
from lablib.signature import Checked, Count, Finite, NonEmpty, OneOf, Range, check_type, checked, hints_of, shown
from lablib.text.files import write_text
from lablib.text.toml import toml_table, toml_value, with_tables
from lablib.train.config import TrainConfig
from lablib.train.read_config import parse_config

CHOICES = ("model", "precision", "optimizer", "batch", "recomputation", "axes", "schedule")
PARTS = ("schedule", "optimizer_step", "all_reduce", "average_gradients")  # that a learner may write: small_run.py
BACKENDS = ("sim", "gloo", "nccl")
Amount = Annotated[float, Range(ge=1e-12, le=1e24, example=1.0)]  # seconds, bytes, hours: their ratios are finite
Planned = Annotated[Amount, "`lab capstone predict` prints it"]
Measured = Annotated[Amount, "run it again"]
Loss = Annotated[float, Range(ge=0, le=1e6), "lower small.optimizer.lr, lock and run it again"]
_REMEDIES = {"lock": "lock it again", "small_run": "run it again", "large_run": "run it again"}


@dataclass(frozen=True)
class Predicted(Checked):
    """Numbers stated before the runs: of the large run, then of the small one. None: not stated."""

    step_s: Amount | None = None  # of one step
    memory_bytes: Amount | None = None  # peak of the fullest GPU
    gpu_hours: Amount | None = None  # of the whole run
    loss: Amount | None = None  # at its end, nats
    small_loss: Amount | None = None  # mean of the last tenth of the steps, nats
    small_step_s: Amount | None = None  # the median
    small_memory_bytes: Amount | None = None  # peak of the fullest rank
    method: str = ""  # how they were predicted


@dataclass(frozen=True)
class Lock(Checked):
    """The digest of choices and predictions, and the time at which it was taken."""

    at: str
    sha256: str


@dataclass(frozen=True)
class Alternative(Checked):
    """Another plan: the fields that differ from [large], the planner's numbers, and the reason against it."""

    changes: tuple[str, ...]  # as overrides of `lab train`: "parallel.tensor=4"
    step_s: Planned
    memory_bytes: Planned
    reason: str = ""


@dataclass(frozen=True)
class SmallRun(Checked):
    """The real run."""

    at: str  # when it began
    sha256: str  # of the lock
    backend: Annotated[str, OneOf(BACKENDS)]
    step_s: Measured  # the median
    memory_bytes: Measured  # of the same program on the simulator, where the backend measures none
    losses: Annotated[tuple[Loss, ...], NonEmpty(), "run it again"]  # of every step
    own_code: tuple[Annotated[str, OneOf(PARTS)], ...] = ()  # parts of the learner's


@dataclass(frozen=True)
class LargeRun(Checked):
    """The run on shapes."""

    at: str
    sha256: str
    step_s: Measured
    memory_bytes: Measured


@dataclass(frozen=True)
class Reconciled(Checked):
    """The error of one prediction, predicted / measured - 1 (of a loss: the difference in nats), explained."""

    error: Annotated[Finite, "`lab capstone run` writes it"]
    explanation: str = ""


_RUNS = {"lock": Lock, "small_run": SmallRun, "large_run": LargeRun}  # written by `lab capstone`


@dataclass(frozen=True)
class Report:
    """A capstone. `where`: the file that it was read from."""

    title: str
    author: str
    brief: Brief
    large: TrainConfig
    small: TrainConfig
    small_ranks: Count = 1
    brief_name: str = ""  # as the report has it
    reasons: Mapping[str, str] = field(default_factory=dict)
    predicted: Predicted = field(default_factory=Predicted)
    lock: Lock | None = None
    alternatives: tuple[Alternative, ...] = ()
    small_run: SmallRun | None = None
    large_run: LargeRun | None = None
    reconciled: Mapping[str, Reconciled] = field(default_factory=dict)
    conclusion: str = ""
    where: str = "report.toml"


@checked
def read_report(path: str | Path) -> Report:
    """The report in a TOML file.

    ValueError: no such file, an unknown field, a wrong value, a brief that is not found.
    """
    return parse_report(read_toml(path), str(path), Path(path).parent)


@checked
def parse_report(values: Mapping[str, Any], where: str = "report.toml", folder: Path | None = None) -> Report:
    """A report from the tables of its file. `folder`: of a brief with a relative path. ValueError."""
    try:
        names = [one.name for one in fields(Report) if one.name not in ("where", "brief_name")]
        _require_known(values, names)
        for name in ("title", "author", "brief"):
            if name not in values:
                raise ValueError(f'a report must have {name}: missing; write {name} = "..."')
            check_type(name, values[name], str)
        tables = {name: values.get(name, {}) for name in ("large", "small", "reasons", "predicted", "reconciled")}
        for name, table in tables.items():
            _require_table(name, table)
        _require_known(tables["reasons"], CHOICES, "reasons.")
        reasons = {name: _typed(f"reasons.{name}", text, str) for name, text in tables["reasons"].items()}
        stated = tables["reconciled"].items()
        reconciled = {name: _record(Reconciled, table, f"reconciled.{name}") for name, table in stated}
        _require_known(reconciled, [one.name for one in fields(Predicted) if one.name != "method"], "reconciled.")
        alternatives = _typed("alternatives", values.get("alternatives", []), list)
        report = Report(
            title=values["title"],
            author=values["author"],
            brief=find_brief(values["brief"], folder),
            brief_name=values["brief"],
            large=parse_config(tables["large"], "large"),
            small=parse_config(tables["small"], "small"),
            small_ranks=_typed("small_ranks", values.get("small_ranks", 1), Count),
            reasons=reasons,
            predicted=_record(Predicted, tables["predicted"], "predicted"),
            alternatives=tuple(_record(Alternative, each, "alternatives") for each in alternatives),
            **{name: _record(kind, values[name], name) for name, kind in _RUNS.items() if name in values},
            reconciled=reconciled,
            conclusion=_typed("conclusion", values.get("conclusion", ""), str),
            where=where,
        )
        if absent := [name for name in ("large", "small") if name not in values]:
            raise ValueError(f"a report must have [{absent[0]}]: missing; write its configuration, or num_steps alone")
        return report
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _typed(name: str, value: Any, hint: Any) -> Any:
    check_type(name, value, hint)
    return value


def _record(kind: type[Any], values: Any, section: str) -> Any:
    _require_table(section, values)
    hints = hints_of(kind)
    _require_known(values, list(hints), f"{section}.")
    for one in fields(kind):
        if one.name in values:
            check_type(f"{section}.{one.name}", values[one.name], hints[one.name])
        elif one.default is MISSING:
            remedy = _REMEDIES.get(section, f"write {section}.{one.name} = ...")
            raise ValueError(f"{section} must have {one.name}: missing; {remedy}")
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def _require_table(name: str, values: Any) -> None:
    if not isinstance(values, dict):
        heading = "[[alternatives]]" if name == "alternatives" else f"[{name}]"
        raise ValueError(f"{name} must be a table of fields: got {shown(values)}; write {heading}")


def _require_known(values: Mapping[str, Any], names: Any, section: str = "") -> None:
    if unknown := [name for name in values if name not in names]:
        raise unknown_name("field", f"{section}{unknown[0]}", [f"{section}{name}" for name in names])


# ---- writing ----


@checked
def write_report(report: Report, path: str | Path) -> None:
    """Write the report as TOML; comments of an earlier file are lost. CannotWrite."""
    write_text(path, report_toml(report))


@checked
def write_runs(report: Report, path: str | Path) -> None:
    """Replace lock, runs and reconciliation in the file; every other character stays, comments too. CannotWrite."""
    write_text(path, with_tables(text_of(path), _written(report)))


@checked
def report_toml(report: Report) -> str:
    """The report as TOML: fields of a configuration only where they differ from the defaults."""
    names = {name: getattr(report, name) for name in ("title", "author", "brief", "small_ranks", "conclusion")}
    names["brief"] = report.brief_name or report.brief.name
    lines = [f"{name} = {toml_value(value)}" for name, value in names.items()]
    lines += [*toml_table("reasons", report.reasons), *choices_toml(report)]
    for each in report.alternatives:
        lines += toml_table("alternatives", asdict(each), "[[{}]]")
    return with_tables("\n".join(lines) + "\n", _written(report))


def choices_toml(report: Report) -> list[str]:
    """The lines of [large], [small] and [predicted]."""
    lines, defaults = list[str](), asdict(TrainConfig())
    for name, config in (("large", report.large), ("small", report.small)):
        lines += toml_table(name, {"num_steps": config.num_steps})
        for section, values in asdict(config).items():
            if isinstance(values, dict):
                kept = {key: value for key, value in values.items() if value != defaults[section][key]}
                lines += toml_table(f"{name}.{section}", kept) if kept else []
    return lines + toml_table("predicted", asdict(report.predicted))


def _written(report: Report) -> dict[str, dict[str, Any]]:
    """The tables that `lab capstone` writes; explanations are the learner's."""
    records = {name: getattr(report, name) for name in _RUNS}
    rows = {name: asdict(each) for name, each in report.reconciled.items()}
    return {name: asdict(record) if record else {} for name, record in records.items()} | {"reconciled": rows}
