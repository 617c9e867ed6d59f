"""Checkpoints of ZeRO that another stage on other ranks can load: parameters are saved in pieces, each by its own name.

A shard is a run of numbers cut where ranks happened to end. Saved like that, it could only be loaded by as many ranks,
with the same units. So a shard is cut once more, where parameters end; a piece is saved under its parameter's name and
the place where it begins. Who loads has pieces of its own, and reads the saved ones that overlap them:

    saved on 2 ranks     w [ 0 ........ 6 ) [ 6 ...... 10 )         keys  parameter/w/0  parameter/w/6
    loaded on 3          w [ 0 .. 4 ) [ 4 ...... 8 ) [ 8 10 )       rank 1 reads both

The optimizer's state is cut in the same way, as it has a number for each of the parameter's. Every rank writes its own
pieces, and nobody ever holds a whole model.

Phases of a load (the code has the same headings):
    1. look        the names, shapes, dtypes and the optimizer must be those of the module; all pieces must be there
    2. read        what overlaps this rank's pieces, beside what it has; checksums must be right, on every rank
    3. take over   only now the module, the optimizer and its settings change

Cost for n ranks, P parameters with S bytes of master parameters and optimizer state:
    time_s      S/n over the bandwidth of the file system, on every rank at once
    peak bytes  while it loads, S/n beside what is there, and the pieces that overlap it
    sent bytes  names, shapes and checksums; in stages 1 and 2 the all-gather of parameters after a load
Shapes: a piece is [k].
Source: torch.distributed.checkpoint (torch 2.13), which writes, finds and reads named tensors; Zhao et al., "PyTorch
FSDP", VLDB 2023, arXiv 2304.11277; Wan et al., "ByteCheckpoint", 2024, arXiv 2407.20143, section 3.2 (flat shards as
pieces of parameters).
Simplified: one group of settings; states of another length than the shard (8-bit scales) are refused; random generators
and the data's place are the caller's.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

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
from lablib.parallel.zero.module import Zero, first_names
from lablib.parallel.zero.shards import FlatUnit
from lablib.signature import NonNegativeInt, checked, shown

_PARAMETER = "parameter"
_META = "meta"  # the key of what is no tensor
_Pieces = dict[str, Tensor]  # by key: views of what this rank has


@checked
def save_checkpoint(zero: Zero, path: str | Path, step: NonNegativeInt) -> None:
    """Save parameters, the optimizer's state and its settings, buffers, and the number of the step. Communicates.

    Arguments:
        zero: of any stage; all ranks must call it.
        path: of a folder that all ranks see, without a checkpoint.
        step: how many steps have been taken.

    Raises:
        ValueError: the folder holds a checkpoint, or the optimizer has what cannot be cut into pieces.
    """
    if (Path(path) / ".metadata").exists():
        raise ValueError(f"a checkpoint needs a folder of its own: there is one in {path}; try {path}-{step}.")
    pieces = _pieces(zero)
    checksums: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(checksums, {key: checksum(piece) for key, piece in pieces.items()})
    meta = _description(zero) | {
        "step": step,
        "counts": _counts(zero),
        "checksums": {key: value for each in checksums for key, value in each.items()},
    }
    save({_META: sealed(meta), **pieces}, checkpoint_id=str(path))


@checked
def load_checkpoint(zero: Zero, path: str | Path) -> int:
    """Load what `save_checkpoint` saved at any stage, on any number of ranks. Communicates.

    Arguments:
        zero: of the same module with the same kind of optimizer; all ranks must call it.
        path: of the folder.

    Returns:
        The number of the step.

    Raises:
        ValueError: no checkpoint, one of another module or optimizer, an incomplete or damaged one. Then nothing has
            changed, on any rank.
    """
    # ---- 1. look ----
    saved = agreed(lambda: sizes_of(path))
    if _META not in saved:
        raise ValueError(f"{path} holds a checkpoint that save_checkpoint did not write: it has no {_META!r}.")
    meta: dict[str, Any] = agreed(lambda: description_in(path, _META))
    agreed(lambda: require_listed(saved.keys() - {_META}, meta["checksums"], path))
    agreed(lambda: _require_same(meta, _description(zero)))
    own = _own_state(zero, meta)
    starts = agreed(lambda: _starts(saved, meta, own))

    # ---- 2. read ----
    wanted = {
        f"{part}/{name}/{start}": torch.empty(numel, dtype=piece.dtype, device="cpu")
        for (part, name, first), piece in own.items()
        for start, numel in starts[part, name]
        if start < first + piece.numel() and start + numel > first
    }
    read = agreed(lambda: read_entries(wanted, path))
    agreed(lambda: require_undamaged(read, meta["checksums"], path))

    # ---- 3. take over ----
    with torch.no_grad():
        for (part, name, first), piece in own.items():
            for start, numel in starts[part, name]:
                begin, end = max(start, first), min(start + numel, first + piece.numel())
                if begin < end:
                    source = read[f"{part}/{name}/{start}"][begin - start : end - start]
                    piece[begin - first : end - first].copy_(source)
    _take_over(zero, meta, own)
    return meta["step"]


# ---- what a rank has ----


def _cut(unit: FlatUnit, tensor: Tensor) -> Iterator[tuple[str, int, Tensor]]:
    """A tensor like the unit's shard as pieces of parameters: name, where it begins, a view."""
    for name, start_in_param, start, numel in unit.layout.pieces(dist.get_rank(unit.group)):
        yield name, start_in_param, tensor.detach()[start : start + numel]


def _pieces(zero: Zero) -> _Pieces:
    """Everything that is saved as tensors."""
    others = _others(zero).items() if dist.get_rank() == 0 else ()
    found = {f"{_PARAMETER}/{name}/0": tensor.detach().flatten() for name, tensor in others}
    for unit in zero.units:
        state = _state_of(zero, unit)
        for part, tensor in {_PARAMETER: unit.master, **_tensors(state, unit)}.items():
            found.update({f"{part}/{name}/{start}": piece for name, start, piece in _cut(unit, tensor)})
    return found


def _own_state(zero: Zero, meta: Mapping[str, Any]) -> dict[tuple[str, str, int], Tensor]:
    """By part, name and place: new memory for all that this rank is to have of a checkpoint."""
    found: dict[tuple[str, str, int], Tensor] = {
        (_PARAMETER, name, 0): torch.empty_like(tensor).flatten() for name, tensor in _others(zero).items()
    }
    for unit in zero.units:
        parts = [_PARAMETER, *(meta["parts"] if unit.is_trainable else ())]
        for part in parts:
            for name, start, piece in _cut(unit, unit.master):
                found[part, name, start] = torch.empty_like(piece, dtype=meta["dtypes"].get(part, piece.dtype))
    return found


def _others(zero: Zero) -> dict[str, Tensor]:
    """Buffers, and parameters that every rank has whole: by name, tied ones once."""
    in_units = {name for unit in zero.units for name in unit.layout.names}
    tensors = zero.module.state_dict()
    return {name: tensors[name] for name in dict.fromkeys(first_names(zero.module).values()) if name not in in_units}


def _state_of(zero: Zero, unit: FlatUnit) -> Mapping[str, Any]:
    return zero.optimizer.state.get(unit.master, {})


def _tensors(state: Mapping[str, Any], unit: FlatUnit) -> dict[str, Tensor]:
    """Of an optimizer's state, what has a number for each of the shard's."""
    tensors = {key: value for key, value in state.items() if isinstance(value, Tensor) and value.ndim}
    for key, value in tensors.items():
        if value.shape != unit.master.shape:
            raise ValueError(
                f"a checkpoint cuts the optimizer's state as it cuts parameters: {key!r} has the shape "
                f"{tuple(value.shape)}, the shard {tuple(unit.master.shape)}; save it with torch.save, rank by rank."
            )
    return tensors


def _counts(zero: Zero) -> dict[str, Any]:
    """Of an optimizer's state, what is one number for all (its count of steps): from the first unit that has one."""
    states = [_state_of(zero, unit) for unit in zero.units if unit.is_trainable]
    return {key: value for key, value in states[0].items() if not (isinstance(value, Tensor) and value.ndim)}


def _settings(zero: Zero) -> dict[str, Any]:
    groups = zero.optimizer.param_groups
    if len(groups) != 1:
        raise ValueError(f"a checkpoint keeps one group of settings: got {len(groups)}; give the optimizer one group.")
    return {key: value for key, value in groups[0].items() if key not in ("params", "param_names")}


def _description(zero: Zero) -> dict[str, Any]:
    """What must be the same in a checkpoint and who loads it; and which tensors its optimizer's state has."""
    unit = next(unit for unit in zero.units if unit.is_trainable)
    tensors, others = _tensors(_state_of(zero, unit), unit), _others(zero)
    masters = {name: each.master.dtype for each in zero.units for name in each.layout.names}
    in_units = {
        name: shape for each in zero.units for name, shape in zip(each.layout.names, each.layout.shapes, strict=True)
    }
    return {
        "shapes": {name: tuple(tensor.shape) for name, tensor in others.items()} | in_units,
        "dtype": {name: tensor.dtype for name, tensor in others.items()} | masters,
        "optimizer": type(zero.optimizer).__qualname__,
        "settings": _settings(zero),
        "parts": list(tensors),
        "dtypes": {part: tensor.dtype for part, tensor in tensors.items()},
    }


# ---- reading ----


def _starts(
    saved: Mapping[str, torch.Size], meta: Mapping[str, Any], own: Mapping[tuple[str, str, int], Tensor]
) -> dict[tuple[str, str], list[tuple[int, int]]]:
    """Of every parameter that this rank has a piece of, the pieces that were saved: (start, numbers), without a gap."""
    found: dict[tuple[str, str], list[tuple[int, int]]] = {(part, name): [] for part, name, _ in own}
    for key, size in saved.items():
        part, _, rest = key.partition("/")
        name, _, start = rest.rpartition("/")
        if (part, name) in found:
            found[part, name].append((int(start), size.numel()))
    for (part, name), pieces in found.items():
        end = 0
        for start, numel in sorted(pieces):
            end = end + numel if start == end else -1
        if end != torch.Size(meta["shapes"][name]).numel():
            raise ValueError(f"the checkpoint is incomplete: {part} of {name} is not all there; use another one.")
    return found


def _require_same(meta: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """A checkpoint is that of the same module and the same kind of optimizer."""
    if odd := sorted(meta["shapes"].keys() ^ own["shapes"].keys()):
        where = "checkpoint" if odd[0] in meta["shapes"] else "module"
        raise ValueError(f"the checkpoint must be that of the same module: {odd[0]} is in the {where} only.")
    for name, shape in own["shapes"].items():
        if meta["shapes"][name] != shape:
            raise ValueError(
                f"the checkpoint must be that of the same module: {name} has the shape "
                f"{meta['shapes'][name]} there, and {shape} here."
            )
    for name, dtype in own["dtype"].items():
        if meta["dtype"][name] != dtype:
            raise ValueError(
                f"the checkpoint must be that of the same precision: {name} was kept in "
                f"{meta['dtype'][name]}, and is in {dtype} here."
            )
    for what in ("optimizer", "settings"):
        was, now = (sorted(each[what]) if what == "settings" else each[what] for each in (meta, own))
        if was != now:
            raise ValueError(
                f"the checkpoint must be that of the same kind of optimizer: {shown(was)}, not {shown(now)}."
            )


# ---- taking over ----


def _take_over(zero: Zero, meta: Mapping[str, Any], own: Mapping[tuple[str, str, int], Tensor]) -> None:
    """Let the module, the optimizer's state and its settings be what was read."""
    with torch.no_grad():
        for name, tensor in _others(zero).items():
            tensor.copy_(own[_PARAMETER, name, 0].view(tensor.shape))
        for unit in zero.units:
            state: dict[str, Any] = {}
            if unit.is_trainable and (meta["parts"] or meta["counts"]):
                state = {part: torch.zeros_like(unit.master, dtype=meta["dtypes"][part]) for part in meta["parts"]}
                counts = meta["counts"].items()
                zero.optimizer.state[unit.master] = state | {
                    key: value.clone() if isinstance(value, Tensor) else value for key, value in counts
                }
            else:
                zero.optimizer.state.pop(unit.master, None)
            for part, target in {_PARAMETER: unit.master, **state}.items():
                for name, start, piece in _cut(unit, target):
                    piece.copy_(own[part, name, start])
    zero.optimizer.param_groups[0].update(meta["settings"])
    zero.sharded.after_step()
