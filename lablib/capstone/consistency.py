"""Findings: numbers of a report that are missing, disagree with one another, or miss the brief.

    missing         a part that a finished report has
    consistency     a number that is recomputed, and differs
    brief           the plan breaks a rule of the brief: sizes, memory, budget, deadline, small machine

Recomputed are: the axes' product, tokens, GPU hours, the loss by the scaling law, the planner's numbers of the
alternatives, the errors, the lock's digest and the order of the times. The large run is simulated again, which gives
the same numbers to rounding, and takes seconds; so is the memory of the small run. Its losses are not repeated: they
are as many as its steps, begin near ln V, the loss of a model that knows nothing, differ from step to step, and fall by
at most 1.5 nats in a step. A curve of another run that keeps these rules is not found.

Each finding has rule, value and remedy.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import accumulate
from math import log
from typing import Any

from lablib.capstone.brief import num_parameters, tokens_of
from lablib.capstone.large_run import plan_step, simulate_step
from lablib.capstone.lock import digest
from lablib.capstone.quantities import QUANTITIES, errors, gpu_hours, measured
from lablib.capstone.report import CHOICES, Report
from lablib.capstone.small_run import Parts, check_parts
from lablib.data.text import CORPORA
from lablib.errors import LaunchError
from lablib.signature import checked, shown
from lablib.text.units import format_quantity
from lablib.train.build import fitted
from lablib.train.config import TrainConfig
from lablib.train.read_config import parse_config, with_overrides

KINDS = ("missing", "consistency", "brief")
_ROUNDING = 0.01  # of numbers that a learner writes down
_SIMULATED = 1e-3  # of a simulated number: another version of the program may differ a little
_EXACT = 1e-6  # of a budget
_ERROR = 0.005  # of a stated error
_FEWEST_WORDS = 4  # of a reason
_DIFFERENT = 0.9  # share of the losses of a run that are different numbers, to five digits
_FASTEST_FALL = 1.5  # nats of a step
_LONGEST_RUN_S = 7 * 86400.0  # of the small run
_SHORTEST_STEP_S, _MOST_FLOPS_PER_S = 1e-4, 1e16  # of a rank of the small run


@dataclass(frozen=True)
class Finding:
    """One rule that a report breaks."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@checked
def findings(report: Report, simulate: bool = True) -> list[Finding]:
    """Everything that is wrong, in the order of the report. `simulate`: repeat the large run."""
    missing = [Finding("missing", text) for text in _missing(report)]
    if fits := _axes(report):
        return [*missing, *(Finding("consistency", text) for text in fits)]
    wrong = [*_predictions(report), *_alternatives(report), *_order(report)]
    wrong += [*_small_run(report, simulate), *_large_run(report, simulate), *_errors(report)]
    broken = [Finding("brief", text) for text in _brief(report)]
    return [*missing, *(Finding("consistency", text) for text in wrong), *broken]


@checked
def findings_before(report: Report) -> list[Finding]:
    """The findings that are known before the runs: axes, sizes, GPU hours and alternatives."""
    if fits := _axes(report):
        return [Finding("consistency", text) for text in fits]
    wrong = [Finding("consistency", text) for text in (*_predictions(report), *_alternatives(report))]
    return wrong + [Finding("brief", text) for text in report.brief.broken_sizes(report.large.model)]


def _missing(report: Report) -> Iterator[str]:
    if short := [name for name in CHOICES if len(report.reasons.get(name, "").split()) < _FEWEST_WORDS]:
        rule = f"each choice must have a reason of {_FEWEST_WORDS} words or more"
        yield f"{rule}: got fewer for {', '.join(short)}; write reasons.{short[0]}"
    if absent := [name for name in QUANTITIES if getattr(report.predicted, name) is None]:
        rule = "all quantities must be predicted"
        yield f"{rule}: got none for {', '.join(absent)}; write predicted.{absent[0]}, then lock again"
    if report.lock is None:
        yield "predictions must be locked before the runs: got no lock; run `lab capstone lock`"
    for name in ("small_run", "large_run"):
        if getattr(report, name) is None:
            yield f"a report must have the {name.replace('_', ' ')}: got none; run `lab capstone run`"
    if absent := [name for name in errors(report) if name not in report.reconciled]:
        yield f"each prediction must be reconciled: got nothing for {', '.join(absent)}; write reconciled.{absent[0]}"
    if not report.conclusion.strip():
        yield "a report must have a conclusion: got none; write conclusion"


def _axes(report: Report) -> list[str]:
    """Configurations that do not fit their ranks; then nothing else can be computed."""
    found = list[str]()
    for name, ranks in (("large", report.brief.gpus), ("small", report.small_ranks)):
        try:
            fitted(getattr(report, name), ranks)
        except ValueError as error:
            found.append(f"{name}: {error}")
    return found


def _predictions(report: Report) -> Iterator[str]:
    said = report.predicted
    if said.step_s is not None and said.gpu_hours is not None:
        if _differ(said.gpu_hours, hours := gpu_hours(report, said.step_s)):
            rule = "predicted.gpu_hours must be GPUs x steps x predicted.step_s / 3600"
            yield f"{rule}: got {said.gpu_hours:,.6g}, and the product is {hours:,.6g}; correct one of them"


def _alternatives(report: Report) -> Iterator[str]:
    for number, each in enumerate(report.alternatives, 1):
        try:
            config = changed(report.large, each.changes)
            if config == report.large:
                yield f"alternative {number} must differ from the plan: got {list(each.changes)}; change a field"
                continue
            planned = plan_step(config, report.brief.cluster, report.brief.gpus)
        except ValueError as error:
            yield f"alternative {number}: {error}"
            continue
        for name, value in (("step_s", planned.step_time_s), ("memory_bytes", planned.peak_memory_bytes)):
            if _differ(said := getattr(each, name), value):
                rule = f"{name} of alternative {number} must be the planner's"
                yield f"{rule}: got {said:.6g}, and it is {value:.6g}; `lab capstone predict` prints it"


def _order(report: Report) -> Iterator[str]:
    lock = report.lock
    if lock is None:
        return
    if lock.sha256 != digest(report):
        rule = "choices and predictions must be as they were locked"
        yield f"{rule}: got others; undo the change, or lock again and repeat the runs"
    for name in ("small_run", "large_run"):
        run = getattr(report, name)
        if run is None:
            continue
        if run.sha256 != lock.sha256:
            yield f"{name} must be of the locked predictions: got another digest; run it again"
        began, locked_at = _time(run.at), _time(lock.at)
        if began is None or locked_at is None:
            rule = "times must be as 2026-01-31T10:15:00+01:00"
            yield f"{rule}: got {shown(run.at)} and {shown(lock.at)}; lock and run again"
        elif began < locked_at:
            yield f"{name} must begin after the lock: got {run.at}, and the lock is of {lock.at}; run it again"


def _small_run(report: Report, simulate: bool) -> Iterator[str]:
    run, config = report.small_run, report.small
    if run is None:
        return
    if config.data.corpus not in CORPORA:
        rule = f"small.data.corpus must be one of {', '.join(CORPORA)}"
        yield f"{rule}: got {shown(config.data.corpus)}; choose one, lock and run again"
    if (count := len(run.losses)) != config.num_steps:
        yield f"small_run.losses must be as many as the steps, {config.num_steps}: got {count}; run it again"
    if abs(run.losses[0] - log(config.model.vocab_size)) > 1.0:
        yield (
            "the first loss must be near ln of the vocabulary, as the model has learned nothing: got "
            f"{run.losses[0]:.3f}, and ln {config.model.vocab_size} is {log(config.model.vocab_size):.3f}; run it again"
        )
    if (number := len(set(run.losses))) < _DIFFERENT * len(run.losses):
        rule = "small_run.losses must differ from step to step, as each step has other text"
        yield f"{rule}: got {number} different ones in {len(run.losses)} steps; run it again"
    pairs = zip(accumulate(run.losses, min), run.losses[1:], strict=False)
    if (fall := max((low - loss for low, loss in pairs), default=0.0)) > _FASTEST_FALL:
        rule = f"a step of the small run must lower the least loss by at most {_FASTEST_FALL} nats"
        yield f"{rule}: got {fall:.3f} nats in one step; run it again"
    flops = 6 * num_parameters(config.model) * tokens_of(config) / config.num_steps / report.small_ranks
    if run.step_s < (least_s := max(_SHORTEST_STEP_S, flops / _MOST_FLOPS_PER_S)):
        rule = f"small_run.step_s must be at least {least_s:.3g} s, by its operators and FLOPs"
        yield f"{rule}: got {run.step_s:.3g}; run it again"
    if (lasted_s := run.step_s * config.num_steps) > _LONGEST_RUN_S:
        rule = f"the small run must end within {_LONGEST_RUN_S / 86400:g} days"
        yield f"{rule}: got {config.num_steps} steps of {run.step_s:.3g} s, {lasted_s / 86400:.3g} days; run it again"
    if len(set(run.own_code)) < len(run.own_code):
        yield f"small_run.own_code must be different parts: got {list(run.own_code)}; run it again"
    try:  # parts that the configuration cannot have taken; they are only named
        any_function: Any = log
        check_parts(config.on(report.small_ranks), Parts(**dict.fromkeys(run.own_code, any_function)))
    except ValueError as error:
        yield f"small_run.own_code: {error}"
    if not simulate or report.small_ranks > report.brief.small.ranks:  # which is a finding
        return
    try:
        value = simulate_step(config, "laptop", report.small_ranks).memory_bytes
    except (ValueError, LaunchError) as error:
        yield f"the small run must be possible: {error}"
        return
    if _differ(said := run.memory_bytes, value):
        rule = "small_run.memory_bytes must equal the simulated one"
        yield f"{rule}: got {said!r}, and it is {value!r} today; run it again"


def _large_run(report: Report, simulate: bool) -> Iterator[str]:
    run = report.large_run
    if run is None or not simulate or report.brief.broken_sizes(report.large.model):  # which are findings
        return
    try:
        again = simulate_step(report.large, report.brief.cluster, report.brief.gpus)
    except (ValueError, LaunchError) as error:
        yield f"the large run must be possible: {error}"
        return
    for name in ("step_s", "memory_bytes"):
        if _differ(said := getattr(run, name), value := getattr(again, name), _SIMULATED):
            rule = f"large_run.{name} must equal the simulated one"
            yield f"{rule}: got {said!r}, and it is {value!r} today; run it again"


def _errors(report: Report) -> Iterator[str]:
    found, values = errors(report), measured(report)
    for name, each in report.reconciled.items():
        if name not in found:
            yield f"reconciled.{name} must have a prediction and a measurement: got none; run it, or leave it out"
        elif not abs(each.error - found[name]) <= _ERROR * max(1.0, 0.01 * abs(found[name])):
            said, saw = getattr(report.predicted, name), values[name]
            rule = "predicted - measured" if QUANTITIES[name].is_loss else "predicted / measured - 1"
            rule = f"reconciled.{name}.error must be {rule} = {_digits(found[name])}, of {said:.6g} and {saw:.6g}"
            yield f"{rule}: got {_digits(each.error)}; correct it"


def _brief(report: Report) -> Iterator[str]:
    brief, config = report.brief, report.large
    yield from brief.broken_sizes(config.model)
    if config.data.seq_len != brief.seq_len:
        yield f"large.data.seq_len must be {brief.seq_len}: got {config.data.seq_len}; try {brief.seq_len}"
    small = brief.small
    if report.small_ranks > small.ranks:
        yield f"small_ranks must be at most {small.ranks}: got {report.small_ranks}; try {small.ranks}"
    if report.small.num_steps > small.steps:
        yield f"small.num_steps must be at most {small.steps}: got {report.small.num_steps}; try {small.steps}"
    if report.small_run and report.small_run.memory_bytes > small.memory_bytes:
        used, room = (format_quantity(each, "B") for each in (report.small_run.memory_bytes, small.memory_bytes))
        yield f"the small run must have at most {room} per rank: got {used}; make the small model smaller"
    if (run := report.large_run) is None:
        return
    if run.memory_bytes > (room := brief.machine.device.memory_bytes):
        used, has = format_quantity(run.memory_bytes, "B"), format_quantity(room, "B")
        yield f"a GPU of {brief.cluster} has {has}: got {used}; shard or recompute more, or take smaller micro-batches"
    hours, days = gpu_hours(report, run.step_s), gpu_hours(report, run.step_s) / brief.gpus / 24
    if hours > brief.gpu_hours * (1 + _EXACT):
        yield f"the run must take at most {brief.gpu_hours:,g} GPU hours: got {hours:,.0f}; take fewer steps"
    if days > brief.days * (1 + _EXACT):
        yield f"the run must end in {brief.days:g} days: got {days:.2f}; take fewer steps"
    if (loss := brief.loss(config)) > brief.goal_loss:
        yield (
            f"the loss by the scaling law must be at most {brief.goal_loss:g}: got {loss:.3f} with "
            f"{tokens_of(config) / 1e9:.3g} billion tokens; train on more tokens, or another size"
        )


@checked
def changed(config: TrainConfig, changes: tuple[str, ...] | list[str]) -> TrainConfig:
    """A configuration with overrides of `lab train`, such as "parallel.tensor=4". ValueError as `with_overrides`."""
    tables = asdict(config)
    for name, table in tables.items():
        if isinstance(table, dict):
            plain = {key: list(each) if isinstance(each, tuple) else each for key, each in table.items()}
            tables[name] = {key: each for key, each in plain.items() if each is not None}
    return parse_config(with_overrides(tables, list(changes)), "the alternative")


def _digits(error: float) -> str:
    return f"{error:.4f}" if abs(error) < 1e6 else f"{error:.4g}"


def _differ(said: float, value: float, share: float = _ROUNDING) -> bool:
    return abs(said - value) > share * abs(value)


def _time(text: str) -> datetime | None:
    """A time with its zone; None for another text. A time without zone would depend on the reader's."""
    try:
        found = datetime.fromisoformat(text)
        return None if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):  # overflow: at the ends of the calendar
        return None
