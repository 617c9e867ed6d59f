"""Checkpoint files as boxes of tensors with a description and checksums, for ZeRO and for a mesh.

A checkpoint is a folder of torch.distributed.checkpoint. Each rank saves boxes of the whole model's tensors, named by
part, parameter and first corner: "parameter/w/1.3", "exp_avg/w/1.3". On loading, a rank reads the saved boxes that
overlap its own. Everything else, with the checksum of every box, is in the description, one more entry. It begins with
its own checksum, as a setting with a flipped bit would look plausible.

    description     CRC-32 of the rest (4 bytes), then `torch.save` of a dictionary

A load reads the description first, then the boxes, and changes nothing before both are checked. All ranks raise the
same error, or none.

Cost: a CRC-32 of every byte that a rank writes or reads; it misses 2^-32 of random damages, and no single damaged byte.
Source: torch.distributed.checkpoint (torch 2.13); Wan et al., "ByteCheckpoint", 2024, arXiv 2407.20143, section 3.2.
Simplified: the list of entries (the file .metadata) is torch's and has no checksum; a wrong name there is refused, a
wrong size or place leads to a wrong checksum.
"""

import io
import zlib
from collections.abc import Iterable, Mapping, Sequence, Set
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from lablib.signature import shown

PARAMETER = "parameter"  # the part that is not optimizer state


class Box(NamedTuple):
    """Part of a tensor: its first corner, and its sizes."""

    corner: tuple[int, ...]
    sizes: tuple[int, ...]


class LocalBox(NamedTuple):
    """A box in this rank's memory: part, parameter, box, and a view of the numbers."""

    part: str
    name: str
    box: Box
    view: Tensor


# ---- save ----


def save_entries(path: str | Path, num_steps: int, entries: dict[str, Any]) -> None:
    """Save this rank's entries. Communicates. ValueError: the folder has a checkpoint."""
    if (Path(path) / ".metadata").exists():
        raise ValueError(f"a checkpoint needs a new folder: there is one in {path}; try {path}-{num_steps}.")
    save(entries, checkpoint_id=str(path))


def entries_of(key: str, boxes: Iterable[LocalBox], description: Mapping[str, Any]) -> dict[str, Any]:
    """This rank's boxes by name, and under `key` the description with the checksums of all ranks'. Communicates."""
    tensors = {f"{part}/{name}/{'.'.join(map(str, box.corner))}": view.contiguous() for part, name, box, view in boxes}
    checksums: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(checksums, {entry: _checksum(tensor) for entry, tensor in tensors.items()})
    of_all = {entry: value for each in checksums for entry, value in each.items()}
    file = io.BytesIO()
    torch.save({**description, "checksums": of_all}, file)
    # As bytes: torch would split a dictionary.
    sealed = zlib.crc32(file.getvalue()).to_bytes(4, "big") + file.getvalue()
    return {key: sealed, **tensors}


# ---- load ----


def look(path: str | Path, key: str) -> tuple[dict[str, torch.Size], dict[str, Any]]:
    """The shapes of the saved boxes, and the description under this key. Communicates.

    ValueError: no checkpoint, one of another kind, or one with a damaged description or list of boxes.
    """
    saved = agreed(lambda: _sizes_of(path))
    if saved.pop(key, None) is None:
        raise ValueError(f"{path} has a checkpoint that save_checkpoint did not write: it has no {key!r}.")
    description = agreed(lambda: _description_in(path, key))
    agreed(lambda: _require_listed(saved.keys(), description["checksums"], path))
    return saved, description


def read_boxes(
    own: Sequence[LocalBox],
    numels: Mapping[tuple[str, str], int],
    saved: Mapping[str, torch.Size],
    checksums: Mapping[str, int],
    path: str | Path,
) -> None:
    """Fill this rank's boxes, which are new memory, from the saved ones that overlap them. Communicates.

    `numels`: by part and parameter, the numbers of the whole tensor; `saved`, `checksums`: from `look`. ValueError: a
    tensor of `numels` that is incomplete, or a damaged file.
    """
    boxes = agreed(lambda: _by_parameter(saved, numels))
    wanted = {
        entry: torch.empty(there.sizes, dtype=view.dtype, device="cpu")
        for part, name, box, view in own
        for entry, there in boxes[part, name].items()
        if _overlap(box, there) is not None
    }
    read = agreed(lambda: read_entries(wanted, path))
    agreed(lambda: _require_undamaged(read, checksums, path))
    for part, name, box, view in own:
        for entry, there in boxes[part, name].items():
            both = _overlap(box, there)
            if both is not None:
                _at(view, box, both).copy_(_at(read[entry], there, both))


def read_entries(wanted: dict[str, Any], path: str | Path) -> dict[str, Any]:
    """Read these entries. Communicates; an error on one rank is raised on all."""
    try:
        load(wanted, checkpoint_id=str(path))
    except (Exception, CheckpointException) as error:  # torch's error, of all ranks, is not an Exception
        raise ValueError(f"the checkpoint in {path} is damaged: its files cannot be read; use another one.") from error
    return wanted


def agreed(look: Any) -> Any:
    """The result of `look`, or on every rank the first rank's error, so that all ranks stop. Communicates."""
    result, error = None, None
    try:
        result = look()
    except ValueError as raised:
        error = str(raised)
    errors: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(errors, error)
    if first := next(filter(None, errors), None):
        raise ValueError(first)
    return result


def _sizes_of(path: str | Path) -> dict[str, torch.Size]:
    """The entries of a checkpoint, and the shape of each ([0] of the description)."""
    try:
        entries = FileSystemReader(str(path)).read_metadata().state_dict_metadata
        sizes = {key: one.size for key, one in entries.items() if isinstance(one, TensorStorageMetadata)}
        return {key: sizes.get(key, torch.Size([0])) for key in entries}
    except Exception as error:  # a damaged file may fail in any way
        raise ValueError(
            f"there is no checkpoint that can be read in {path}: {type(error).__name__}; give the folder of one that "
            "save_checkpoint ended."
        ) from None


def _description_in(path: str | Path, key: str) -> dict[str, Any]:
    try:
        found: Any = read_entries({key: b""}, path)[key]
        if zlib.crc32(found[4:]).to_bytes(4, "big") != found[:4]:
            raise ValueError(f"the checkpoint in {path} is damaged: its description has changed; use another one.")
        return torch.load(io.BytesIO(found[4:]))
    except ValueError:
        raise
    except Exception as error:  # a damaged file may fail in any way
        raise ValueError(
            f"the checkpoint in {path} is damaged: its description cannot be read; use another one."
        ) from error


def _require_listed(entries: Set[str], checksums: Mapping[str, int], path: str | Path) -> None:
    for key in sorted(entries ^ checksums.keys()):
        problem = "was saved and is not listed" if key in checksums else "is listed and was not saved"
        raise ValueError(f"the checkpoint in {path} is damaged: {shown(key)} {problem}; use another one.")


def _require_undamaged(read: Mapping[str, Tensor], checksums: Mapping[str, int], path: str | Path) -> None:
    for key, tensor in read.items():
        if _checksum(tensor) != checksums.get(key):
            raise ValueError(f"the checkpoint in {path} is damaged: {key} has changed; use another one.")


def _checksum(tensor: Tensor) -> int:
    return zlib.crc32(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)


# ---- boxes ----


def _by_parameter(
    saved: Mapping[str, torch.Size], numels: Mapping[tuple[str, str], int]
) -> dict[tuple[str, str], dict[str, Box]]:
    """The saved boxes of these tensors, by part and parameter. Raises ValueError if one is incomplete."""
    found: dict[tuple[str, str], dict[str, Box]] = {tensor: {} for tensor in numels}
    for key, size in saved.items():
        tensor, _, corner = key.rpartition("/")
        part, _, name = tensor.partition("/")
        if (part, name) in found:
            found[part, name][key] = Box(tuple(map(int, corner.split("."))), tuple(size))
    for (part, name), numel in numels.items():
        if sum(prod(box.sizes) for box in found[part, name].values()) != numel:
            raise ValueError(f"the checkpoint is incomplete: a part of {part} of {name} is missing; use another one.")
    return found


def _overlap(a: Box, b: Box) -> Box | None:
    corner = tuple(map(max, a.corner, b.corner))
    ends = [min(p + m, q + n) for p, m, q, n in zip(a.corner, a.sizes, b.corner, b.sizes, strict=True)]
    sizes = tuple(end - at for at, end in zip(corner, ends, strict=True))
    return Box(corner, sizes) if min(sizes) > 0 else None


def _at(tensor: Tensor, box: Box, inner: Box) -> Tensor:
    """The part `inner` of a tensor, with `box` the place of the tensor in the whole."""
    for dim, (at, size) in enumerate(zip(inner.corner, inner.sizes, strict=True)):
        tensor = tensor.narrow(dim, at - box.corner[dim], size)
    return tensor


# ---- the optimizer of shards ----


def state_tensors(optimizer: torch.optim.Optimizer, shard: Tensor) -> dict[str, Tensor]:
    """The tensors of a shard's state that have the shape of the shard. ValueError: a tensor of another shape."""
    tensors = {key: value for key, value in optimizer.state.get(shard, {}).items() if _has_numbers(value)}
    for key, value in tensors.items():
        if value.shape != shard.shape:
            raise ValueError(
                f"a checkpoint cuts the optimizer's state like parameters: {key!r} has the shape "
                f"{tuple(value.shape)}, the shard {tuple(shard.shape)}; save it with torch.save, rank by rank."
            )
    return tensors


def optimizer_description(optimizer: torch.optim.Optimizer, shard: Tensor) -> dict[str, Any]:
    """Kind and settings of an optimizer, and common numbers of the state, such as steps. ValueError: several groups."""
    groups = optimizer.param_groups
    if len(groups) != 1:
        raise ValueError(f"a checkpoint keeps one group of settings: got {len(groups)}; give the optimizer one group.")
    return {
        "optimizer": type(optimizer).__qualname__,
        "settings": {key: value for key, value in groups[0].items() if key not in ("params", "param_names")},
        "counts": {key: value for key, value in optimizer.state.get(shard, {}).items() if not _has_numbers(value)},
    }


def require_same_optimizer(saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raise ValueError unless optimizers have the same kind and the same names of settings."""
    for name in ("optimizer", "settings"):
        was, now = (sorted(each[name]) if name == "settings" else each[name] for each in (saved, own))
        if was != now:
            raise ValueError(
                f"the checkpoint must be of the same {name}: it was {shown(was)}, and is {shown(now)} here."
            )


def restore(optimizer: torch.optim.Optimizer, shard: Tensor, tensors: dict[str, Any], counts: dict[str, Any]) -> None:
    """Overwrite the shard and its state with the tensors that were read, by part."""
    with torch.no_grad():
        shard.copy_(tensors.pop(PARAMETER))
    optimizer.state.pop(shard, None)
    if tensors or counts:
        copies = {key: value.clone() if isinstance(value, Tensor) else value for key, value in counts.items()}
        optimizer.state[shard] = tensors | copies


def _has_numbers(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0
