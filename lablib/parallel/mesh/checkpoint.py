"""Checkpoints of a step on a mesh that another mesh can load: each rank saves boxes of the whole model's tensors.

Tensor parallelism cuts a matrix by rows or columns, ZeRO-1 cuts a rank's shard of it again, as a run of numbers. A run
of a matrix is at most three boxes (the end of a row, whole rows, the beginning of one); moved to where the shard lies,
they are boxes of the whole matrix. Each is saved under the parameter's name and the place of its first corner:

    w [3, 6], columns 3 to 5 on this tensor rank      ... | a a a      run of 5     a  parameter/w/0.3
    and its data rank, in two runs                    ... | b b c                   b  parameter/w/1.3
                                                      ... | d d d      run of 4     c  parameter/w/1.5
                                                                                    d  parameter/w/2.3

Who loads has boxes of its own, of whatever mesh, and reads the saved ones that overlap them. The optimizer's state is
cut in the same way. Of equal copies (norms on all tensor ranks, a tied embedding on both ends of the pipeline) the rank
saves one that counts them in the norm (`mesh/optimizer.py`), and every rank reads.

Phases of a load (the code has the same headings):
    1. look        the model, its precision and the optimizer must be the same; all boxes must be there
    2. read        what overlaps this rank's boxes, beside what it has; checksums must be right, on every rank
    3. take over   only now parameters, the optimizer and its settings change

Cost for n ranks that save S bytes of parameters and optimizer state, m that load:
    time_s      S/n, S/m and what overlaps twice over the bandwidth of the file system, on every rank at once
    peak bytes  while it loads, the saved boxes that overlap this rank's
    sent bytes  names and checksums; the all-gather of parameters after a load
Shapes: a box has the dimensions of its parameter.
Source: torch.distributed.checkpoint (torch 2.13), which writes, finds and reads named tensors; Wan et al.,
"ByteCheckpoint", 2024, arXiv 2407.20143, section 3.2 (shards as boxes of a tensor, irregular ones as several).
Simplified: one group of settings; no random generators, as the model draws none; the data's place is the caller's.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.state_dict_saver import save

from lablib.parallel.mesh.checkpoint_files import (
    agreed,
    checksum,
    description_in,
    read_entries,
    require_listed,
    require_undamaged,
    sealed,
    sizes_of,
)
from lablib.parallel.mesh.optimizer import Buffer, Owned
from lablib.parallel.mesh.step import CombinedStep
from lablib.parallel.tensor.regions import shard_range
from lablib.signature import NonNegativeInt, checked, shown

PARAMETER, META = "parameter", "combined"


class Box(NamedTuple):
    """Part of a tensor: its first corner, and its sizes."""

    corner: tuple[int, ...]
    sizes: tuple[int, ...]


@checked
def save_checkpoint(step: CombinedStep, path: str | Path, num_steps: NonNegativeInt) -> None:
    """Save parameters, the optimizer's state and settings, the loss scale, and how many steps were taken. Communicates.

    Arguments:
        step: all ranks must call it.
        path: of a folder that all ranks see, without a checkpoint.
        num_steps: how many steps have been taken.

    Raises:
        ValueError: the folder holds a checkpoint, or the optimizer has what cannot be cut.
    """
    if (Path(path) / ".metadata").exists():
        raise ValueError(f"a checkpoint needs a folder of its own: there is one in {path}; try {path}-{num_steps}.")
    own = {
        f"{part}/{name}/{'.'.join(map(str, box.corner))}": view.contiguous()
        for buffer in step.sharded.buffers
        if buffer.counts
        for part, tensor in _tensors(step, buffer).items()
        for name, box, view in _boxes(step, buffer, tensor)
    }
    checksums: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(checksums, {key: checksum(tensor) for key, tensor in own.items()})
    meta = _description(step) | {
        "num_steps": num_steps,
        "counts": _counts(step),
        "scaler": None if step.scaler is None else step.scaler.state_dict(),
        "checksums": {key: value for each in checksums for key, value in each.items()},
    }
    save({META: sealed(meta), **own}, checkpoint_id=str(path))


@checked
def load_checkpoint(step: CombinedStep, path: str | Path) -> int:
    """Load what `save_checkpoint` saved on any mesh. Communicates.

    Arguments:
        step: of the same model with the same kind of optimizer; all ranks must call it.
        path: of the folder.

    Returns:
        How many steps had been taken.

    Raises:
        ValueError: no checkpoint, one of another model or optimizer, an incomplete or damaged one. Then nothing has
            changed, on any rank.
    """
    # ---- 1. look ----
    saved = agreed(lambda: sizes_of(path))
    if META not in saved:
        raise ValueError(f"{path} holds a checkpoint that save_checkpoint did not write: it has no {META!r}.")
    meta: dict[str, Any] = agreed(lambda: _meta(path))
    agreed(lambda: require_listed(saved.keys() - {META}, meta["checksums"], path))
    agreed(lambda: _require_same(meta, _description(step)))
    boxes = agreed(lambda: _saved_boxes(saved, meta, step))

    # ---- 2. read ----
    new = [_new_tensors(buffer, meta) for buffer in step.sharded.buffers]
    own = [
        (part, name, box, view)
        for buffer, tensors in zip(step.sharded.buffers, new, strict=True)
        for part, tensor in tensors.items()
        for name, box, view in _boxes(step, buffer, tensor)
    ]
    wanted = {
        key: torch.empty(there.sizes, dtype=view.dtype, device="cpu")
        for part, name, box, view in own
        for key, there in boxes[part, name].items()
        if _overlap(box, there) is not None
    }
    read = agreed(lambda: read_entries(wanted, path))
    agreed(lambda: require_undamaged(read, meta["checksums"], path))

    # ---- 3. take over ----
    for part, name, box, view in own:
        for key, there in boxes[part, name].items():
            both = _overlap(box, there)
            if both is not None:
                _at(view, box, both).copy_(_at(read[key], there, both))
    _take_over(step, meta, new)
    return meta["num_steps"]


# ---- boxes ----


def boxes_of_run(shape: tuple[int, ...], start: int, numel: int) -> list[Box]:
    """A run of a tensor's numbers, as they lie in memory, as boxes, in order: at most 2 d - 1 for d dimensions.

    >>> [tuple(box) for box in boxes_of_run((4, 3), 1, 6)]
    [((0, 1), (1, 2)), ((1, 0), (1, 3)), ((2, 0), (1, 1))]
    """
    if len(shape) == 1:
        return [Box((start,), (numel,))]
    row, found = prod(shape[1:]), []
    while numel:
        index, within = divmod(start, row)
        if within or numel < row:
            part = min(numel, row - within)
            found += [Box((index, *box.corner), (1, *box.sizes)) for box in boxes_of_run(shape[1:], within, part)]
        else:
            part = numel // row * row
            found.append(Box((index, *(0 for _ in shape[1:])), (numel // row, *shape[1:])))
        start, numel = start + part, numel - part
    return found


def _boxes(step: CombinedStep, buffer: Buffer, tensor: Tensor) -> Iterator[tuple[str, Box, Tensor]]:
    """A tensor like the buffer's shard as boxes of the whole model's parameters: name, box, a view; without padding."""
    owned = {one.name: one for one in buffer.owned}
    for name, first, start, numel in buffer.unit.layout.pieces(dist.get_rank(buffer.unit.group)):
        one = owned[name]
        for box in boxes_of_run(tuple(one.param.shape), first, numel):
            end = start + prod(box.sizes)
            view, start = tensor.detach()[start:end].view(box.sizes), end
            dim, from_, real = _place(one)
            length = min(box.sizes[dim], real - box.corner[dim])  # rows behind the last word are no part of the model
            if length > 0:
                corner = tuple(at + from_ * (i == dim) for i, at in enumerate(box.corner))
                view = view.narrow(dim, 0, length)
                yield _name(step, one), Box(corner, tuple(view.shape)), view


def _place(one: Owned) -> tuple[int, int, int]:
    """Of a parameter's shard over tensor ranks: the dimension that is cut, where it begins there, its real length."""
    cuts: Mapping[str, tuple[int, int]] = getattr(one.owner, "cuts", {})
    if one.key not in cuts:
        return 0, 0, one.param.shape[0]
    layer: Any = one.owner
    dim, size = cuts[one.key]
    start, end = shard_range(size, dist.get_rank(layer.group), dist.get_world_size(layer.group), layer.multiple_of)
    return dim, start, end - start


def _name(step: CombinedStep, one: Owned) -> str:
    return "token_embedding.weight" if step.how.config.tied_head and one.name == "head.weight" else one.name


def _overlap(a: Box, b: Box) -> Box | None:
    corner = tuple(map(max, a.corner, b.corner))
    ends = [min(p + m, q + n) for p, m, q, n in zip(a.corner, a.sizes, b.corner, b.sizes, strict=True)]
    sizes = tuple(end - at for at, end in zip(corner, ends, strict=True))
    return Box(corner, sizes) if min(sizes) > 0 else None


def _at(tensor: Tensor, box: Box, inner: Box) -> Tensor:
    """The part `inner` of a tensor that is `box` of the whole."""
    for dim, (at, size) in enumerate(zip(inner.corner, inner.sizes, strict=True)):
        tensor = tensor.narrow(dim, at - box.corner[dim], size)
    return tensor


# ---- what a rank has ----


def _tensors(step: CombinedStep, buffer: Buffer) -> dict[str, Tensor]:
    """Parameters, and what of the optimizer's state has a number for each of them, as shards."""
    master = buffer.unit.master
    state = {key: value for key, value in step.sharded.optimizer.state.get(master, {}).items() if _has_numbers(value)}
    for key, value in state.items():
        if value.shape != master.shape:
            raise ValueError(
                f"a checkpoint cuts the optimizer's state as it cuts parameters: {key!r} has the shape "
                f"{tuple(value.shape)}, the shard {tuple(master.shape)}; save it with torch.save, rank by rank."
            )
    return {PARAMETER: master, **state}


def _has_numbers(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0


def _counts(step: CombinedStep) -> dict[str, Any]:
    """Of the optimizer's state, what is one number for all (its count of steps)."""
    state = step.sharded.optimizer.state.get(step.sharded.buffers[0].unit.master, {})
    return {key: value for key, value in state.items() if not _has_numbers(value)}


def _description(step: CombinedStep) -> dict[str, Any]:
    """What must be the same in a checkpoint and who loads it; and which tensors its optimizer's state has."""
    buffer, groups = step.sharded.buffers[0], step.sharded.optimizer.param_groups
    if len(groups) != 1:
        raise ValueError(f"a checkpoint keeps one group of settings: got {len(groups)}; give the optimizer one group.")
    return {
        "model": asdict(step.how.config),
        "dtype": buffer.unit.master.dtype,
        "optimizer": type(step.sharded.optimizer).__qualname__,
        "settings": {key: value for key, value in groups[0].items() if key not in ("params", "param_names")},
        "parts": {part: tensor.dtype for part, tensor in _tensors(step, buffer).items()},
    }


# ---- reading ----


def _meta(path: str | Path) -> dict[str, Any]:
    meta = description_in(path, META)
    if "num_steps" not in meta:
        raise ValueError(f"{path} holds a checkpoint of another kind: load it with what saved it.")
    return meta


def _require_same(meta: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """A checkpoint is that of the same model and the same kind of optimizer."""
    for name, value in own["model"].items():
        if meta["model"].get(name) != value:
            raise ValueError(
                f"the checkpoint must be that of the same model: {name} is {meta['model'].get(name)} there, and "
                f"{value} here."
            )
    for what in ("dtype", "optimizer"):
        if meta[what] != own[what]:
            raise ValueError(
                f"the checkpoint must be that of the same {what}: it was {shown(meta[what])}, and is "
                f"{shown(own[what])} here."
            )
    if sorted(meta["settings"]) != sorted(own["settings"]):
        raise ValueError(
            f"the checkpoint must be that of the same kind of optimizer: it has the settings "
            f"{shown(sorted(meta['settings']))}, not {shown(sorted(own['settings']))}."
        )


def _saved_boxes(
    saved: Mapping[str, torch.Size], meta: Mapping[str, Any], step: CombinedStep
) -> dict[tuple[str, str], dict[str, Box]]:
    """Of every parameter of this rank, the boxes that were saved, by key: all of it, whatever the mesh."""
    found: dict[tuple[str, str], dict[str, Box]] = {}
    for key, size in saved.items():
        if key != META:
            part, name, corner = key.split("/")
            found.setdefault((part, name), {})[key] = Box(tuple(map(int, corner.split("."))), tuple(size))
    for buffer in step.sharded.buffers:
        for one in buffer.owned:
            for part in meta["parts"]:
                boxes = found.setdefault((part, _name(step, one)), {})
                if sum(prod(box.sizes) for box in boxes.values()) != prod(_whole_shape(one)):
                    raise ValueError(
                        f"the checkpoint is incomplete: {part} of {one.name} is not all there; use another one."
                    )
    return found


def _whole_shape(one: Owned) -> list[int]:
    shape: list[Any] = list(one.param.shape)
    if one.key in getattr(one.owner, "cuts", {}):
        dim, size = one.owner.cuts[one.key]  # pyright: ignore
        shape[dim] = size
    return shape


# ---- taking over ----


def _new_tensors(buffer: Buffer, meta: Mapping[str, Any]) -> dict[str, Tensor]:
    """New memory for all that this rank is to have of a buffer; zero where there is padding."""
    return {part: torch.zeros_like(buffer.unit.master.detach(), dtype=dtype) for part, dtype in meta["parts"].items()}


def _take_over(step: CombinedStep, meta: Mapping[str, Any], new: list[dict[str, Tensor]]) -> None:
    optimizer = step.sharded.optimizer
    for buffer, tensors in zip(step.sharded.buffers, new, strict=True):
        state = {part: tensor for part, tensor in tensors.items() if part != PARAMETER}
        with torch.no_grad():
            buffer.unit.master.copy_(tensors[PARAMETER])
        optimizer.state.pop(buffer.unit.master, None)
        if state or meta["counts"]:
            counts = {
                key: value.clone() if isinstance(value, Tensor) else value for key, value in meta["counts"].items()
            }
            optimizer.state[buffer.unit.master] = state | counts
    optimizer.param_groups[0].update(meta["settings"])
    if step.scaler is not None and meta["scaler"] is not None:
        step.scaler.load_state_dict(meta["scaler"])
    step.sharded.gather()
