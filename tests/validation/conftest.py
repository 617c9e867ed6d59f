"""Rows to change, and a predictor that stands in for the planner."""

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from lablib.validation.rows import PublishedRow, parse_rows, published_mixtures, published_rows
from lablib.validation.score import ScoreReport, score

# A 7B GPT on one node, as the files write it.
PLAIN: dict[str, Any] = {
    "id": "mine-one",
    "model": {"layers": 32, "hidden": 4096, "heads": 32, "seq": 2048, "vocab": 50304},
    "hardware": {"gpu": "A100-80GB", "gpus": 8, "gpus_per_node": 8},
    "parallel": {"dp": 2, "tp": 4, "pp": 1},
    "batch": {"global": 64, "micro": 4},
    "measured": {"iteration_s": 4.0},
    "precision": "bf16",
    "recompute": "full",
    "source": {"title": "Megatron, April 2021", "url": "https://example.org"},
}


def change(record: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A copy with {"model.layers": 4} changed; None takes a field out."""
    record = copy.deepcopy(record)
    for path, value in changes.items():
        *sections, key = path.split(".")
        place = record
        for section in sections:
            place = place.setdefault(section, {})
        if value is None:
            place.pop(key, None)
        else:
            place[key] = value
    return record


@pytest.fixture
def row() -> Callable[..., PublishedRow]:
    """`row({"model.layers": 4})`: the plain row with changes, read by the reader."""
    return lambda changes=None: parse_rows([json.dumps(change(PLAIN, changes or {}))])[0]


@pytest.fixture
def line() -> Callable[..., str]:
    """The same as a line of a file, not read yet."""
    return lambda changes=None: json.dumps(change(PLAIN, changes or {}))


@pytest.fixture(scope="session")
def published() -> list[PublishedRow]:
    return published_rows()


@dataclass(frozen=True)
class Fixed:
    """What the stand-in predicts."""

    step_time_s: float = 4.4
    peak_memory_bytes: float = 30e9
    model_flops: float = 1e15
    limit_bytes: float = 80e9

    @property
    def reserved_bytes(self) -> float:
        return 1.1 * self.peak_memory_bytes

    @property
    def device_bytes(self) -> float:
        return self.reserved_bytes + 1e9

    @property
    def fits(self) -> bool:
        return self.peak_memory_bytes <= self.limit_bytes


@pytest.fixture
def fixed() -> type[Fixed]:
    return Fixed


@pytest.fixture(scope="session")
def made_up(published: list[PublishedRow]) -> ScoreReport:
    """The published rows, with a predictor that knows nothing but how many layers and tokens there are."""

    def predict(**case: Any) -> Fixed:
        tokens = case["batch"] * case["seq_len"] * case["model"].num_layers * case["model"].d_model ** 2
        return Fixed(tokens * 96 / case["parallel"].num_ranks / 150e12, 40e9)

    return score(published, predict)


@pytest.fixture(scope="session")
def mixtures() -> list[PublishedRow]:
    return published_mixtures()
