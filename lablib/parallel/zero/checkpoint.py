"""ZeRO checkpoints that any stage and number of ranks can load: pieces of parameters, saved by name.

A shard is a run of numbers that depends on the number of ranks and the units. So it is cut at the ends of parameters,
and each piece is saved under its parameter's name and offset, as a box of the flattened parameter
(`checkpoint_files.py`). On loading, a rank reads the saved pieces that overlap its own:

    saved on 2 ranks     w [ 0 ........ 6 ) [ 6 ...... 10 )         keys  parameter/w/0  parameter/w/6
    loaded on 3          w [ 0 .. 4 ) [ 4 ...... 8 ) [ 8 10 )       rank 1 reads both

The optimizer's state has the parameters' shapes and is cut in the same way. Every rank writes its own pieces, and no
rank holds a whole model.

Phases of a load (the code has the same headings):
    1. check       names, shapes, dtypes and the optimizer must match the module; all pieces must exist
    2. read        saved pieces that overlap this rank's pieces, into new memory; checksums must match, on every rank
    3. take over   change the module, the optimizer and its settings

Cost for n ranks, P parameters with S bytes of master parameters and optimizer state:
    time_s      S/n over the bandwidth of the file system, on every rank at once
    peak bytes  during a load, S/n more, and the saved pieces that overlap it
    sent bytes  names, shapes and checksums; in stages 1 and 2 the all-gather of parameters after a load
Shapes: a piece is [k].
Source: torch.distributed.checkpoint (torch 2.13), which writes, finds and reads named tensors; Zhao et al., "PyTorch
FSDP", VLDB 2023, arXiv 2304.11277; Wan et al., "ByteCheckpoint", 2024, arXiv 2407.20143, section 3.2 (flat shards as
pieces of parameters).
Simplified: no experts on several ranks (lablib/train/state.py has them); one group of settings; states of another
length than the shard (8-bit scales) are refused; the caller saves random generators and the position in the data.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lablib.parallel.zero import checkpoint_files as files
from lablib.parallel.zero.checkpoint_files import PARAMETER, Box, LocalBox
from lablib.parallel.zero.module import Zero, first_names
from lablib.parallel.zero.shards import FlatUnit
from lablib.signature import NonNegativeInt, checked

_META = "meta"  # the key of the description


@checked
def save_checkpoint(zero: Zero, path: str | Path, step: NonNegativeInt) -> None:
    """Save parameters, the optimizer's state and its settings, buffers, and the number of the step. Communicates.

    All ranks call it; `path`: a folder that they share, `step`: steps taken so far. ValueError: the folder has a
    checkpoint, or the optimizer has state that cannot be cut into pieces.
    """
    files.save_entries(path, step, checkpoint_entries(zero, step))


@checked
def checkpoint_entries(zero: Zero, step: NonNegativeInt) -> dict[str, Any]:
    """Content of the checkpoint on this rank, by name: views of the tensors, and the description. Communicates.

    For `lablib.train.Checkpoints`, which copies and writes it in the background. ValueError: as `save_checkpoint`.
    """
    others = whole_tensors(zero) if dist.get_rank() == 0 else {}
    shards = [{PARAMETER: one.master, **files.state_tensors(zero.optimizer, one.master)} for one in zero.units]
    boxes = chain(_whole(others), *map(_pieces, zero.units, shards))
    return files.entries_of(_META, boxes, {**_description(zero), "step": step})


@checked
def load_checkpoint(zero: Zero, path: str | Path) -> int:
    """Load what `save_checkpoint` saved at any stage, on any number of ranks; returns the step's number. Communicates.

    All ranks call it, with `zero` of the same module and kind of optimizer. ValueError: no checkpoint, one of another
    module or optimizer, or an incomplete or damaged one. Then nothing has changed on any rank.
    """
    # ---- 1. check ----
    saved, meta = files.look(path, _META)
    files.agreed(lambda: _require_same(meta, _description(zero)))

    # ---- 2. read ----
    new_like = partial(torch.empty_like, memory_format=torch.contiguous_format)
    others = {name: new_like(tensor) for name, tensor in whole_tensors(zero).items()}
    new: list[dict[str, Tensor]] = []
    for unit in zero.units:
        dtypes = {PARAMETER: unit.master.dtype, **(meta["dtypes"] if unit.is_trainable else {})}
        new.append({part: torch.zeros_like(unit.master.detach(), dtype=dtype) for part, dtype in dtypes.items()})
    own = [*_whole(others), *chain(*map(_pieces, zero.units, new))]
    numels = {(part, name): torch.Size(meta["shapes"][name]).numel() for part, name, *_ in own}
    files.read_boxes(own, numels, saved, meta["checksums"], path)

    # ---- 3. take over ----
    with torch.no_grad():
        for name, tensor in whole_tensors(zero).items():
            tensor.copy_(others[name])
    for unit, tensors in zip(zero.units, new, strict=True):
        files.restore(zero.optimizer, unit.master, tensors, meta["counts"] if unit.is_trainable else {})
    zero.optimizer.param_groups[0].update(meta["settings"])
    zero.sharded.after_step()
    return meta["step"]


def _pieces(unit: FlatUnit, tensors: Mapping[str, Tensor]) -> Iterator[LocalBox]:
    """Tensors like the unit's shard, by part, as pieces of flattened parameters."""
    for part, tensor in tensors.items():
        for name, first, start, numel in unit.layout.pieces(dist.get_rank(unit.group)):
            yield LocalBox(part, name, Box((first,), (numel,)), tensor.detach()[start : start + numel])


def _whole(others: Mapping[str, Tensor]) -> Iterator[LocalBox]:
    for name, tensor in others.items():
        yield LocalBox(PARAMETER, name, Box((0,), (tensor.numel(),)), tensor.detach().flatten())


def whole_tensors(zero: Zero) -> dict[str, Tensor]:
    """Buffers, and parameters that are whole on every rank: by name, tied ones once."""
    in_units = {name for unit in zero.units for name in unit.layout.names}
    tensors = zero.module.state_dict()
    return {name: tensors[name] for name in dict.fromkeys(first_names(zero.module).values()) if name not in in_units}


def _description(zero: Zero) -> dict[str, Any]:
    """Shapes, dtypes and optimizer, which must match on loading; and the dtypes of the state."""
    if zero.experts is not None:
        raise ValueError(
            "a checkpoint of ZeRO needs all parameters on all ranks: got experts on several ranks; use lablib.train."
        )
    master = next(unit for unit in zero.units if unit.is_trainable).master
    others = whole_tensors(zero)
    shapes = {name: tuple(tensor.shape) for name, tensor in others.items()}
    dtypes = {name: tensor.dtype for name, tensor in others.items()}
    for unit in zero.units:
        shapes.update(zip(unit.layout.names, unit.layout.shapes, strict=True))
        dtypes.update(dict.fromkeys(unit.layout.names, unit.master.dtype))
    return {
        **files.optimizer_description(zero.optimizer, master),
        "shapes": shapes,
        "dtype": dtypes,
        "dtypes": {part: tensor.dtype for part, tensor in files.state_tensors(zero.optimizer, master).items()},
    }


def _require_same(meta: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    if odd := sorted(meta["shapes"].keys() ^ own["shapes"].keys()):
        where = "checkpoint" if odd[0] in meta["shapes"] else "module"
        raise ValueError(f"the checkpoint must be of the same module: {odd[0]} is in the {where} only.")
    for name, shape in own["shapes"].items():
        if meta["shapes"][name] != shape:
            raise ValueError(
                f"the checkpoint must be of the same module: {name} has the shape "
                f"{meta['shapes'][name]} there, and {shape} here."
            )
    for name, dtype in own["dtype"].items():
        if meta["dtype"][name] != dtype:
            raise ValueError(
                f"the checkpoint must be of the same precision: {name} was kept in "
                f"{meta['dtype'][name]}, and is in {dtype} here."
            )
    files.require_same_optimizer(meta, own)
