"""Checks of lab 17: a failing run. Trainings stop at random steps; times, failures and streams are drawn at random."""

import io
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan, nan
from numbers import Real
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from lablib.course import Expect, exercise
from lablib.course.checks.comparison import difference, is_array, plain_number
from lablib.course.checks.draw import Draw
from lablib.course.checks.expect import RuleBroken
from lablib.course.checks.formatting import short_repr
from lablib.course.checks.rules import not_from_lablib, same_calls
from lablib.errors import LaunchError, RankError, RankKilledError
from lablib.faults import CorruptGradient, KillRank
from lablib.precision import LossScaler, ScaleRule
from lablib.studies.faulty_script import NO_BOUND, SCRIPT, Symptom, symptoms
from lablib.train import parse_config
from lablib.train.run import run as run_training

RANKS = 2
ROOM_BYTES = 6_000  # for the state of a generator that the run does not use


# ---- exercise 1 ----


@dataclass(frozen=True)
class Sizes:
    """Sizes and seeds of a training; `num` samples on each rank."""

    num: int
    batch: int
    width: int
    hidden: int
    seed: int


class Loader:
    """The lab's loader, with other sizes."""

    def __init__(self, sizes: Sizes, seed: int):
        disk = torch.Generator("cpu").manual_seed(dist.get_rank())
        self.data = torch.randn(sizes.num, sizes.width, generator=disk, device="cpu")
        self.generator = torch.Generator("cpu").manual_seed(seed + 100 * dist.get_rank())
        self.order, self.position, self._batch = torch.empty(0, device="cpu"), 0, sizes.batch

    def next_batch(self) -> tuple[list[int], torch.Tensor]:
        if self.position >= len(self.order):
            self.order = torch.randperm(len(self.data), generator=self.generator, device="cpu")
            self.position = 0
        chosen = torch.as_tensor(self.order[self.position : self.position + self._batch], device="cpu")
        self.position += self._batch
        return chosen.tolist(), self.data[chosen].to(torch.get_default_device())


class Training:
    """The lab's training, with other sizes; a step returns what can be seen of it."""

    def __init__(self, sizes: Sizes, seed: int):
        torch.manual_seed(seed)
        hidden = [nn.Linear(sizes.width, sizes.hidden), nn.BatchNorm1d(sizes.hidden), nn.GELU(), nn.Dropout(0.1)]
        self.model = nn.Sequential(*hidden, nn.Linear(sizes.hidden, 1))
        torch.manual_seed(seed + dist.get_rank())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 50)
        self.scaler = LossScaler(ScaleRule(interval=3))
        self.loader, self.steps = Loader(sizes, seed), 0

    def step(self) -> dict[str, Any]:
        samples, x_BD = self.loader.next_batch()
        loss = F.mse_loss(self.model(x_BD)[:, 0], x_BD.sum(1).sin())
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        for param in self.model.parameters():
            dist.all_reduce(param.grad, op=dist.ReduceOp.AVG)
        lr, scale = self.optimizer.param_groups[0]["lr"], self.scaler.loss_scale
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.steps += 1
        weights = [each.detach().clone() for each in self.model.state_dict().values()]
        seen = {"samples": samples, "loss": loss.item(), "learning rate": lr, "loss scale": scale}
        return seen | {"number of steps": self.steps, "weights": weights}

    def state(self) -> dict[str, Any]:
        """All parts of the state, by the names in messages; copies."""
        parts = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "scaler": self.scaler.state_dict(),
            "steps": self.steps,
            "loader.order": self.loader.order,
            "loader.position": self.loader.position,
            "loader.generator": self.loader.generator.get_state(),
            "torch's generator": torch.get_rng_state(),
        }
        return {name: _copied(part) for name, part in parts.items()}


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {key: _copied(each) for key, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, list | tuple) else value


def _num_bytes(value: Any) -> int:
    """Bytes of the tensors and numbers in a saved state; storage that tensors share counts for each."""
    if isinstance(value, torch.Tensor):
        return value.untyped_storage().nbytes()
    if isinstance(value, Mapping):
        return sum(map(_num_bytes, value.values()))
    if isinstance(value, str | bytes):
        return len(value)
    return sum(map(_num_bytes, value)) if isinstance(value, list | tuple | set) else 8


def _written(saved: Any) -> bytes:
    file = io.BytesIO()
    torch.save(saved, file)
    return file.getvalue()


def _first_difference(traces: Sequence[Sequence[Any]], wanted: Sequence[Sequence[Any]]) -> tuple[int, int, str] | None:
    """Index of the step, rank, and the first difference, over all ranks."""
    for step in range(len(wanted[0])):
        for rank in range(len(wanted)):
            for name, value in wanted[rank][step].items():
                found = difference(traces[rank][step][name], value, None, 0.0)
                if found:
                    is_short = not isinstance(value, list) or not isinstance(value[0], torch.Tensor)
                    what = f"{short_repr(traces[rank][step][name])} instead of {short_repr(value)}"
                    return step, rank, f"{name}: {what if is_short else found[0]}"
    return None


@exercise(
    "Exact resume",
    hints=[
        "Which lines of `step` and `next_batch` change something that outlives the step? Which draw random numbers, "
        "and from which generator?",
        "Four objects have state_dict(). The loader has an order, a position and a generator. Dropout draws from "
        "torch.get_rng_state(). And the number of steps. state_dict() returns the tensors themselves, no copies.",
        "save: copy.deepcopy({'model': run.model.state_dict(), ..., 'order': run.loader.order, ...}); resume: begin "
        "with saved = copy.deepcopy(saved), as load_state_dict of an optimizer keeps the given tensors.",
    ],
)
def exact_resume(expect: Expect, save: Callable[[Any], Any], resume: Callable[[Any, Any], Any]) -> None:
    not_from_lablib(save)
    not_from_lablib(resume)
    draw = expect.draw
    per_epoch = draw.integer(3, 4)
    batch = draw.integer(10, 14)  # so that the data do not fit in ROOM_BYTES
    sizes = Sizes(per_epoch * batch, batch, draw.integer(60, 70), draw.integer(30, 40), draw.integer(1, 999))
    stops = {
        "within the second epoch": per_epoch + draw.integer(1, per_epoch - 2),
        "between two epochs": 2 * per_epoch,
        "before the first step": 0,
    }
    for where, before in stops.items():
        expect.measured.clear()
        _resumes(expect, save, resume, sizes, before, per_epoch + 3, f"stopped {where}, after {before} steps")


def _resumes(
    expect: Expect,
    save: Callable[[Any], Any],
    resume: Callable[[Any, Any], Any],
    sizes: Sizes,
    before: int,
    more: int,
    where: str,
) -> None:
    def first() -> dict[str, Any]:
        whole = Training(sizes, sizes.seed)
        alone = [whole.step() for _ in range(before + more)]
        run = Training(sizes, sizes.seed)
        told = [run.step() for _ in range(before)]
        state = run.state()
        saved = save(run)
        if saved is None or saved is ...:
            return {"saved": saved}
        try:
            at_once = _written(saved)
        except Exception as error:
            return {"saved": saved, "error": error}
        told += [run.step() for _ in range(more)]
        return {"alone": alone, "told": told, "state": state, "at once": at_once, "later": _written(saved)}

    ran = expect.launch(first, ranks=RANKS, trace=False).values
    if "alone" not in ran[0]:
        expect.equal("save returns the state", ran[0]["saved"] is ..., False)
        if ran[0]["saved"] is None:
            raise RuleBroken("save returns the state", "None: is there a return?", "a dict")
        raise RuleBroken("torch.save can write what save returns", str(ran[0]["error"]), _PLAIN)
    files = [each["at once"] for each in ran]
    saved = [_read(file) for file in files]
    found = _first_difference([each["told"] for each in ran], [each["alone"] for each in ran])
    if found:
        step, rank, what = found
        saw = f"without the call, step {step + 1} on rank {rank} is another: {what}"
        raise RuleBroken(f"save changes nothing in the run ({where})", saw, "the run goes on as without it")
    for rank, each in enumerate(ran):
        changed = difference(_read(each["later"]), saved[rank], None, 0.0)
        if changed:
            saw = f"{more} steps later {changed[0]}, it was {changed[1]} (rank {rank})"
            raise RuleBroken(f"the saved state stays as it is while the run goes on ({where})", saw, "a copy")
    needed = sum(_num_bytes(part) for part in ran[0]["state"].values())
    sizes_bytes = [_num_bytes(each) for each in saved]
    most, rank = max(sizes_bytes), sizes_bytes.index(max(sizes_bytes))
    expect.budget(f"bytes of a checkpoint on rank {rank} ({where})", most, needed + ROOM_BYTES, "B")
    # Ranks may share the work, or compress; but the state is in no other place, and no step is done again.
    least = (_num_bytes(ran[0]["state"]["model"]) + _num_bytes(ran[0]["state"]["optimizer"])) // 2
    if sum(sizes_bytes) < least:
        saw = f"{sum(sizes_bytes)} B on all ranks together"
        expected = (
            f"at least {least} B, half of model and optimizer; a new process has this, and computes no step again"
        )
        raise RuleBroken(f"the state is in what save returns ({where})", saw, expected)

    def second() -> tuple[list[tuple[dict[str, Any], list[Any]]], Any]:
        given, told = _read(files[dist.get_rank()]), []
        for other in (1, 2):
            run = Training(sizes, sizes.seed + 1000 * other)
            torch.rand(other)
            resume(run, given)
            told.append((run.state(), [run.step() for _ in range(more)]))
        return told, given

    wanted = [each["alone"][before:] for each in ran]
    ended = expect.launch(second, ranks=RANKS, trace=False).values
    resumed = [told for told, _ in ended]
    for turn, rule in enumerate(("the resumed run goes on exactly", "the same checkpoint can be used again")):
        found = _first_difference([each[turn][1] for each in resumed], wanted)
        if found:
            step, rank, what = found
            state, now = ran[rank]["state"], resumed[rank][turn][0]
            other = [name for name in state if difference(now[name], state[name], None, 0.0)]
            saw = f"step {before + step + 1} on rank {rank} has {what}"
            after = f"after resume not as it was when saved: {', '.join(other)}" if other else "its state was right"
            expected = "the same as in a run that never stopped, to the bit"
            raise RuleBroken(f"{rule} ({where})", f"{saw}; {after}", expected)
        expect.that(f"{rule} ({where})", True, f"{more} steps equal to the bit", "equal to the bit")
    for rank, (_, given) in enumerate(ended):
        changed = difference(given, saved[rank], None, 0.0)
        if changed:
            saw = f"{changed[0]}, it was {changed[1]} (rank {rank})"
            raise RuleBroken(f"resume leaves the checkpoint as it was ({where})", saw, "a copy is changed, if any")


_PLAIN = "tensors, numbers, texts, lists and dicts"


def _read(file: bytes) -> Any:
    try:
        return torch.load(io.BytesIO(file), weights_only=True)
    except Exception as error:
        said = next((line for line in str(error).splitlines() if "Unsupported" in line or "GLOBAL" in line), str(error))
        rule = "torch.load(..., weights_only=True) can read what save returns"
        raise RuleBroken(rule, said.split(" was not an allowed")[0].strip(), _PLAIN) from None


# ---- exercise 2 ----


def _seconds(
    work: float,
    interval: float,
    save: float,
    restart: float,
    failures: Iterable[float],
    mistake: str = "",
) -> float:
    """The second at which the work is done; or with one of `MISTAKES`."""
    now, saved, times = 0.0, 0.0, iter([*failures, inf])
    failure = next(times)
    while True:
        piece = min(interval, work - saved)
        is_done = saved + piece >= work
        end = now + piece + (save if not is_done or mistake == "at the end" else 0.0)
        if failure >= end:
            now, saved = end, saved + piece
            if is_done:
                return now
            continue
        if mistake == "nothing lost":
            saved += max(0.0, min(piece, failure - now))
        elif mistake == "unfinished save" and failure >= now + piece:
            saved += piece
        elif mistake == "all lost":
            saved = 0.0
        now = failure + (0.0 if mistake == "no restart" else restart)
        failure = next(times)
        if mistake == "restart never fails":
            while failure < now:
                failure = next(times)
        while mistake == "restarts add up" and failure < now:
            now, failure = now + restart, next(times)


MISTAKES = {
    "at the end": "there is a save after the last work",
    "unfinished save": "a save that a failure interrupts counts as finished",
    "nothing lost": "work after the last save is not done again",
    "all lost": "all work is done again, also the saved work",
    "no restart": "restarts take no time",
    "restart never fails": "a failure during a restart has no effect",
    "restarts add up": "a failure ends the restart before it: the seconds that it still had do not count",
}


def _runs(draw: Draw) -> Iterator[tuple[str, float, float, float, float, list[float]]]:
    """Name of a case, work, interval, save, restart, failures. No failure is at the end of a piece: none is whole."""
    interval, save, restart = (float(draw.integer(*span)) for span in ((20, 60), (5, 12), (8, 15)))
    save += 0.003  # so that no two mistakes give the same number
    work = 4 * interval + draw.integer(3, 15)
    yield "no failure, a save half as long as the interval", 8 * save + 3, 2 * save, save, restart, []
    yield "no failure", work, interval, save, restart, []
    yield "no failure, the interval divides the work", 4 * interval, interval, save, restart, []
    yield "work shorter than the interval", interval - 5, interval, save, restart, []
    early = draw.integer(5, 15) + 0.5
    yield "a failure before the first save", work, interval, save, restart, [early]
    piece = interval + save
    yield "a failure during work", work, interval, save, restart, [piece + draw.integer(3, 12) + 0.5]
    yield "a failure during a save", work, interval, save, restart, [piece + interval + draw.integer(1, 3) + 0.5]
    yield "a failure in the last piece", work, interval, save, restart, [4 * piece + 1.5]
    first = 2 * piece + draw.integer(3, 9) + 0.5
    yield "a failure during a restart", work, interval, save, restart, [first, first + draw.integer(2, 6)]
    many = [first, first + 3, first + 5, first + 6]
    yield "several failures during restarts", work, interval, save, restart, many
    yield "failures after the end only", work, interval, save, restart, [1000.5, 1001.5]
    yield "a failure where a last save would be", work, interval, save, restart, [4 * save + work + 2.5]
    yield "saves and restarts that take no time", work, interval, 0.0, 0.0, [first, first + 20]
    yield "a save longer than the interval", work, 7.0, 30.0, restart, [45.5, 200.5]
    for _ in range(20):
        at, failures = 0.0, []
        for _ in range(draw.integer(1, 30)):
            at += draw.number(1, 90)
            failures.append(at)
        yield "drawn at random", float(draw.integer(50, 900)), float(draw.integer(10, 90)), save, restart, failures
    at, days = 0.0, []
    for _ in range(150):  # few enough for an answer that calls itself for each piece
        at += draw.number(1, 20_000)
        days.append(at)
    yield "20 days", 20 * 86_400.0, 3_600.0, 60.0, 600.0, days


@exercise(
    "Seconds of a run",
    hints=[
        "What is known after each piece, of work and its save? Which two things can end a piece?",
        "Keep two numbers: now, and the work that is saved. The next piece would end at now + piece + save. If the "
        "next failure comes before, the piece counts nothing, and now is the failure plus the restart.",
        "A restart needs no separate case: if the next failure is before `now`, it is before the end of the next "
        "piece, too. The last piece has no save.",
    ],
)
def seconds_of_run(expect: Expect, seconds_of_run: Callable[..., float]) -> None:
    not_from_lablib(seconds_of_run)
    for kind, work, interval, save, restart, failures in _runs(expect.draw):
        expect.measured.clear()
        given = list(failures)
        value: Any = plain_number(seconds_of_run(work, interval, save, restart, given))
        few = short_repr(failures) if len(failures) <= 6 else f"{len(failures)} failures"
        what = f"({kind}: work {work:g}, interval {interval:g}, save {save:g}, restart {restart:g}, failures {few})"
        expect.equal(f"a number is returned {what}", value is ..., False)
        expect.equal(f"failures_s stays as it was {what}", given, failures)
        if not isinstance(value, Real) or isinstance(value, bool):
            said = "None: is there a return?" if value is None else short_repr(value)
            raise RuleBroken(f"a number of seconds is returned {what}", said, "a number")
        wanted = _seconds(work, interval, save, restart, failures)
        for mistake, said in MISTAKES.items():
            wrong = _seconds(work, interval, save, restart, failures, mistake) if len(failures) < 30 else wanted
            if abs(wrong - wanted) > 1e-6 and abs(float(value) - wrong) < 1e-6:
                raise RuleBroken(f"the second of the end is right {what}", f"{value:g}: {said}", f"{wanted:g}")
        expect.close(f"the second of the end is right {what}", value, wanted, rtol=1e-9)
    expect.measured.clear()
    expect.that("the second of the end is right", True, "", "in all runs, to 1e-9 of it")


# ---- exercise 3 ----


def _rings(samples: Sequence[tuple[float, Any]], limit: float, hold_s: float, clear_s: float) -> list[float]:
    """The times at which it rings, from the definition: each sample looks back over the run of samples like it."""
    rings: list[float] = []
    is_ringing, since, was_bad = False, 0.0, None
    for at_s, value in samples:
        is_bad = value is None or isnan(value) or value > limit
        if is_bad != was_bad:
            since, was_bad = at_s, is_bad
        if is_bad and not is_ringing and at_s - since >= hold_s:
            rings.append(at_s)
            is_ringing = True
        elif not is_bad and at_s - since >= clear_s:
            is_ringing = False
    return rings


def _streams(draw: Draw, limit: float) -> Iterator[tuple[str, list[Any], list[float], float, float]]:
    """Name of a case, values, seconds between them, hold, clear."""
    good, bad = limit - draw.number(1, 9), limit + draw.number(1, 20)
    one = [1.0]
    yield "no sample", [], one, 3, 3
    yield "never bad, and once at the limit", [good, limit - 0.5, limit, good], one, 0, 0
    yield "bad for less than hold_s", [good, bad, bad, bad, good, good], one, 3, 2
    yield "bad for exactly hold_s", [good, bad, bad, bad, bad, good], one, 3, 2
    yield "bad for long: it rings once", [good] + [bad] * 12, one, 3, 2
    yield "bad from the first sample on", [bad] * 5, one, 3, 2
    yield "a good sample between bad ones begins the hold again", [bad, bad, good, bad, bad, bad, good], one, 3, 1
    yield "NaN is bad", [good] + [nan] * 5, one, 3, 2
    yield "None is bad", [good] + [None] * 5, one, 3, 2
    yield "NaN, None and high values, one after another", [good, nan, None, bad, inf, good], one, 3, 2
    yield "hold_s of 0: at the first bad sample", [good, bad, bad, good], one, 0, 5
    yield "good for less than clear_s: no second ring", [bad, bad, good, good, bad, bad, bad, bad], one, 1, 3
    yield "good for exactly clear_s: a second ring", [bad, bad, good, good, good, good, bad, bad], one, 1, 3
    yield "good for a while in all, never clear_s at once", [bad, bad, good, good, bad, good, good, bad, bad], one, 1, 2
    for name, none in (("NaN", nan), ("None", None)):
        values = [bad, bad, good, none, good, good, bad, bad]
        yield f"{name} begins the recovery again: no second ring", values, one, 1, 2
    yield "clear_s of 0: ready at the first good sample", [bad, bad, good, bad, bad], one, 1, 0
    yield "seconds count, not samples", [good, bad, bad, bad, bad, good], [0.25], 2, 1
    yield "seconds count, not samples", [good, bad, bad, good], [60.0], 45, 50
    if limit > 0:
        yield "low values are good", [good, -inf, -5.0, 0.0, good], one, 0, 0
    else:
        yield "0 is bad if the limit is below", [good, 0.0, good], one, 0, 0
    for _ in range(25):
        values = []
        for _ in range(draw.integer(3, 12)):
            kind = draw.choice(["good", "good", "bad", "bad", "nan", "none"])
            value = {"good": limit - draw.number(1, 9), "bad": limit + draw.number(1, 90), "nan": nan, "none": None}[
                kind
            ]
            values += [value] * draw.integer(1, 6)
        gaps = [0.5 * draw.integer(1, 6) for _ in values]
        yield "drawn at random", values, gaps, 0.5 * draw.integer(0, 12), 0.5 * draw.integer(0, 12)


@exercise(
    "An alert",
    hints=[
        "What must it remember from one sample to the next? Since when...? Did it ring for this?",
        "Three things: since when samples are bad, since when they are good (one of the two is None), and whether it "
        "has rung since the last recovery. A comparison with NaN is false: `not value <= limit` is true for NaN.",
        "bad: good_since = None; set bad_since if it is None; ring if not ringing and at_s - bad_since >= hold_s. "
        "good: the mirror image, and ringing = False if at_s - good_since >= clear_s.",
    ],
)
def alert(expect: Expect, alert: Callable[..., Any]) -> None:
    not_from_lablib(alert)
    draw = expect.draw
    limits = float(draw.integer(11, 99)), -float(draw.integer(11, 99))
    for limit, (kind, values, gaps, hold_s, clear_s) in (
        (each, one) for each in limits for one in _streams(draw, each)
    ):
        expect.measured.clear()
        # Some begin at second 0, which is no "not yet".
        samples, at_s = [], 0.0 if kind.startswith("bad") else float(draw.integer(0, 99))
        for number, value in enumerate(values):
            # Each NaN is a separate object: `value in (None, math.nan)` would find the same one.
            samples.append((at_s, float("nan") if value is nan else value))
            at_s += gaps[number % len(gaps)]
        rings = alert(iter(samples), limit, hold_s, clear_s)
        shown = ", ".join(f"{t:g}: {'None' if v is None else format(v, '.3g')}" for t, v in samples[:14])
        shown += ", ..." if len(samples) > 14 else ""
        what = f"({kind}; limit {limit:g}, hold {hold_s:g}, clear {clear_s:g}; {shown})"
        expect.equal(f"a list is returned {what}", rings is ..., False)
        if isinstance(rings, Iterator):
            rings = list(rings)  # a generator function is as good
        rings = getattr(rings, "tolist", list)() if is_array(rings) else rings
        if not isinstance(rings, list | tuple):
            said = "None: is there a return?" if rings is None else short_repr(rings)
            raise RuleBroken(f"a list of times is returned {what}", said, "a list")
        wanted = _rings(samples, limit, hold_s, clear_s)
        said = f"rings at {short_repr(list(rings))}" if rings else "it does not ring"
        expected = f"rings at {short_repr(wanted)}" if wanted else "no ring"
        is_right = difference(list(rings), wanted, None, 0.0) is None
        expect.that(f"it rings when it should {what}", is_right, said, expected)
    expect.measured.clear()
    expect.that("it rings when it should", True, "", "in all streams")


# ---- exercise 4 ----


@exercise(
    "Eight repairs",
    hints=[
        "Each row of the table has one line that causes it. Which lines decide who writes, who reads what, what is "
        "recomputed, what the loss counts?",
        "Which rank is LOCAL_RANK on the second node? In {**a, **b}, which wins? What is the name of the class that is "
        "recomputed? Who divides the texts among ranks? Is config['clip'] used at all?",
        "Lines 11, 25, 26, 34, 42, 43, 44 and 47. In 43 multiply the loss by 2**16; in 47 divide each param.grad by "
        "it, then nn.utils.clip_grad_norm_(model.parameters(), config['clip']), then optimizer.step().",
    ],
)
def repairs(expect: Expect, repairs: Mapping[int, str]) -> None:
    expect.equal("repairs are given", repairs is ..., False)
    if not isinstance(repairs, Mapping):
        raise RuleBroken("repairs are a dict", short_repr(repairs), "{number of a line: its new text}")
    old = {number: text.strip() for number, text in enumerate(SCRIPT.splitlines(), 1)}
    repairs = {number: text for number, text in repairs.items() if text is not ...}
    for number, text in repairs.items():
        if isinstance(text, str) and old.get(number) == text.strip():
            raise RuleBroken("a repaired line is another", f"line {number} is as it was", "a new text, or no entry")
    not_from_lablib(repairs)
    draw = expect.draw
    seed, given = draw.integer(1, 9999), {"lr": 1e-4 * draw.integer(11, 99), "clip": NO_BOUND}
    # The second run has other sizes, so that no number of the first can stand in a repair. It is short: it is repeated
    # for each repair. Its norm is 0.59 to 0.81: with this bound a gradient of half the size shows.
    runs = {4: given, 2: given | {"clip": 0.01 * draw.integer(45, 55), "micro_batches": 1}}
    for ranks, config in runs.items():
        told = ", ".join(f"{name} {value:g}" for name, value in config.items())
        found = _run_script(repairs, seed, config, ranks)
        for symptom in sorted(found, key=lambda each: "norm" in each.name):  # the norm last: other faults change it
            rule = f"{symptom.name} (the repaired script on {ranks} ranks, told {told})"
            expect.that(rule, symptom.is_right, symptom.saw, symptom.wanted)
    expect.measured.clear()
    expect.that("all eight measurements are right", True, "", "with two configurations, on 4 and on 2 ranks")
    for number in repairs:
        others = {other: text for other, text in repairs.items() if other != number}
        try:
            # First on the fewer ranks: what is wrong there as well is found in half the time.
            again = (symptoms(others, seed, config, ranks=ranks) for ranks, config in reversed(runs.items()))
            still = all(symptom.is_right for each in again for symptom in each)
        except (SyntaxError, LaunchError):  # a repair of several lines that belong together
            continue
        if still:
            saw = f"line {number} was not at fault: with the old one, {old[number]!r}, all is right, too"
            raise RuleBroken("each repaired line was at fault", saw, "no entry for it")
    expect.that("each repaired line was at fault", True, "", "something breaks with any of them as it was")


def _run_script(repairs: Mapping[int, str], seed: int, config: Mapping[str, float], ranks: int) -> list[Symptom]:
    try:
        return symptoms(repairs, seed, config, ranks=ranks)
    except Exception as error:
        cause = error.__cause__ or error
        said = f"{type(cause).__name__}: {cause}"
        raise RuleBroken("the repaired script runs", said, "no error; lines have the numbers of the listing") from None


# ---- exercise 5 ----


@exercise(
    "Collect together",
    hints=[
        "Which one number about all ranks does the decision need? Which collective gives it?",
        "Each rank knows whether it is over the limit: 0 or 1. The maximum over all ranks is 1 if any is.",
        "x = torch.tensor(float(garbage_bytes > limit_bytes)); dist.all_reduce(x, op=dist.ReduceOp.MAX); x.item() > 0",
    ],
)
def must_collect(expect: Expect, must_collect: Callable[..., Any]) -> None:
    not_from_lablib(must_collect)
    draw = expect.draw
    for ranks in (draw.integer(2, 4), draw.integer(5, 8)):
        limit = draw.integer(10**6, 10**9)
        made = [[draw.integer(1, limit // 100) for _ in range(ranks)] for _ in range(10)]
        made[draw.integer(1, 3)][draw.integer(0, ranks - 1)] += 2 * limit  # one rank alone
        part = 2 * limit // 3
        # No garbage; much in all, little on each; the limit; above it.
        made += [[each] * ranks for each in (2 * limit, part, limit - part, 1)]

        def steps(made: list[list[int]] = made, limit: int = limit) -> list[tuple[int, Any]]:
            garbage, found = 0, []
            for step in made:
                garbage += step[dist.get_rank()]
                answer = must_collect(garbage, limit)
                found.append((garbage, answer))
                garbage = 0 if answer else garbage
            return found

        with same_calls("with any garbage on each rank"):
            run = expect.launch(steps, ranks=ranks)
        for step, here in enumerate(zip(*run.values, strict=True)):
            garbage, answers = zip(*here, strict=True)
            where = f"(after step {step}; garbage of the ranks in MB: {', '.join(f'{g / 1e6:.4g}' for g in garbage)})"
            expect.equal(f"an answer is returned {where}", any(one is ... for one in answers), False)
            if not all(isinstance(one, bool | int | float) for one in answers):
                raise RuleBroken("each rank returns True or False", short_repr(answers[0]), "True or False")
            said = [bool(one) for one in answers]
            expect.that(f"all ranks decide the same {where}", len(set(said)) == 1, f"{said}", "one answer")
            is_over = max(garbage) > limit
            rule = f"they collect where a rank has more than {limit / 1e6:.4g} MB, and only there {where}"
            expect.equal(rule, said[0], is_over)
        expect.measured.clear()
        given_bytes = sum(one.tensor_bytes for one in run.traffic.transfers if 0 in one.ranks)
        expect.budget("bytes of a rank's communication per step", given_bytes / len(made), 8, "B")
    expect.that("all ranks collect where one is over the limit", True, "", "in all steps")


# ---- exercise 6 ----


@exercise(
    "Diagnose a hang",
    hints=[
        "Look at place 0 of all lists, then at place 1. When do you stop?",
        "Lists end at different places: let None stand for a missing call. The usual call is the one that most ranks "
        "have; count it.",
        "here = [one[place] if place < len(one) else None for one in calls]; usual = max(here, key=here.count)",
    ],
)
def diagnose(expect: Expect, diagnose: Callable[..., Any]) -> None:
    not_from_lablib(diagnose)
    draw = expect.draw
    for kind in ("all agree", "a call is left out", "other bytes", "it ends early", "one call more", "two ranks") * 3:
        ranks, length = draw.integer(5, 9), draw.integer(4, 9)
        names = ("all_reduce", "broadcast", "all_gather", "barrier")
        common = [(draw.choice(names), 2 ** draw.integer(4, 20) + place) for place in range(length)]
        calls, place, odd = (
            [list(common) for _ in range(ranks)],
            draw.integer(0, length - 2),
            draw.integer(0, ranks - 1),
        )
        wanted: Any = (place, [odd])
        if kind == "all agree":
            wanted = None
        elif kind == "a call is left out":
            del calls[odd][place]
        elif kind == "other bytes":
            name, size_bytes = common[place]
            calls[odd][place] = name, 2 * size_bytes + 1
        elif kind == "it ends early":
            del calls[odd][place:]
        elif kind == "one call more":
            calls[odd].append(("all_reduce", 3))
            wanted = (length, [odd])
        else:
            other = (odd + draw.integer(1, ranks - 1)) % ranks
            del calls[odd][place]
            calls[other][place] = ("barrier", 1)
            wanted = (place, sorted((odd, other)))
        expect.measured.clear()
        given = [list(one) for one in calls]
        found = diagnose(given)
        expect.equal(f"an answer is returned ({kind})", found is ..., False)
        expect.that("the lists are not changed", given == calls, "other lists", "the same")
        if found is not None:
            try:
                at, differ = found
                found = int(at), sorted(int(each) for each in differ)
            except (TypeError, ValueError):
                raise RuleBroken("(place, ranks) or None is returned", short_repr(found), "such as (1, [2])") from None
        shown = "; ".join(f"rank {r}: {', '.join(f'{n} {b}' for n, b in one)}" for r, one in enumerate(calls))
        rule = f"the first place where ranks disagree, and who differs ({kind}; {shown})"
        expect.that(rule, found == wanted, f"{found}", f"{wanted}")
    expect.measured.clear()
    expect.that("place and ranks", True, "", "right in all cases")


# ---- exercise 7 ----

SIZES: dict[str, Any] = {
    "num_steps": 24,
    "model": {"num_layers": 1, "d_model": 16, "num_heads": 2, "max_seq_len": 16},
    "data": {"batch_size": 4, "seq_len": 16},
    "monitor": {"every": 100},
}
CHOICES = {"checkpoint": {"every", "keep"}, "health": {"policy", "drift_every"}}


@exercise(
    "Settings for a night",
    hints=[
        "24 steps and at most 5 saves: how often? And at most 6 steps again: how rarely?",
        "A save between the drift and the comparison keeps the wrong weight. So each save needs a comparison in its "
        "step, which comes first. With policy stop or off, what becomes of a step with NaN?",
        "every and drift_every 5 or 6, and equal; keep 1; policy skip.",
    ],
)
def night(expect: Expect, my_settings: Mapping[str, Any]) -> None:
    expect.equal("settings are given", my_settings is ..., False)
    if not isinstance(my_settings, Mapping) or not all(isinstance(each, Mapping) for each in my_settings.values()):
        raise RuleBroken("the settings are a dict of dicts", short_repr(my_settings), '{"checkpoint": {"every": 4}}')
    given = {(section, name) for section, table in my_settings.items() for name in table}
    allowed = {(section, name) for section, names in CHOICES.items() for name in names}
    others = [f"{section}.{name}" for section, name in sorted(given - allowed)]
    expect.that("only the four values are chosen", not others, ", ".join(others), "every, keep, policy, drift_every")
    with tempfile.TemporaryDirectory() as base:
        _nights(expect, my_settings, Path(base))


def _nights(expect: Expect, settings: Mapping[str, Any], base: Path) -> None:
    def config(name: str) -> Any:
        kept = {**settings.get("checkpoint", {}), "folder": str(base / name)}
        return parse_config({**SIZES, **settings, "checkpoint": kept})

    def train(name: str, attach: Any = ()) -> list[tuple[int, float, bool]]:
        return [(one["step"], one["loss"], one["skipped"]) for one in run_training(config(name), attach)]

    try:
        chosen, num_steps = config("whole"), SIZES["num_steps"]
    except ValueError as error:
        raise RuleBroken("`lab train` accepts the settings", str(error), "values in their ranges") from None
    every, drift_every = chosen.checkpoint.every, chosen.health.drift_every
    expect.budget("saves", -(-num_steps // every), 5, "saves")
    expect.budget("comparisons of the replicas", num_steps // drift_every if drift_every else 0, 5, "comparisons", 1)
    whole = expect.launch(train, "whole", ranks=RANKS)
    losses = {step: loss for step, loss, _ in whole.values[0]}
    files = [file for file in next((base / "whole").iterdir()).rglob("*") if file.is_file()]
    size_bytes = sum(file.stat().st_size for file in files)
    room_bytes = (chosen.checkpoint.keep + 1) * size_bytes
    expect.budget("room for the newest checkpoints and the best", room_bytes, 2 * size_bytes, "B")

    step_s = whole.timeline.makespan_s / num_steps
    draw = expect.draw
    at = draw.choice([2 * every - 0.6, draw.number(every + 1, num_steps - 1)])  # right before a save, or anywhere
    try:
        expect.launch(train, "killed", ranks=RANKS, faults=[KillRank(draw.integer(0, 1), at * step_s)])
    except RankKilledError:
        pass
    again = expect.launch(train, "killed", ranks=RANKS, trace=False).values[0]
    where = f"(a rank dies in step {int(at) + 1})"
    expect.budget(f"steps computed again {where}", int(at) + 1 - again[0][0], 6, "steps")
    _same_losses(expect, again, losses, where)

    # A save without a comparison in its step, if there is one, keeps a weight that has changed just before.
    unseen = [step for step in range(every, num_steps, every) if step % drift_every]
    after = unseen[-1] - 1 if unseen else draw.integer(every, 3 * every)

    def drift(trainer: Any) -> None:
        def change(metrics: Mapping[str, Any]) -> None:
            if metrics["step"] == after and dist.get_rank() == 0:
                with torch.no_grad():
                    next(trainer.step.model.parameters()).mul_(2.0)

        trainer.on_step.append(change)  # after the save of this step

    where = f"(weights on rank 0 change after step {after})"
    try:
        expect.launch(train, "drift", [drift], ranks=RANKS, trace=False)
        raise RuleBroken(f"the drift is found {where}", "the run ends as if nothing had happened", "it stops")
    except RankError:
        again = expect.launch(train, "drift", ranks=RANKS, trace=False).values[0]
    _same_losses(expect, again, losses, where)

    bad = expect.draw.integer(3, num_steps - 3)
    where = f"(a gradient is NaN in step {bad + 1})"
    try:
        ran = expect.launch(train, "nan", ranks=RANKS, faults=[CorruptGradient(1, step=bad)]).values[0]
    except LaunchError as error:
        said = str(error).splitlines()[0]
        raise RuleBroken(f"the run reaches its end {where}", said, "one step without update") from None
    skipped = [step for step, _, is_skipped in ran if is_skipped]
    expect.equal(f"one step is without update {where}", skipped, [bad + 1])
    expect.measured.clear()
    expect.that("each night ends with the losses of a night without faults", True, "", "to the bit")


def _same_losses(expect: Expect, ran: Any, losses: Mapping[int, float], where: str) -> None:
    first = next((step for step, loss, _ in ran if loss != losses[step]), None)
    rule = f"the run goes on with the losses of a night without faults {where}"
    expect.that(rule, first is None, f"another loss in step {first}", "the same, to the bit")
