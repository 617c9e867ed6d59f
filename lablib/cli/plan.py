"""`lab plan`: search all plans for a model on a cluster, and print the best as a table."""

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from math import nan
from pathlib import Path
from typing import Any

from lablib.cli.assertion import Assertion
from lablib.cli.plan_written import written_plan
from lablib.configs.deepspeed import read_deepspeed
from lablib.configs.hugging_face import read_hugging_face
from lablib.configs.megatron import parse_megatron
from lablib.configs.reading import Reading, text_of
from lablib.configs.summary import summary
from lablib.configs.torchtitan import read_torchtitan
from lablib.configs.writing import TOOLS
from lablib.course.errors import CourseError
from lablib.course.table import table
from lablib.hardware.catalogue import CLUSTERS, find_cluster
from lablib.models.published import TRANSFORMERS, find_transformer
from lablib.models.transformer import Transformer
from lablib.pipeline.closed_form import WITH_CLOSED_FORM
from lablib.plan.arguments import OFFLOAD, PRECISIONS
from lablib.plan.gradient_compression import COMPRESSIONS
from lablib.plan.optimizers import OPTIMIZERS
from lablib.plan.predict_many import Progress
from lablib.plan.prediction import Prediction
from lablib.plan.recompute import KINDS
from lablib.plan.search import search
from lablib.plan.search_result import SearchResult, row_of
from lablib.plan.stack import STACKS
from lablib.text.units import format_quantity, plural

WHOLE = ("tensor", "pipeline", "context", "expert", "expert_tensor", "data", "chunks", "micro_batch", "zero_stage")
NAMES = ("recompute", "schedule")
GIVEN = ("nodes", "gpus", "precision", "stack", "optimizer", "compression")
_BINARY = {"": 1, "k": 2**10, "M": 2**20}  # of lengths and batches: a context of 8k is 8,192 tokens
_DECIMAL = {"": 1, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_NAMES = {
    "models": TRANSFORMERS,
    "clusters": CLUSTERS,
    "stacks": STACKS,
    "precisions": PRECISIONS,
    "optimizers": OPTIMIZERS,
    "schedules": WITH_CLOSED_FORM,
    "recompute": (*KINDS, "every k", "first k"),
    "compression": COMPRESSIONS,
    "offload": OFFLOAD,
    "--write": TOOLS,
}
_OF_TRAINING = ("days", "gpu_hours", "energy_j", "price")  # known with --tokens; the price with --price
NUMBERS = ("step_s", "peak_bytes", "tokens_per_s", "mfu", "bubble_share", "gpus", *_OF_TRAINING)  # of --assert
_BAR_AFTER_S = 1.0
_MAX_VALUES = 100_000


def plan_command(options: argparse.Namespace) -> int:
    """Search and print. Returns 1 if nothing fits, or --assert is broken.

    Raises CourseError: unknown names, invalid numbers, or values that no plan can combine.
    """
    if options.list:
        print(table(("", "names"), [(kind, ", ".join(each)) for kind, each in _NAMES.items()]))
        return 0
    if options.top < 1:
        raise CourseError(f"--top must be 1 or more: got {options.top}")
    asked = [f"--{name}" for name in ("write", "why", "json") if getattr(options, name)]
    if len(asked) > 1 and asked != ["--why", "--json"]:
        raise CourseError(f"{' and '.join(asked)} are different outputs: give one of them")
    try:
        asserted = Assertion(options.asserted, NUMBERS) if options.asserted is not None else None
        settings = _settings(options)
        needed = ("model", "cluster", "batch")
        missing = [name for name in needed if getattr(options, name) is None and name not in settings.record]
        if missing:
            raise ValueError(f"lab plan needs --{' and --'.join(missing)}; lab plan --list has the names")
        reading = _model(options.model) if options.model else Reading(settings.record["model"])
        inputs = _inputs(options, reading.record, settings.record)
        if options.price is not None and not 0 <= options.price < float("inf"):
            raise ValueError(f"--price must be 0 or more, and finite: got {options.price}; try 2.5")
        tokens = None if options.tokens is None else _quantity("tokens", options.tokens, _DECIMAL)
        with _bar() as progress:
            found = search(**inputs, progress=progress)
        training = {} if tokens is None or not len(found.order) else _training(found.best, tokens, options.price)
    except ValueError as error:
        raise CourseError(str(error)) from None
    is_of_file = not options.model or reading.record.source.startswith("config.json")
    remarks = [f"Read: {summary(reading.record)}."] if is_of_file else []
    remarks += [*reading.sentences(), *settings.sentences(), *_remarks(inputs)]
    try:
        if asserted is not None and (options.write or options.why is not None):
            raise ValueError("--assert is on the best plan: it goes with no --write and no --why; leave them out")
        if options.write:
            return written_plan(options, found, remarks)
        if options.why is not None:
            from lablib.cli.plan_explained import explained_plan  # the only use of lablib/validation

            return explained_plan(options, found, remarks)
    except (ValueError, OSError) as error:
        raise CourseError(str(error)) from None
    if options.json:
        inputs |= {"model": reading.record.name, "seq_len": int(found.plans.numbers["seq_len"][0])}
        answer = {"inputs": inputs, "remarks": remarks, "training": training} | to_json(found, options.top)
        print(json.dumps(answer, indent=2))
    else:
        print("\n".join([text(found, options.top), *_training_lines(training, options.tokens), *remarks]))
    if asserted is None or not len(found.order):
        return 0 if len(found.order) else 1
    best = found.best
    values = dict.fromkeys(NUMBERS, nan) | {name: training[name] for name in _OF_TRAINING if name in training}
    values |= {"step_s": best.step_time_s, "peak_bytes": best.peak_memory_bytes, "tokens_per_s": best.tokens_per_s}
    values |= {"mfu": best.mfu, "bubble_share": max(best.bubble_fraction, 0.0), "gpus": best.num_gpus}
    holds, lines = asserted.check(values)
    print("\n".join(lines), file=sys.stderr if options.json else sys.stdout)
    return 0 if holds else 1


def _settings(options: argparse.Namespace) -> Reading[dict[str, Any]]:
    """The choices of a configuration of DeepSpeed, Megatron-LM or torchtitan; none without one."""
    given = [f"--{name}" for name in ("deepspeed", "megatron", "torchtitan") if getattr(options, name)]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)} both choose a plan: give one of them")
    if options.megatron:
        has_options = options.megatron.lstrip().startswith("-")
        return parse_megatron(options.megatron if has_options else text_of(options.megatron))
    if options.torchtitan:
        gpus = options.gpus
        if options.nodes is not None and options.cluster is not None:
            gpus = options.nodes * find_cluster(options.cluster).devices_per_node
        return read_torchtitan(options.torchtitan, gpus)
    return read_deepspeed(options.deepspeed) if options.deepspeed else Reading({})


def _inputs(options: argparse.Namespace, model: Transformer, settings: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `search`: the options, then `settings`, then the defaults."""
    asked: dict[str, Any] = {name: getattr(options, name) for name in GIVEN}
    if options.seq_len is not None:
        asked["seq_len"] = round(_quantity("seq-len", options.seq_len, _BINARY))
    asked["trainable"] = "lora" if options.lora else "all"
    asked["offload"] = tuple(word.strip() for word in options.offload.split(",")) if options.offload else ()
    for name in WHOLE:
        asked[name] = _whole(name, getattr(options, name))
    for name in NAMES:
        words = getattr(options, name)
        asked[name] = None if words is None else [word.strip() for word in words.split(",")]
    if options.batch is not None:
        batch = _quantity("batch", options.batch, _BINARY)
        if not options.batch.strip()[-1].isdecimal():  # tokens
            batch = max(1, round(batch / max(1, asked.get("seq_len", model.max_seq_len))))
        asked["batch"] = batch
    if options.imbalance is not None:
        if model.experts is None:
            raise ValueError(f"--imbalance needs a mixture of experts: got {model.name!r}; leave it out")
        model = replace(model, experts=replace(model.experts, imbalance=options.imbalance))
    asked = {name: value for name, value in asked.items() if value not in (None, ())}
    defaults = {"precision": "bfloat16", "optimizer": "adamw", "offload": ()}
    return defaults | settings | asked | {"model": model, "cluster": options.cluster}


def _model(words: str) -> Reading[Transformer]:
    """A published model, or the model of a config.json or of a folder with one."""
    if words.endswith(".json") or (Path(words) / "config.json").is_file():
        return read_hugging_face(words)
    return Reading(find_transformer(words))


def _quantity(name: str, text: str, units: Mapping[str, float]) -> float:
    """ "64", "4M" or "1.5T" as a number."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([a-zA-Z]?)", text.strip().replace(",", ""))
    unit = next((unit for unit in units if found and unit.lower() == found[2].lower()), None)
    if not found or unit is None or (not unit and "." in found[1]):
        endings = " or ".join(ending for ending in units if ending)
        raise ValueError(f"--{name} is a whole number, or a number with {endings}: got {text!r}; try 64 or 4M")
    return float(found[1]) * units[unit] if unit else int(found[1])


def _training(best: Prediction, tokens: float, price: float | None) -> dict[str, float]:
    """Days, GPU hours, energy in joules, and money of the whole training."""
    hours, energy_j = best.gpu_hours(tokens), best.energy_j(tokens)
    training = {"tokens": tokens, "days": hours / best.num_gpus / 24, "gpu_hours": hours}
    if energy_j is not None:
        training["energy_j"] = energy_j
    if price is not None:
        training["price"] = price * hours
    return training


def _training_lines(training: dict[str, float], tokens: str | None) -> list[str]:
    if not training:
        return []
    parts = [f"{training['days']:,.3g} days", f"{training['gpu_hours']:,.0f} GPU hours"]
    if "energy_j" in training:
        parts.append(f"{training['energy_j'] / 3.6e9:,.3g} MWh at the GPUs' design power")
    if "price" in training:
        parts.append(f"a price of {training['price']:,.0f}")
    return ["", f"{tokens} tokens by the first plan: {', '.join(parts)}."]


def _remarks(inputs: dict[str, Any]) -> list[str]:
    """Remarks on the inputs."""
    each = find_cluster(inputs["cluster"]).devices_per_node
    if (gpus := inputs.get("gpus", 0)) > each and gpus % each:
        return [f"{gpus} GPUs on nodes of {each}: the last node has {gpus % each}; try {gpus // each * each}."]
    return []


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
        lines += [f"Software: {best.software}.", best.evidence_sentence()]
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
    *("", "plan", "schedule", "micro-batch", "recompute"),
    *("step", "tokens/s", "MFU", "bubble", "memory", "time goes to"),
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
        "evidence": asdict(found.best.evidence) if len(found.order) else None,
        "nearest": None if nearest is None else row_of(nearest),
        "rejected": {
            kind: {"plans": count, "example": kinds[kind].reason} for kind, count in found.rejected.counts.items()
        },
    }


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
    """A progress bar on stderr for long searches, if stderr is a terminal."""
    from tqdm import tqdm

    with tqdm(file=sys.stderr, unit=" plans", ascii=True, leave=False, delay=_BAR_AFTER_S, disable=None) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield progress
