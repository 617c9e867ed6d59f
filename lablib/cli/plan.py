"""`lab plan`: search all plans for a model on a cluster, and print the best as a table."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from lablib.course.errors import CourseError
from lablib.course.table import table
from lablib.plan.predict_many import Progress
from lablib.plan.prediction import Prediction
from lablib.plan.search import search
from lablib.plan.search_result import SearchResult, row_of
from lablib.text.units import format_quantity, plural

WHOLE = ("tensor", "pipeline", "context", "expert", "expert_tensor", "data", "chunks", "micro_batch", "zero_stage")
NAMES = ("recompute", "schedule")
GIVEN = ("nodes", "gpus", "seq_len", "precision", "stack", "optimizer", "compression")
_BAR_AFTER_S = 1.0
_MAX_VALUES = 100_000


def plan_command(options: argparse.Namespace) -> int:
    """Search and print. Returns 1 if nothing fits.

    Raises:
        CourseError: unknown names, invalid numbers, or values that no plan can combine.
    """
    if options.top < 1:
        raise CourseError(f"--top must be 1 or more: got {options.top}")
    asked = {name: getattr(options, name) for name in GIVEN}
    asked["trainable"] = "lora" if options.lora else "all"
    asked["offload"] = tuple(word.strip() for word in options.offload.split(",")) if options.offload else ()
    try:
        for name in WHOLE:
            asked[name] = _whole(name, getattr(options, name))
        for name in NAMES:
            words = getattr(options, name)
            asked[name] = None if words is None else [word.strip() for word in words.split(",")]
        inputs = {"model": options.model, "cluster": options.cluster, "batch": options.batch} | asked
        with _bar() as progress:
            found = search(**inputs, progress=progress)
    except ValueError as error:
        raise CourseError(str(error)) from None
    answer = {"inputs": _settled(inputs, found)} | to_json(found, options.top)
    print(json.dumps(answer, indent=2) if options.json else text(found, options.top))
    return 0 if len(found.order) else 1


def text(found: SearchResult, top: int) -> str:
    """The best plans, the number of plans tried, and the reasons against the others."""
    lines = []
    if len(found.order):
        best = found.best
        lines += [
            f"{best.name} on {plural(best.num_gpus, 'GPUs')} of {best.cluster}, a step of "
            f"{plural(best.batch, 'sequences')} of {plural(best.seq_len, 'tokens')}:",
            "",
        ]
        lines += [table(_HEADING, [_row(place, each) for place, each in enumerate(found.top(top), 1)]), ""]
        lines += [f"Software: {best.software}."]
    else:
        lines += [found.sentence(), ""]
    possible, fit = int(found.plans.is_possible.sum()), len(found.order)
    lines.append(f"{plural(len(found.plans), 'plans')} tried: {possible:,} possible, {fit:,} fit.")
    if len(found.order):
        smallest = found.pareto[-1]
        lines.append(
            f"{len(found.pareto)} of them are the trade-off between time and memory: from {_brief(found.pareto[0])} to "
            f"{_brief(smallest)} ({smallest.parallel}, {smallest.schedule}, recompute {smallest.recompute})."
        )
    if len(found.rejected):
        counts = found.rejected.counts
        examples = found.rejected.examples()
        rows = [(kind, f"{count:,}", examples[kind].reason) for kind, count in counts.items()]
        lines += ["", table(("rejected for", "plans", "for example; of memory, the nearest miss"), rows)]
    return "\n".join(lines)


_HEADING = (
    "",
    "plan",
    "schedule",
    "micro-batch",
    "recompute",
    "step",
    "tokens/s",
    "MFU",
    "bubble",
    "memory",
    "time goes to",
)


def _row(place: int, each: Prediction) -> tuple[str, ...]:
    row = row_of(each)
    return (
        *(str(place), str(each.parallel), each.schedule, str(each.micro_batch), each.recompute),
        *(format_quantity(each.step_time_s, "s"), f"{each.tokens_per_s:,.0f}", f"{each.mfu:.1%}"),
        *(f"{max(each.bubble_fraction, 0.0):.1%}", _memory(each), row["bound_by"]),
    )


def _memory(each: Prediction) -> str:
    """Peak memory, with "tight" above 95% of the GPU's memory."""
    return format_quantity(each.peak_memory_bytes, "B") + (", tight" if row_of(each)["is_tight"] else "")


def _brief(each: Prediction) -> str:
    return f"{format_quantity(each.step_time_s, 's')} in {format_quantity(each.peak_memory_bytes, 'B')}"


def to_json(found: SearchResult, top: int) -> dict[str, Any]:
    """JSON form: seconds and bytes."""
    kinds = found.rejected.examples()
    nearest = found.nearest
    return {
        "tried": len(found.plans),
        "possible": int(found.plans.is_possible.sum()),
        "fit": len(found.order),
        "best": [row_of(each) for each in found.top(top)],
        "pareto": [row_of(each) for each in found.pareto],
        "nearest": None if nearest is None else row_of(nearest),
        "rejected": {
            kind: {"plans": count, "example": kinds[kind].reason} for kind, count in found.rejected.counts.items()
        },
    }


def _settled(inputs: dict[str, Any], found: SearchResult) -> dict[str, Any]:
    """The inputs as keyword arguments of `search`, with the default sequence length filled in."""
    return inputs | {"seq_len": int(found.plans.numbers["seq_len"][0])}


def _whole(name: str, text: str | None) -> Sequence[int] | None:
    """ "8", "1,2,4" or "4-16" as numbers."""
    if text is None:
        return None
    values: list[int] = []
    for word in text.split(","):
        first, dash, last = word.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() or not dash)):
            raise ValueError(f"--{name.replace('_', '-')} is a number, some (1,2,4) or a range (4-16): got {text!r}")
        several = range(int(first), int(last or first) + 1)
        if several.stop - several.start > _MAX_VALUES:
            raise ValueError(
                f"--{name.replace('_', '-')} is at most {_MAX_VALUES:,} numbers: got {text!r}; try a shorter range"
            )
        values += several
    if not values:
        raise ValueError(f"--{name.replace('_', '-')} is a range without a number: got {text!r}; try the smaller first")
    return values


@contextmanager
def _bar() -> Iterator[Progress]:
    """A progress bar on stderr, for long searches."""
    from tqdm import tqdm

    with tqdm(file=sys.stderr, unit=" plans", ascii=True, leave=False, delay=_BAR_AFTER_S) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield progress
