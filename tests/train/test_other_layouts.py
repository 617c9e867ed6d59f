"""Runs that go on with other axes, another ZeRO stage or another number of ranks: the weights of one device."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lablib import launch
from lablib.data import Corpus
from lablib.parallel.zero.shards import FlatLayout
from lablib.train import Checkpoints, TrainConfig, Trainer, build, parse_config, with_overrides
from lablib.train.boxes import BoxedTensor, boxed_shard
from lablib.train.run import save_and_resume
from tests.train.test_trainer import loader_of, text

BASE = {
    "model": {"num_layers": 2, "d_model": 8, "num_heads": 2, "max_seq_len": 8},
    "data": {"seq_len": 8, "batch_size": 12},
    "precision": {"parameters": "float64"},
    "checkpoint": {"every": 2},
    "num_steps": 2,
}
SGD: dict[str, Any] = {"name": "sgd", "lr": 0.1, "momentum": 0.9, "schedule_steps": 9, "schedule": "linear"}
ADAMW: dict[str, Any] = {"name": "adamw", "lr": 1e-2, "max_norm": 1.0, "schedule_steps": 9, "schedule": "cosine"}
EXACT: Any = {"rtol": 1e-8, "atol": 1e-11}  # AdamW divides by roots near 0

Layout = tuple[int, tuple[str, ...]]  # ranks, settings
ONE: Layout = (1, ())
REPLICAS: list[Layout] = [
    (ranks, (f"parallel.zero_stage={stage}", f"parallel.library={library}"))
    for ranks in (2, 3, 4)
    for stage in range(4)
    for library in ("lablib", "torch")
    if (stage, library) != (1, "torch")
]
MESHES: list[Layout] = [
    (6, ("parallel.tensor=2",)),
    (4, ("parallel.tensor=2", "parallel.sequence_parallel=true")),
    (6, ("parallel.pipeline=2", "data.micro_batch=2")),
    (4, ("parallel.pipeline=2", "parallel.schedule=zb-v", "data.micro_batch=2")),
    (4, ("parallel.context=2",)),
    (4, ("parallel.tensor=2", "parallel.zero_stage=2", "parallel.sequence_parallel=true")),
    (6, ("parallel.tensor=2", "parallel.zero_stage=3")),
    (8, ("parallel.tensor=2", "parallel.context=2", "parallel.zero_stage=3", "data.micro_batch=2")),
    (8, ("parallel.tensor=2", "parallel.pipeline=2", "parallel.context=2")),
]


def config_of(layout: Layout, optimizer: dict[str, Any], num_steps: int, *more: str) -> TrainConfig:
    return parse_config(with_overrides({**BASE, "optimizer": optimizer}, [*layout[1], *more, f"num_steps={num_steps}"]))


def train(config: TrainConfig, corpus: Corpus, folder: str) -> tuple[list[tuple[float, float]], Trainer]:
    """Losses and norms of the steps that are left, with checkpoints in a folder."""
    found: list[Any] = []
    trainer = build(config, loader=loader_of(config, corpus), on_step=[found.append])
    with Checkpoints(folder) as checkpoints:
        save_and_resume(trainer, checkpoints, config)
        trainer.train(config.num_steps - trainer.num_steps)
    return [(one["loss"], one["grad_norm"]) for one in found], trainer


def curve(config: TrainConfig, corpus: Corpus, folder: str) -> list[tuple[float, float]]:
    return train(config, corpus, folder)[0]


def weights(optimizer: dict[str, Any], num_steps: int, folder: Path, *more: str) -> dict[str, Any]:
    """Weights and optimizer state after these steps, on one device: read from a checkpoint, or of its own run."""
    state = train(config_of(ONE, optimizer, num_steps, *more), text(), str(folder))[1].step.state_dict()
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


@settings(max_examples=5)
@given(data=st.data())
def test_drawn_layouts_go_on_with_each_other_and_have_the_weights_of_one_device(data: Any):
    """The state of the last layout is read by one device and compared with a run that never stopped."""
    layouts = data.draw(st.lists(st.sampled_from([ONE, *REPLICAS, *MESHES]), min_size=2, max_size=2, unique=True))
    optimizer = data.draw(st.sampled_from([SGD, ADAMW]))
    with tempfile.TemporaryDirectory() as folder:
        for number, layout in enumerate(layouts, 1):
            config = config_of(layout, optimizer, 2 * number)
            launch(curve, config, text(), f"{folder}/cut", ranks=layout[0], trace=False)
        found = weights(optimizer, 4, Path(folder) / "cut")
        torch.testing.assert_close(found, weights(optimizer, 4, Path(folder) / "straight"), **EXACT)


def test_a_run_goes_on_over_five_layouts_with_the_curve_of_one_device(tmp_path: Path):
    """4 -> 2 -> 3 ranks, ZeRO 3 -> 1 -> none, then fully_shard and a mesh; no batch is left out or comes twice."""
    layouts: list[Layout] = [
        (4, ("parallel.zero_stage=3",)),
        (2, ("parallel.zero_stage=1",)),
        (3, ()),
        (4, ("parallel.zero_stage=3", "parallel.library=torch")),
        (4, ("parallel.tensor=2", "parallel.pipeline=2", "data.micro_batch=2")),
    ]
    wanted, _ = train(config_of(ONE, ADAMW, 10), text(), str(tmp_path / "straight"))
    found: list[Any] = []
    for number, layout in enumerate(layouts, 1):
        config = config_of(layout, ADAMW, 2 * number)
        of_ranks = launch(curve, config, text(), str(tmp_path / "cut"), ranks=layout[0], trace=False).values
        assert all(values == of_ranks[0] for values in of_ranks)
        found += of_ranks[0]
    assert found == [pytest.approx(pair, rel=1e-7) for pair in wanted]
    assert wanted[-1][0] < wanted[0][0] - 0.3


SPREAD = {"expert=4": 4, "expert=1": 2, "expert=2": 4, "expert=2 tensor=2": 4, "expert=2 zero_stage=1": 2}
SPREAD |= {"expert=2 zero_stage=3": 4, "expert=2 pipeline=2": 4, "expert=2 zero_stage=2": 6}
LLAMA = "family=llama num_kv_heads=2 head_dim=4", {"zero_stage=3": 3, "tensor=2": 2, "pipeline=2": 2}


MIXTRAL = f"{LLAMA[0]} num_experts=4", {"expert=2 zero_stage=3": 4, "expert=2 tensor=2 sequence_parallel=true": 4}
OTHERS = [LLAMA, ("num_experts=4", SPREAD), MIXTRAL]


@pytest.mark.parametrize(("model", "layouts"), OTHERS, ids=["llama", "experts", "llama with experts"])
def test_other_models_go_on_over_other_layouts(tmp_path: Path, model: str, layouts: dict[str, int]):
    more = tuple(f"model.{field}" for field in model.split())
    for number, (axes, ranks) in enumerate(layouts.items(), 1):
        config = config_of((ranks, (*more, *(f"parallel.{axis}" for axis in axes.split()))), ADAMW, 2 * number)
        launch(curve, config, text(), str(tmp_path / "cut"), ranks=ranks, trace=False)
    found = weights(ADAMW, 2 * len(layouts), tmp_path / "cut", *more)
    torch.testing.assert_close(found, weights(ADAMW, 2 * len(layouts), tmp_path / "straight", *more), **EXACT)


@given(
    shapes=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=1, max_size=4),
    ranks=st.integers(1, 5),
)
def test_the_boxes_of_all_ranks_cover_each_parameter_once(shapes: list[list[int]], ranks: int):
    layout = FlatLayout(tuple(f"p{i}" for i in range(len(shapes))), tuple(map(tuple, shapes)), ranks)
    full = torch.arange(layout.padded_numel)
    counts = {
        name: torch.zeros(shape, dtype=torch.int64) for name, shape in zip(layout.names, layout.shapes, strict=True)
    }
    wanted = dict(zip(layout.names, layout.views(full), strict=True))
    for rank in range(ranks):
        for name, boxed in boxed_shard(layout, rank, full[layout.shard_of(rank)]).items():
            assert isinstance(boxed, BoxedTensor) and boxed.shape == wanted[name].shape
            for corner, view in boxed.boxes:
                place = tuple(slice(at, at + size) for at, size in zip(corner, view.shape, strict=True))
                assert torch.equal(wanted[name][place], view)
                counts[name][place] += 1
    assert all((count == 1).all() for count in counts.values())


def test_a_boxed_tensor_has_no_operators():
    with pytest.raises(TypeError, match="only saved and loaded: got aten.neg"):
        torch.neg(BoxedTensor((2,), torch.float32))
