"""Checkpoints that any mesh can load: each rank saves boxes of the whole model's tensors.

Tensor parallelism cuts a matrix by rows or columns, and ZeRO-1 cuts a rank's shard again, as a run of numbers. A run of
a matrix is at most three boxes (the end of a row, whole rows, the beginning of a row); with the offset of the shard
they are boxes of the whole matrix. Each is saved under the parameter's name and its first corner:

    w [3, 6], columns 3 to 5 on this tensor rank      ... | a a a      run of 5     a  parameter/w/0.3
    and its data rank, in two runs                    ... | b b c                   b  parameter/w/1.3
                                                      ... | d d d      run of 4     c  parameter/w/1.5
                                                                                    d  parameter/w/2.3

A rank that loads, on any mesh, reads the saved boxes that overlap its own. The optimizer's state is
cut in the same way. Equal copies (norms on all tensor ranks, a tied embedding on both ends of the pipeline) are saved
only by the rank that counts them in the norm (`mesh/optimizer.py`), and read by every rank.

Phases of a load (the code has the same headings):
    1. check       model, precision and optimizer must match; all boxes must exist
    2. read        saved boxes that overlap this rank's boxes, into new memory; checksums must match, on every rank
    3. take over   change parameters, optimizer and settings

Cost for n ranks that save S bytes of parameters and optimizer state, m that load:
    time_s      S/n, S/m and twice the overlaps over the bandwidth of the file system, on every rank at once
    peak bytes  during a load, the saved boxes that overlap this rank's
    sent bytes  names and checksums; the all-gather of parameters after a load
Shapes: a box has the dimensions of its parameter.
Source: torch.distributed.checkpoint (torch 2.13), which writes, finds and reads named tensors; Wan et al.,
"ByteCheckpoint", 2024, arXiv 2407.20143, section 3.2 (shards as boxes of a tensor, irregular ones as several).
Simplified: one group of settings; no random generators, as the model uses none; the caller saves the position in the
data.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import chain, product
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lablib.parallel.mesh.optimizer import Owned, Sharded
from lablib.parallel.mesh.step import CombinedStep
from lablib.parallel.tensor.regions import shard_range
from lablib.parallel.zero import checkpoint_files as files
from lablib.parallel.zero.checkpoint_files import PARAMETER, Box, LocalBox
from lablib.signature import NonNegativeInt, checked, shown

META = "combined"  # the key of the description


@checked
def save_checkpoint(step: CombinedStep, path: str | Path, num_steps: NonNegativeInt) -> None:
    """Save parameters, the optimizer's state and settings, the loss scale, and the number of steps. Communicates.

    All ranks call it; `path`: a folder that they share, `num_steps`: steps taken so far. ValueError: the folder has a
    checkpoint, or the optimizer has state that cannot be cut.
    """
    files.save_entries(path, num_steps, checkpoint_entries(step, num_steps))


@checked
def checkpoint_entries(step: CombinedStep, num_steps: NonNegativeInt) -> dict[str, Any]:
    """Content of the checkpoint on this rank, by name: views of the tensors, and the description. Communicates.

    For `lablib.train.Checkpoints`, which copies and writes it in the background. ValueError: as `save_checkpoint`.
    """
    boxes = chain(*(_counted_boxes(step, buffer) for buffer in step.sharded.buffers))
    description = {
        **_description(step),
        "num_steps": num_steps,
        "scaler": None if step.scaler is None else step.scaler.state_dict(),
    }
    return files.entries_of(META, boxes, description)


@checked
def load_checkpoint(step: CombinedStep, path: str | Path) -> int:
    """Load what `save_checkpoint` saved on any mesh; returns the number of steps taken before. Communicates.

    All ranks call it, with a step of the same model and kind of optimizer. ValueError: no checkpoint, one of another
    model or optimizer, or an incomplete or damaged one. Then nothing has changed on any rank.
    """
    buffers, optimizer = step.sharded.buffers, step.sharded.optimizer
    # ---- 1. check ----
    saved, meta = files.look(path, META)
    files.agreed(lambda: _require_same(meta, _description(step)))

    # ---- 2. read ----
    new: list[dict[str, Tensor]] = [
        {part: torch.zeros_like(buffer.unit.master.detach(), dtype=dtype) for part, dtype in meta["parts"].items()}
        for buffer in buffers
    ]
    own = [box for buffer, tensors in zip(buffers, new, strict=True) for box in boxes_of_buffer(step, buffer, tensors)]
    owned = [one for buffer in buffers for one in buffer.owned]
    numels = {(part, name_in_model(step, one)): _whole_numel(one) for one in owned for part in meta["parts"]}
    files.read_boxes(own, numels, saved, meta["checksums"], path)

    # ---- 3. take over ----
    for buffer, tensors in zip(buffers, new, strict=True):
        files.restore(optimizer, buffer.unit.master, tensors, meta["counts"])
    optimizer.param_groups[0].update(meta["settings"])
    if step.scaler is not None and meta["scaler"] is not None:
        step.scaler.load_state_dict(meta["scaler"])
    step.sharded.gather()
    return meta["num_steps"]


# ---- boxes ----


def boxes_of_run(shape: tuple[int, ...], start: int, numel: int) -> list[Box]:
    """A run of a tensor's numbers in memory order as boxes: at most 2 d - 1 for d dimensions.

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


def counted_names(step: CombinedStep, buffer: Sharded) -> set[str]:
    """The parameters of a buffer, by the model's names, that this rank counts."""
    return {name_in_model(step, one) for one, counts in zip(buffer.owned, buffer.counts, strict=True) if counts}


def _counted_boxes(step: CombinedStep, buffer: Sharded) -> Iterator[LocalBox]:
    names = counted_names(step, buffer)
    return (box for box in boxes_of_buffer(step, buffer, _tensors(step, buffer)) if box.name in names)


def boxes_of_buffer(step: CombinedStep, buffer: Sharded, tensors: Mapping[str, Tensor]) -> Iterator[LocalBox]:
    """Tensors like the buffer's shard, by part, as boxes of the whole model's parameters, without padding."""
    owned = dict(zip(buffer.unit.layout.names, buffer.owned, strict=True))
    pieces = buffer.unit.layout.pieces(dist.get_rank(buffer.unit.group))
    for (name, first, start, numel), (part, tensor) in product(pieces, tensors.items()):
        one = owned[name]
        for box in boxes_of_run(tuple(one.param.shape), first, numel):
            end = start + prod(box.sizes)
            view, start = tensor.detach()[start:end].view(box.sizes), end
            corner = list(box.corner)
            for dim, from_, real in _places(one):
                view = view.narrow(dim, 0, max(0, min(box.sizes[dim], real - box.corner[dim])))
                corner[dim] += from_
            if view.numel():
                yield LocalBox(part, name_in_model(step, one), Box(tuple(corner), tuple(view.shape)), view)


def _cuts_of(one: Owned) -> list[tuple[int, int, Any]]:
    """The cuts of a parameter over tensor and expert ranks: the dimension, its whole size, and the group."""
    layer: Any = one.owner
    if one.key not in getattr(layer, "cuts", {}):
        return []
    return [(*layer.cuts[one.key], layer.group), *getattr(layer, "further_cuts", {}).get(one.key, ())]


def _places(one: Owned) -> Iterator[tuple[int, int, int]]:
    """Of each cut of a parameter: the dimension, the offset of the shard, its real length without padding."""
    for dim, size, group in _cuts_of(one):
        multiple_of: Any = one.owner.multiple_of
        start, end = shard_range(size, dist.get_rank(group), dist.get_world_size(group), multiple_of)
        yield dim, start, end - start


def name_in_model(step: CombinedStep, one: Owned) -> str:
    """The name of a parameter in the whole model; a tied head has the embedding's."""
    return "token_embedding.weight" if step.how.config.tied_head and one.name == "head.weight" else one.name


def _tensors(step: CombinedStep, buffer: Sharded) -> dict[str, Tensor]:
    """By part: parameters, and optimizer state with one number per parameter, as shards."""
    return {PARAMETER: buffer.unit.master, **files.state_tensors(step.sharded.optimizer, buffer.unit.master)}


def _description(step: CombinedStep) -> dict[str, Any]:
    """Model, dtype and optimizer, which must match on loading; and the dtypes of the parts."""
    buffer = step.sharded.buffers[0]
    return {
        **files.optimizer_description(step.sharded.optimizer, buffer.unit.master),
        "model": asdict(step.how.config) | ({"num_experts": step.how.num_experts} if step.how.num_experts else {}),
        "dtype": buffer.unit.master.dtype,
        "parts": {part: tensor.dtype for part, tensor in _tensors(step, buffer).items()},
    }


def _require_same(meta: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    for name, value in own["model"].items():
        if meta["model"].get(name) != value:
            raise ValueError(
                f"the checkpoint must be of the same model: {name} is {meta['model'].get(name)} there, and "
                f"{value} here."
            )
    if meta["dtype"] != own["dtype"]:
        raise ValueError(
            f"the checkpoint must be of the same dtype: it was {shown(meta['dtype'])}, and is "
            f"{shown(own['dtype'])} here."
        )
    files.require_same_optimizer(meta, own)


def _whole_numel(one: Owned) -> int:
    shape: list[Any] = list(one.param.shape)
    for dim, size, _ in _cuts_of(one):
        shape[dim] = size
    return prod(shape)
