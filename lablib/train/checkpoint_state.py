"""State of a run as tensors and objects: split, copied to the host, written and read.

A state is a nested mapping, such as {"model": model.state_dict(), "loader": PerRank(position)}. Its leaves are

    tensors, DTensors, bytes    files of torch.distributed.checkpoint; a tensor that several ranks have is written once,
                                a DTensor by shards, and any number of ranks can read it
    PerRank(value)              a value of each rank: position in the data, generators; in the file of the rank
    other objects               equal on all ranks: settings, counts; in the file of rank 0

    rank-0.pt     {"shared": {"optimizer.lr": 0.1}, "own": {"loader": ...}}     rank-1.pt     {"shared": {}, "own": ...}

The name of a leaf is its path with dots: "model.blocks.0.mlp.up.weight". Objects are read without executing code
(`weights_only=True`); an object that could not be read back is refused when it is saved. But torch reads its list of
tensors, .metadata, and bytes as pickles: load only checkpoints that you trust.

Cost for n ranks and S bytes of tensors: a rank copies S/n to the host before training goes on, and holds the copy until
it is written. Every rank reads all n files of objects.
Source: torch.distributed.checkpoint (torch 2.13): its planner assigns tensors to ranks and finds the saved chunks that
overlap a shard. The copies are made here, as torch's copy all tensors of a rank.
Simplified: the host copy is in pageable memory; pinned memory would be faster on a GPU.
"""

import io
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, WriteItem

from lablib.signature import shown
from lablib.text.messages import safe_str
from lablib.train.manifest import Manifest


@dataclass
class PerRank:
    """A value that each rank has for itself."""

    value: Any = None  # of this rank; after a load, None if the saved run had fewer ranks
    of_all: Sequence[Any] = ()  # after a load, the values of all ranks of the saved run, in rank order


class Leaf(NamedTuple):
    """A value of the state, with its name and the mapping that has it under `key`."""

    name: str
    parent: Mapping[Any, Any]
    key: Any
    value: Any


def leaves(state: Mapping[Any, Any], prefix: str = "") -> Iterator[Leaf]:
    """All leaves of nested mappings, in order."""
    for key, value in state.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from leaves(value, f"{name}.")
        else:
            yield Leaf(name, state, key, value)


def split(state: Mapping[Any, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Tensors and bytes by name, and the objects: "shared" and "own". ValueError: two leaves of the same name."""
    tensors: dict[str, Any] = {}
    objects: dict[str, dict[str, Any]] = {"shared": {}, "own": {}}
    for name, _, _, value in leaves(state):
        if name in tensors or name in objects["shared"] or name in objects["own"]:
            raise ValueError(f"names in a state must differ: got {shown(name)} twice; rename one of its keys.")
        if isinstance(value, Tensor | bytes):
            tensors[name] = value
        elif isinstance(value, PerRank):
            objects["own"][name] = value.value
        else:
            objects["shared"][name] = value
    return tensors, objects


def packed(objects: Mapping[str, Any]) -> bytes:
    """The objects as bytes that `torch.load` reads without executing code. ValueError: one cannot be read so."""
    file = io.BytesIO()
    try:
        torch.save(objects, file)
        torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    except Exception as error:
        rule = "objects in a state must be tensors, numbers, texts, and lists, tuples and dicts of these"
        raise ValueError(f"{rule}: {safe_str(error).splitlines()[0]}; convert them.") from None
    return file.getvalue()


class HostPlanner(DefaultSavePlanner):
    """Torch's plan of which rank writes which tensor, with host copies of what this rank writes."""

    def __init__(self, tensors: dict[str, Any], is_coordinator: bool):
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.set_up_planner(tensors, None, is_coordinator)
        self._copies: dict[Any, Any] = {}

    def copy_to_host(self, plan: SavePlan) -> None:
        """Copy the tensors of the plan, after which training may change them."""
        for item in plan.items:
            found = super().resolve_data(item)
            is_tensor = isinstance(found, Tensor)
            self._copies[item.index] = found.detach().to("cpu", copy=True) if is_tensor else found
        self.state_dict = {}

    def resolve_data(self, write_item: WriteItem) -> Any:
        return self._copies.pop(write_item.index)


# ---- read ----


def load_state(path: Path, state: Mapping[Any, Any], rank: int) -> int:
    """Overwrite a state of the same structure, tensors in place; returns the step. Does not communicate.

    ValueError: names, shapes or dtypes differ; then nothing has changed.
    """
    tensors, objects = split(state)
    reader, planner = FileSystemReader(path), DefaultLoadPlanner(False, False)
    metadata = reader.read_metadata()
    _require_same_tensors(metadata.state_dict_metadata, tensors)
    num_ranks = len(list(path.glob("rank-*.pt")))
    saved = [torch.load(path / f"rank-{each}.pt", weights_only=True) for each in range(num_ranks)]
    for kind in ("shared", "own"):
        _require_same_names(saved[0][kind].keys(), objects[kind].keys())

    planner.set_up_planner(tensors, metadata, is_coordinator=rank == 0)
    reader.set_up_storage_reader(metadata, is_coordinator=rank == 0)
    plan = planner.finish_plan(reader.prepare_local_plan(planner.create_local_plan()))
    reader.read_data(plan, planner).wait()
    for name, parent, key, value in leaves(state):
        if isinstance(value, bytes) and isinstance(parent, MutableMapping):
            parent[key] = planner.state_dict[name]
    for name, parent, key, value in list(leaves(state)):
        if isinstance(value, PerRank):
            value.of_all = [each["own"][name] for each in saved]
            value.value = value.of_all[rank] if rank < len(saved) else None
        elif not isinstance(value, Tensor | bytes) and isinstance(parent, MutableMapping):
            parent[key] = saved[0]["shared"][name]
    return Manifest.read(path).step


def shared_objects(path: Path) -> dict[str, Any]:
    """The objects that are equal on all ranks, by name. Does not communicate."""
    return torch.load(path / "rank-0.pt", weights_only=True, mmap=True)["shared"]


def _require_same_tensors(saved: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
    _require_same_names(saved.keys(), tensors.keys())
    for name, tensor in tensors.items():
        entry = saved[name]
        if not (isinstance(tensor, Tensor) and isinstance(entry, TensorStorageMetadata)):
            continue
        was, now = (entry.size, entry.properties.dtype), (tensor.shape, tensor.dtype)
        if was != now:
            raise ValueError(
                f"the checkpoint must be of the same tensors: {name} was {tuple(was[0])} in {was[1]}, and is "
                f"{tuple(now[0])} in {now[1]} here; give a state of the saved model."
            )


def _require_same_names(saved: Any, own: Any) -> None:
    if odd := sorted(saved ^ own):
        where = "checkpoint" if odd[0] in saved else "state"
        raise ValueError(
            f"the checkpoint must have the names of the state: {shown(odd[0])} is in the {where} only; a new optimizer "
            "has its state after get_optimizer_state_dict() of torch.distributed.checkpoint.state_dict."
        )
