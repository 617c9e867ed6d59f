"""Lab 17: failures of a long run, the cost of checkpoints, monitors, a night's alerts; the names of its notebook."""

import copy
import random
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from math import inf, isnan
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import plotly.graph_objects as go
import torch
import torch.distributed as dist

from lablib.batches.clipping import clip_grad_norm_
from lablib.course import checks_for, guess, try_out
from lablib.course.checks.expect import NotAttempted
from lablib.errors import RankKilledError
from lablib.faults import CorruptGradient, Fault, KillRank, SlowRank
from lablib.figures import show, style
from lablib.figures.chart import Axis, Mark, Panel, ReferenceLine, chart, line, points
from lablib.launch import launch
from lablib.phases import phase
from lablib.run import Run
from lablib.signature import Finite, NonNegative, Positive, Range, checked
from lablib.text.units import format_quantity, plural
from lablib.train.interval import LLAMA3_FAILURES, expected_overhead, simulated_overhead, young_interval_s
from lablib.widgets import LogSlider, explore

LLAMA_GPUS, LLAMA_DAYS = LLAMA3_FAILURES.num_devices, LLAMA3_FAILURES.days
STATEFUL = ("model", "optimizer", "scheduler", "scaler")
DAY_S, HOUR_S, MINUTE_S = 86_400.0, 3_600.0, 60.0
MEAN_S = LLAMA3_FAILURES.mean_time_s()  # seconds between failures


def failures_of(mean_s: float, until_s: float, seed: int) -> list[float]:
    """Times of failures before `until_s`, independent of one another: exponential gaps with this mean."""
    generator, times_s = random.Random(seed), [0.0]
    while times_s[-1] < until_s:
        times_s.append(times_s[-1] + generator.expovariate(1 / mean_s))
    return times_s[1:-1]


@checked
def figure_question(days: Annotated[float, Range(gt=0, le=60)] = 4) -> go.Figure:
    """The loss of a run without failures, and with failures and no checkpoints."""

    def loss(trained_s: float) -> float:  # the form of a scaling law; its constants are made up
        return 1.8 + 2.2 / (1 + trained_s / HOUR_S) ** 0.35

    times_s = [DAY_S * days * i / 800 for i in range(801)]
    failures, start_s, falling = failures_of(MEAN_S, DAY_S * days, seed=3), 0.0, []
    for now_s in times_s:
        start_s = max([0.0, *(each for each in failures if each <= now_s)])
        falling.append(loss(now_s - start_s))
    in_days = [each / DAY_S for each in times_s]
    marks = [line(0, "no failures", in_days, [loss(each) for each in times_s])]
    marks += [line(1, "failures, no checkpoints", in_days, falling)]
    num_failures = sum(each < DAY_S * days for each in failures)
    sentence = f"After each of {num_failures} failures in {days:g} days the run begins again. How would it ever end?"
    up = Axis("loss", span=(2.0, 4.1))
    return chart("What breaks at 3 a.m.?", Panel(Axis("time", "days"), up, marks), sentence)


# ---- stop and go on ----


def save_run(run: Any) -> dict[str, Any]:
    """The whole state of a `Training`, in copies."""
    state = {name: getattr(run, name).state_dict() for name in STATEFUL}
    state |= {"order": run.loader.order, "position": run.loader.position, "steps": run.steps}
    state |= {"loader": run.loader.generator.get_state(), "torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()  # of dropout on a GPU
    return copy.deepcopy(state)


def resume_run(run: Any, saved: Mapping[str, Any]) -> None:
    """Put a saved state into a new `Training`; `saved` can be used again."""
    saved = copy.deepcopy(saved)
    for name in STATEFUL:
        getattr(run, name).load_state_dict(saved[name])
    run.loader.order, run.loader.position, run.steps = saved["order"], saved["position"], saved["steps"]
    run.loader.generator.set_state(saved["loader"])
    torch.set_rng_state(saved["torch"])
    if torch.cuda.is_available():
        torch.cuda.set_rng_state(saved["cuda"])


def stop_and_go_on(training: Callable[..., Any], save: Callable[..., Any], resume: Callable[..., None]) -> bool:
    """Whether four steps after a resume, by a learner's functions, have the losses of a run that never stopped."""
    run = training(seed=1)
    for _ in range(6):
        run.step()
    saved = save(run)
    expected = [run.step() for _ in range(4)]
    other = training(seed=2)
    resume(other, saved)
    return [other.step() for _ in range(4)] == expected


def train_with_files(training: Callable[..., Any], ranks: int) -> Callable[[Path, list[tuple[int, float]]], None]:
    """60 steps, with a file of each rank after every 10; it resumes from the newest complete checkpoint."""

    def train(folder: Path, log: list[tuple[int, float]]) -> None:
        run, rank, newest = training(seed=1), dist.get_rank(), newest_complete(folder, ranks)
        if newest is not None:
            resume_run(run, torch.load(folder / f"{newest}-{rank}.pt", weights_only=True))
        while run.steps < 60:
            loss = run.step()
            if rank == 0:
                log.append((run.steps, loss))
            if run.steps % 10 == 0:
                torch.save(save_run(run), folder / f"{run.steps}-{rank}.pt")

    return train


def newest_complete(folder: Path, ranks: int) -> int | None:
    """The last step of which every rank has written its file; None if there is none."""
    files = [set(map(str, folder.glob(f"*-{rank}.pt"))) for rank in range(ranks)]
    steps = [{int(Path(each).name.split("-")[0]) for each in names} for names in files]
    return max(set.intersection(*steps), default=None)


def train_to_the_end(
    train: Callable[[Path, list[tuple[int, float]]], None], kills: Sequence[KillRank], ranks: int, cluster: str
) -> list[tuple[int, float]]:
    """Launch `train(folder, log)`, with one kill each time, then without; (step, loss) of all steps computed."""
    log: list[tuple[int, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        for faults in [*([each] for each in kills), []]:
            try:  # arguments of launch are copied for each rank, and a log would be: so none
                launch(lambda: train(Path(folder), log), ranks=ranks, cluster=cluster, faults=faults)
            except RankKilledError as error:
                print(f"rank {error.rank} died, rank 0 had reached step {log[-1][0] if log else 0}")
    return log


@checked
def figure_restarts(log: Sequence[tuple[int, float]], steps: int) -> go.Figure:
    """The step reached, against the steps computed: a drop is a restart. `log`: (step, loss) in the order computed."""
    reached = [step for step, _ in log]
    computed = list(range(1, len(log) + 1))
    again = len(log) - steps
    sentence = f"{len(log)} steps computed for {steps}: {again} of them again, from a checkpoint on."
    marks = [line(0, "killed, and resumed", computed, reached).styled(mode="lines")]
    ideal: dict[str, Any] = {"mode": "lines", "line": {"color": "#5A5A5A", "dash": "dot", "width": 1.5}}
    marks += [Mark("never killed", [1, steps], [1, steps], (), look=ideal)]
    return chart("A run that is killed", Panel(Axis("steps computed"), Axis("step reached"), marks), sentence)


# ---- the interval ----


def random_runs(seconds_of_run: Callable[..., float], interval_s: float, save_s: float, restart_s: float) -> str:
    """Three runs of 54 days of work with random failures, printed; `seconds_of_run` as in exercise 2."""
    work_s, lost = LLAMA_DAYS * DAY_S, []
    until_s = 20 * work_s
    for seed in range(3):
        failures_s = failures_of(MEAN_S, until_s, seed)
        took_s = seconds_of_run(work_s, interval_s, save_s, restart_s, list(failures_s))
        if not isinstance(took_s, int | float) or took_s <= 0:
            raise ValueError(f"seconds_of_run must return seconds above 0: got {took_s!r}; see exercise 2")
        if took_s > until_s:
            return f"not done after {until_s / DAY_S:,.0f} days"
        lost.append(1 - work_s / took_s)
        num_failures = sum(each < took_s for each in failures_s)
        print(f"{took_s / DAY_S:.1f} days, {num_failures} failures: {lost[-1]:.1%} lost")
    return f"{sum(lost) / len(lost):.1%} lost on average"


def lost_share(interval_s: float, save_s: float, restart_s: float, mean_s: float, seeds: Sequence[int]) -> float:
    """Share of the time that is not training, in simulated runs of 54 days of work, with random failures."""
    count, settings = round(LLAMA_DAYS * DAY_S / interval_s), (interval_s, save_s, mean_s, restart_s)
    overheads = [simulated_overhead(*settings, num_intervals=count, seed=seed) for seed in seeds]
    return 1 - 1 / (1 + sum(overheads) / len(overheads))


def exact_lost_share(interval_s: float, save_s: float, restart_s: float, mean_s: float) -> float:
    """The expected share of the time (lablib/train/interval.py has it per second of work)."""
    return 1 - 1 / (1 + expected_overhead(interval_s, save_s, mean_s, restart_s))


def first_order_share(interval_s: float, save_s: float, restart_s: float, mean_s: float) -> float:
    """The share to first order: T = W (1 + delta / tau) + T (tau / 2 + R) / M."""
    return 1 - (1 - (interval_s / 2 + restart_s) / mean_s) / (1 + save_s / interval_s)


INTERVALS_S = [MINUTE_S * each for each in (2, 3, 5, 7, 10, 14, 20, 28, 40, 60, 90, 130, 180, 240)]


@checked
def figure_intervals(
    save_s: Annotated[float, Range(ge=0.01, le=DAY_S)],
    restart_s: Annotated[float, Range(ge=0, le=DAY_S)],
    mean_s: Annotated[float, Range(ge=60, le=1e9)] = MEAN_S,
    guessed_s: Positive | None = None,
) -> go.Figure:
    """Lost share against the interval: simulated runs, and the formula of first order."""
    settings = save_s, restart_s, mean_s
    short = [each for each in INTERVALS_S if exact_lost_share(each, *settings) < 0.9]  # longer ones hardly ever end
    simulated = [100 * lost_share(each, *settings, (1, 2)) for each in short]
    drawn = [each for each in INTERVALS_S if first_order_share(each, *settings) < 1]
    shares = [100 * first_order_share(each, *settings) for each in drawn]
    marks = [points(0, "simulated runs", [each / MINUTE_S for each in short], simulated)]
    marks += [line(1, "formula", [each / MINUTE_S for each in drawn], shares)]
    best_s = young_interval_s(save_s, mean_s)
    least = 100 * exact_lost_share(best_s, save_s, restart_s, mean_s)
    sentence = f"A save takes {save_s:g} s, and a failure comes every {mean_s / HOUR_S:.3g} hours."
    sentence += f" With {best_s / MINUTE_S:.3g} minutes between saves {least:.3g}% of the time is lost."
    span = 1.8, 260.0
    rules = [ReferenceLine(x=best_s / MINUTE_S, text=f"{best_s / MINUTE_S:.3g} min", place="top right")]
    if guessed_s:
        lost = 100 * exact_lost_share(guessed_s, save_s, restart_s, mean_s)
        minutes = float(f"{guessed_s / MINUTE_S:.3g}")
        if span[0] < minutes < span[1]:
            rules.append(ReferenceLine(x=minutes, text="your guess", place="bottom right"))
        sentence += f" With your {minutes:,g} minutes, {lost:.3g}%."
    ticks = {each: f"{each:g}" for each in (2, 5, 10, 20, 40, 90, 240)}
    across = Axis("minutes between saves", log=True, ticks=ticks, span=span)
    up = Axis("lost time", "%", from_zero=True, span=(0, 60 if least < 50 else 100))
    columns = {"minutes": [each / MINUTE_S for each in short], "simulated (%)": simulated}
    columns["formula (%)"] = [100 * first_order_share(each, *settings) for each in short]
    return chart("Lost time against the interval", Panel(across, up, marks, rules), sentence, columns)


def best_interval(save_s: float, restart_s: float, mean_s: float = MEAN_S) -> tuple[float, float]:
    """Young's interval in minutes, and the time lost with it in percent."""
    interval_s = young_interval_s(save_s, mean_s)
    return interval_s / MINUTE_S, 100 * exact_lost_share(interval_s, save_s, restart_s, mean_s)


def explore_intervals(save_s: float, restart_s: float, interactive: bool) -> Any:
    """The curve as the save or the machine changes; at first with four times the GPUs of Llama 3."""
    controls = [
        LogSlider("save_s", "Seconds of a save", 1, 600, save_s),
        LogSlider("gpus", "GPUs", 1024, 131_072, 4 * LLAMA_GPUS),
    ]

    def curve(save_s: float, gpus: float) -> tuple[float, float]:
        return save_s, MEAN_S * LLAMA_GPUS / gpus

    def draw(found: tuple[float, float]) -> go.Figure:
        return figure_intervals(found[0], restart_s, found[1])

    return explore(curve, draw, controls, interactive, [{"save_s": 6.0}, {"save_s": 1.0}])


# ---- who notices ----


def watched(training: Callable[..., Any], drift: bool) -> list[tuple[float, float, int]]:
    """Loss, norm of the gradient and hash of the weights after each of 20 steps of a `Training`, on this rank.

    `drift`: whether a weight on rank 1 changes before step 11.
    """
    run, told = training(seed=1), []
    run.scaler = torch.amp.GradScaler("cpu", enabled=False)  # as in BF16: it skips no step
    for step in range(20):
        if drift and step == 10 and dist.get_rank() == 1:
            run.model[0].weight.data[0, 0] += 0.001
        with phase(f"step {step}"):
            loss = run.step()
        norm = clip_grad_norm_(run.model.parameters(), inf).item()  # only measured
        weights = torch.cat([param.detach().flatten() for param in run.model.parameters()])
        told.append((loss, norm, hash(weights.cpu().numpy().tobytes())))  # equal hashes: equal to the bit
    return told


def with_faults(training: Callable[..., Any], ranks: int, cluster: str, slow_from_s: float) -> dict[str, Run]:
    """Name -> run of `watched`: a healthy one, and four with a fault in step 11."""
    at: dict[str, Any] = {"rank": 1, "parameter": "0.weight", "step": 10}
    faults: dict[str, list[Fault]] = {
        "healthy": [],
        "NaN": [CorruptGradient(**at)],
        "bit flip": [CorruptGradient(**at, kind="bit flip")],
        "slow": [SlowRank(ranks - 1, 3.0, from_s=slow_from_s)],
        "drift": [],
    }
    options: dict[str, Any] = {"ranks": ranks, "cluster": cluster}
    return {name: launch(watched, training, name == "drift", faults=those, **options) for name, those in faults.items()}


def first_signs(runs: Mapping[str, Run], steps: int) -> pd.DataFrame:
    """For each run and monitor the first step that differs from the healthy run's; runs[...].values as in the lab.

    A loss, a norm and a time differ by more than a fifth, a hash if not all ranks have the same.
    """
    table, found = dict[str, dict[str, str]](), {name: _monitors(run, steps) for name, run in runs.items()}
    healthy = found.pop("healthy")
    for name, own in found.items():
        row = {}
        for monitor, values in own.items():
            pairs = enumerate(zip(values, healthy[monitor], strict=True), 1)
            signs = [step for step, (value, usual) in pairs if not abs(value - usual) <= 0.2 * abs(usual)]
            row[monitor] = f"in step {signs[0]}" if signs else "no sign"
        table[name] = row
    return pd.DataFrame(table).T


def _monitors(run: Run, steps: int) -> dict[str, list[Any]]:
    """Loss, gradient norm, seconds of compute of the slowest rank, number of different hashes: one for each step."""

    def compute_s(rank: int, step: int) -> float:
        return sum(span.duration_s for span in run.timeline.select(rank, phase=f"step {step}") if span.is_compute)

    losses, norms, _ = zip(*run.values[0], strict=True)
    times_s = [max(compute_s(rank, step) for rank in range(run.ranks)) for step in range(steps)]
    hashes = [float(len({rank[step][2] for rank in run.values})) for step in range(steps)]
    return {"loss": [*losses], "gradient norm": [*norms], "step time": times_s, "hash": hashes}


def night(seed: int = 17) -> list[tuple[float, float | None]]:
    """Seconds of a step, asked each minute from 22:00 to 6:00; None: no answer. Made up; times are seconds since 22:00.

    A pause of one minute at 22:40; from 0:30 a shared file system, for 40 minutes just below and above the limit; a hot
    GPU from 1:40 to 2:05; from 3:12 a hang.
    """
    generator, samples = random.Random(seed), []
    for minute in range(480):
        value: float | None = 10 + generator.gauss(0, 0.25)
        if minute == 40:
            value = 27.0
        elif 150 <= minute < 190:
            value = 12 + (1 if minute % 3 else -1) * generator.uniform(0.1, 0.6)
        elif 220 <= minute < 245:
            value = 15 + generator.gauss(0, 0.4)
        elif minute >= 312:
            value = None
        samples.append((MINUTE_S * minute, value))
    return samples


def alerts(samples: Iterable[tuple[float, float | None]], limit: float, hold_s: float, clear_s: float) -> list[float]:
    """Times at which somebody is called."""
    rings: list[float] = []
    is_ringing, bad_since, good_since = False, inf, inf
    for now_s, value in samples:
        if value is None or isnan(value) or value > limit:
            bad_since, good_since = min(bad_since, now_s), inf
            if not is_ringing and now_s - bad_since >= hold_s:
                is_ringing = True
                rings.append(now_s)
        else:
            bad_since, good_since = inf, min(good_since, now_s)
            is_ringing = is_ringing and now_s - good_since < clear_s
    return rings


def clock(seconds: float) -> str:
    """Seconds since 22:00 as a time of day."""
    minutes = round(22 * 60 + seconds / 60) % 1440
    return f"{minutes // 60}:{minutes % 60:02d}"


@checked
def figure_night(
    samples: Sequence[tuple[Finite, float | None]], limit: Finite, rings: Mapping[str, Sequence[Finite]]
) -> go.Figure:
    """The stream of a night, its limit, and for each rule the times at which it rings."""
    hours = [each / HOUR_S for each, _ in samples]
    marks = [line(0, "step time", hours, [value for _, value in samples], hover=())]
    for index, (name, times_s) in enumerate(rings.items(), 1):
        at = [each / HOUR_S for each in times_s]
        hover = [f"<b>{name}</b><br>rings at {clock(each)}" for each in times_s]
        marks.append(points(index, name, at, [7.0 - 1.5 * index] * len(at), hover, size=9))
    ticks = {hour: clock(HOUR_S * hour) for hour in range(9)}
    rule = ReferenceLine(y=limit, text="limit", place="top right")
    said = [f"{name}: {plural(len(times_s), 'rings')}" for name, times_s in rings.items()]
    silent = next((clock(at_s) for at_s, value in samples if value is None), "never")
    sentence = "; ".join(said) + f". The run hangs at {silent}." if rings else f"From {silent} on all samples are None."
    panel = Panel(Axis("time", ticks=ticks), Axis("step time", "s", span=(0, 30)), marks, [rule])
    return chart(
        "One night",
        panel,
        sentence,
        {"time": [clock(each) for each, _ in samples], "step time (s)": [value for _, value in samples]},
    )


@checked
def figure_rules(
    samples: Sequence[tuple[Finite, float | None]], limit: Finite, rules: Sequence[tuple[NonNegative, NonNegative]]
) -> go.Figure:
    """The night with the simple rule and others. rules: (hold, clear), in minutes."""
    rings = {"value above the limit": [at_s for at_s, value in samples if value is not None and value > limit]}
    for hold, clear in rules:
        name = f"held {hold:g} min, clear for {clear:g}"
        rings[name] = alerts(samples, limit, MINUTE_S * hold, MINUTE_S * clear)
    return figure_night(samples, limit, rings)


# ---- a script as it circulates ----


def figure_evidence(repairs: Mapping[int, str]) -> go.Figure:
    """Timeline of the ranks, activations on rank 0, and losses, of the script with some lines repaired."""
    from lablib.studies.faulty_script import evidence

    run, losses = evidence(repairs)
    lanes, ends = _script_lanes(run)
    times_s, kept = run.memory.curve(0)
    stroke = {"shape": "hv", "color": "#5A5A5A", "width": 2}
    memory = Mark("activations", list(times_s), list(kept["activation"]), (), look={"mode": "lines", "line": stroke})
    columns = {f"loss of rank {rank}": [each for each, _ in own] for rank, own in enumerate(losses)}
    sizes = enumerate(zip(columns.items(), ends, strict=True))
    marks = [points(i, name, at_s[: len(own)], own, size=18 - 4 * i) for i, ((name, own), at_s) in sizes]
    columns["rank 0, words alone"] = [each for _, each in losses[0]]
    marks.append(line(4, "rank 0, words alone", ends[0][: len(losses[0])], columns["rank 0, words alone"]))
    are_equal = len({tuple(own) for own in losses}) == 1
    sentence = f"Rank 0 keeps up to {format_quantity(max(kept['activation']), 'B')} of activations; "
    sentence += f"the ranks' losses are {'equal' if are_equal else 'different'}."
    time = Axis("simulated time", "s", span=(0, run.timeline.makespan_s * 1.02))
    rows = Axis("rank", ticks={rank: str(rank) for rank in range(run.ranks)}, span=(run.ranks - 0.5, -0.7))
    axes = (rows, Axis("rank 0 keeps", "B", from_zero=True), Axis("loss"))
    panels = [Panel(time, *both) for both in zip(axes, (lanes, [memory], marks), strict=True)]
    return chart("Two steps of the script", panels, sentence, columns, pixels=(150, 110, 150))


def _script_lanes(run: Run) -> tuple[list[Mark], list[list[float]]]:
    """A row for each rank, one bar for neighbouring spans of one kind; and when each forward ended, by rank."""
    kinds = ("forward", "recompute", "backward", "optimizer", "communication")
    work: dict[str, tuple[list[Any], list[Any]]] = {kind: ([], []) for kind in kinds}
    ends: list[list[float]] = []
    for rank in range(run.ranks):
        spans = sorted(run.timeline.select(rank), key=lambda span: span.start_s)
        for kind, group in groupby(spans, style.kind_of_span):
            if kind in work:
                first, *_, last = [*group] * 2
                work[kind][0].extend((first.start_s, last.end_s, None))
                work[kind][1].extend((rank, rank, None))
        phases = [(span.phase, span.end_s) for span in spans if span.is_compute]
        ends.append([end_s for (one, end_s), (later, _) in pairwise(phases) if (one, later) == ("forward", "backward")])
    drawn = {kind: {"mode": "lines", "line": {"width": 14, "color": style.LOOKS[kind].color}} for kind in kinds}
    lanes = [Mark(kind, *xy, (), look=drawn[kind]) for kind, xy in work.items() if xy[0]]
    log = [(span.end_s, span.rank - 0.35) for span in run.timeline.spans if span.phase == "log"]
    lanes.append(points(7, "writes the log", [x for x, _ in log], [y for _, y in log], size=11))
    return lanes, ends


def symptom_table(repairs: Any) -> pd.DataFrame:
    """The measurements of the script with some lines repaired. Raises NotAttempted for a stub, `...`."""
    from lablib.studies.faulty_script import symptoms

    if repairs is ...:
        raise NotAttempted
    rows = {each.name: ["yes" if each.is_right else "no", each.saw, each.wanted] for each in symptoms(repairs)}
    return pd.DataFrame.from_dict(rows, orient="index", columns=["right", "seen", "wanted"])


def try_repairs(repairs: Any) -> str:
    """The same, printed."""
    table = symptom_table(repairs)
    print(table.to_string())
    return f"{(table['right'] == 'yes').sum()} of {len(table)} are right"
