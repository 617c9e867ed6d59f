"""Any configuration is refused when it is read, in one sentence, or trains: no setting fails later."""

from math import prod
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lablib import launch
from lablib.data import Batch
from lablib.pipeline.schedules import SCHEDULES
from lablib.train import TrainConfig, build, parse_config
from lablib.train.build import fitted

# Of torch: its compiler at the first import, and the note that a compiled program runs eagerly.
pytestmark = pytest.mark.filterwarnings("ignore")
AXES = ("data", "context", "tensor", "pipeline", "expert")


class OneBatch:
    """The same random batch in every step: this rank's part, or on a mesh all of it."""

    def __init__(self, config: TrainConfig):
        sizes, parts, part = config.data, dist.get_world_size(), dist.get_rank()
        drawn = torch.randint(0, 256, (sizes.batch_size, sizes.seq_len + 1), generator=torch.Generator().manual_seed(1))
        own = drawn if config.parallel.is_mesh else drawn.chunk(parts)[part]
        self.batch = Batch(own[:, :-1], own[:, 1:])

    def __next__(self) -> Batch:
        return self.batch

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None: ...


def two_steps(config: TrainConfig) -> int:
    trainer = build(config, loader=OneBatch(config))
    trainer.train(2)  # the second step needs the state of the first
    return trainer.num_steps


@st.composite
def tables(draw: Any) -> dict[str, Any]:
    """All axes, stages, schedules, formats and memory settings; half of the draws have the usual value."""

    def one_of(usual: Any, *others: Any) -> Any:
        return draw(st.sampled_from([usual, *others])) if draw(st.booleans()) else usual

    axes: dict[str, Any] = {axis: one_of(1, 2) for axis in AXES}
    name = one_of("adamw", "sgd", "adam", "lion", "lamb")
    products = one_of("float32", "bfloat16", "float16")
    has_experts = axes["expert"] > 1 or one_of(False, True)
    return {
        "model": {
            **{"d_model": 8, "max_seq_len": 8, "num_layers": one_of(4, 1, 2), "num_heads": one_of(4, 2)},
            **{"family": one_of("gpt", "llama"), "tied_head": one_of(None, True, False)},
            **{"num_experts": one_of(4, 2, 3) if has_experts else 0, "num_active": one_of(2, 1)},
        },
        "data": {"batch_size": one_of(8, 4, 12), "micro_batch": one_of(None, 1, 2), "seq_len": one_of(8, 6, 4)},
        "optimizer": {"name": name, "fused": one_of(False, True), "max_norm": one_of(1.0, 9.0)},
        "parallel": {
            **axes,
            **{"zero_stage": one_of(0, 1, 2, 3), "library": one_of("lablib", "torch")},
            **{"schedule": one_of("1f1b", *SCHEDULES), "num_chunks": one_of(1, 2)},
            "sequence_parallel": axes["tensor"] > 1 and one_of(False, True),
        },
        "precision": {
            **{"products": products, "parameters": one_of("float32", "float64")},
            "master": products != "float32" and one_of(False, True),
        },
        "memory": {"recompute": one_of("none", "full", "selective"), "compile": one_of(False, True)},
        "health": {"policy": one_of("off", "skip"), "drift_every": one_of(0, 1)},
    }


def trains_or_is_refused(drawn: dict[str, Any]) -> None:
    ranks = prod(drawn["parallel"][axis] for axis in AXES)
    try:
        config = fitted(parse_config(drawn), ranks)
    except ValueError as error:
        assert "\n" not in str(error) and " got " in str(error) and ("try " in str(error) or "; " in str(error))
        return
    assert launch(two_steps, config, ranks=ranks, trace=False).values == [2] * ranks


FEW: Any = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}


@settings(max_examples=25, **FEW)
@given(drawn=tables())
def test_a_drawn_configuration_is_refused_when_read_or_trains(drawn: dict[str, Any]):
    trains_or_is_refused(drawn)


@pytest.mark.thorough
@settings(max_examples=1000, **FEW)
@given(drawn=tables())
def test_many_drawn_configurations_are_refused_when_read_or_train(drawn: dict[str, Any]):
    trains_or_is_refused(drawn)
