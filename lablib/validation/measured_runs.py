"""Measured runs as points: the published rows with the planner's answer to each, to find those near a prediction.

    question    the numbers and names by which two runs are compared
    ratio       predicted / measured step time

The points are in measured_runs.jsonl, so that asking for evidence predicts nothing. `make validation` writes them, and
tests/validation/test_evidence.py compares them with a fresh computation.
"""

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlparse

from lablib.plan.derating import USUAL
from lablib.plan.predict import predict
from lablib.plan.prediction import Prediction
from lablib.text.files import parse_json, read_text
from lablib.validation.rows import PublishedRow, published_mixtures, published_others, published_rows
from lablib.validation.score import prepare, report

FILE = Path(__file__).with_name("measured_runs.jsonl")


class Question(NamedTuple):
    """The part of a run by which it is compared with others."""

    flops_per_token: float  # of the model, forward and backward: its size, and attention's part at this length
    num_gpus: int  # num_gpus, seq_len: ranks, and tokens of a sequence
    seq_len: int
    # device, capability: the device's name, and the major number of its compute capability (0: not NVIDIA's)
    device: str
    capability: int
    bits: int  # of the dtype of products
    software: str  # name of the stack
    has_experts: bool  # whether the model is a mixture of experts
    apart: tuple[str, ...] = ()  # techniques (LoRA, offload, ...) that make runs incomparable with runs without them


class MeasuredRun(NamedTuple):
    """One published run. `source` is the repository or page that published it."""

    id: str
    source: str
    question: Question
    ratio: float


def question_of(prediction: Prediction) -> Question:
    """The question that a prediction answers. Raises ValueError if it has no setup, as it is not from `predict`."""
    setup = prediction.setup
    if setup is None:
        raise ValueError("evidence needs a prediction with its setup: got one without; make it with predict")
    device = setup.machine.cluster.device
    apart = (
        ("LoRA", setup.trainable != "all"),
        ("offload", bool(setup.offload)),
        ("compression of gradients", setup.compression.name != "none"),
        ("ZeRO++", bool(setup.zero_plus_plus)),
        ("a derating other than the default", setup.machine.derating != USUAL),
    )
    return Question(
        flops_per_token=prediction.model_flops / prediction.tokens_per_step,
        num_gpus=prediction.num_gpus,
        seq_len=prediction.seq_len,
        device=device.name,
        capability=device.compute_capability[0],
        bits=int("".join(filter(str.isdigit, prediction.precision))),
        software=setup.software.name,
        has_experts=setup.model.experts is not None,
        apart=tuple(name for name, is_so in apart if is_so),
    )


def source_of(row: PublishedRow) -> str:
    """Owner and repository of a row's address, or its host; its family without an address.

    Tables of one repository are one source: the same people, programs and machines.
    """
    address = urlparse(row.source.get("url", ""))
    return "/".join(address.path.split("/")[1:3]) if address.netloc == "github.com" else address.netloc or row.family


def compute_runs() -> list[MeasuredRun]:
    """The points of all published rows of this package that state a time and that the planner does not refuse."""
    runs = []
    rows = [*published_rows(), *published_mixtures(), *published_others()]
    for one in report(prepare(rows)[0], predict).timed:
        question = question_of(predict(**one.case.arguments()))
        runs.append(MeasuredRun(one.row.id, source_of(one.row), question, 1 + one.error / 100))
    return runs


def runs_text(runs: Iterable[MeasuredRun]) -> str:
    """The points as JSON Lines, numbers to six digits."""
    lines = []
    for run in runs:
        flops, ratio = (float(f"{each:.6g}") for each in (run.question.flops_per_token, run.ratio))
        question = dict(zip(Question._fields, run.question._replace(flops_per_token=flops), strict=True))
        lines.append(json.dumps({"id": run.id, "source": run.source, "ratio": ratio, **question}) + "\n")
    return "".join(lines)


@cache
def measured_runs() -> tuple[MeasuredRun, ...]:
    """The points of this package, read once."""
    return tuple(map(_run, read_text(FILE).splitlines()))


def _run(line: str) -> MeasuredRun:
    record = parse_json(line)
    question = Question(*(record[name] for name in Question._fields[:-1]), apart=tuple(record["apart"]))
    return MeasuredRun(record["id"], record["source"], question, record["ratio"])
