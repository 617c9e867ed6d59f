# pyright: reportPrivateImportUsage=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportOptionalMemberAccess=false
"""`torch.distributed.checkpoint`: what n ranks save, m ranks load, and training goes on as if nothing had happened."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from lablib import launch
from lablib.errors import RankError
from tests.conformance.reference import Block, Gradients, assert_same, batch, build, fsdp2, loss_of, my_part, parameters

ROWS = 24  # divides by 1, 2, 3 and 4 ranks


def ddp(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model)


WRAPS = {"fsdp2": fsdp2, "ddp": ddp}


def prepared(wrap: str, seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model and an optimizer with state; other seeds begin elsewhere."""
    torch.manual_seed(seed)
    model = WRAPS[wrap](nn.Sequential(*(Block() for _ in range(4))).double())
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, seeds: range) -> None:
    for seed in seeds:
        optimizer.zero_grad()
        loss_of(model(my_part(batch(ROWS, seed=seed)))).backward()
        optimizer.step()


def save(path: str, wrap: str) -> None:
    model, optimizer = prepared(wrap)
    train(model, optimizer, range(2))
    model_state, optimizer_state = get_state_dict(model, optimizer)
    dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=path)


def load_and_go_on(path: str, wrap: str) -> Gradients:
    model, optimizer = prepared(wrap, seed=9)
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state}
    dcp.load(state, checkpoint_id=path)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    train(model, optimizer, range(2, 4))
    return parameters(model)


def without_a_stop() -> Gradients:
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for seed in range(4):
        optimizer.zero_grad()
        loss_of(model(batch(ROWS, seed=seed))).backward()
        optimizer.step()
    return parameters(model)


@pytest.mark.parametrize(
    ("saved_as", "savers", "loaded_as", "loaders"),
    [
        ("fsdp2", 2, "fsdp2", 4),
        pytest.param("fsdp2", 4, "fsdp2", 3, marks=pytest.mark.thorough),
        ("ddp", 2, "ddp", 3),
        ("ddp", 2, "fsdp2", 3),
        ("fsdp2", 3, "ddp", 2),
    ],
)
def test_training_goes_on_after_a_change_of_ranks(
    tmp_path: Path, saved_as: str, savers: int, loaded_as: str, loaders: int
):
    """Model and AdamW's state: two steps, save, load on other ranks and other shards, two steps more."""
    launch(save, str(tmp_path), saved_as, ranks=savers)
    for found in launch(load_and_go_on, str(tmp_path), loaded_as, ranks=loaders).values:
        assert_same(found, without_a_stop())


def test_every_rank_of_fsdp2_writes_its_own_shard(tmp_path: Path):
    launch(save, str(tmp_path), "fsdp2", ranks=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".metadata", *(f"__{r}_0.distcp" for r in range(3))]


@pytest.mark.parametrize("placements", [[Shard(0)], [Shard(1)], [Replicate()]], ids=str)
def test_a_tensor_saved_in_one_layout_is_loaded_in_another(tmp_path: Path, placements: list[Any]):
    whole = torch.arange(35.0).view(7, 5)

    def write() -> None:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        dcp.save({"x": distribute_tensor(whole, mesh, [Shard(0)])}, checkpoint_id=str(tmp_path))

    def read() -> torch.Tensor:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        x = distribute_tensor(torch.zeros(7, 5), mesh, placements)
        dcp.load({"x": x}, checkpoint_id=str(tmp_path))
        assert isinstance(x, DTensor)
        return x.full_tensor()

    launch(write, ranks=4)
    assert all(torch.equal(x, whole) for x in launch(read, ranks=3).values)


def test_plain_objects_and_stateful_ones_are_saved_as_well(tmp_path: Path):
    class Counter:
        def __init__(self, value: int):
            self.value = value

        def state_dict(self) -> dict[str, Any]:
            return {"value": self.value}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.value = state["value"]

    def write() -> None:
        dcp.save({"counter": Counter(7), "step": 3, "names": ["a", "b"]}, checkpoint_id=str(tmp_path))

    def read() -> tuple[int, Any]:
        counter, state = Counter(0), {"step": 0, "names": ["", ""]}
        dcp.load({"counter": counter, **state}, checkpoint_id=str(tmp_path))
        return counter.value, None

    launch(write, ranks=2)
    assert launch(read, ranks=3).values == [(7, None)] * 3


def test_a_missing_key_is_named(tmp_path: Path):
    def write() -> None:
        dcp.save({"x": torch.zeros(2)}, checkpoint_id=str(tmp_path))

    def read() -> None:
        dcp.load({"y": torch.zeros(2)}, checkpoint_id=str(tmp_path))

    launch(write, ranks=2)
    with pytest.raises(RankError, match="Missing key in checkpoint state_dict: y"):
        launch(read, ranks=2)


def test_an_asynchronous_save_says_that_a_rank_communicates_from_one_thread(tmp_path: Path):
    """torch saves from a thread of its own, which plans with the other ranks; a simulated rank has one thread."""

    def program() -> None:
        model, optimizer = prepared("fsdp2")
        train(model, optimizer, range(1))
        dcp.async_save({"model": model.state_dict()}, checkpoint_id=str(tmp_path)).result()

    with pytest.raises(RankError, match="a simulated rank communicates from one thread only"):
        launch(program, ranks=2, timeout_s=60)
    assert not (tmp_path / ".metadata").exists()


def test_a_file_of_torch_save_may_be_loaded_by_every_rank(tmp_path: Path):
    def program() -> Gradients:
        path = tmp_path / "model.pt"
        if dist.get_rank() == 0:
            torch.save(build().state_dict(), path)
        dist.barrier()
        model = nn.Sequential(*(Block() for _ in range(4))).double()
        model.load_state_dict(torch.load(path, weights_only=True))
        return parameters(model)

    for found in launch(program, ranks=3).values:
        assert_same(found, parameters(build()), tolerance=0)
