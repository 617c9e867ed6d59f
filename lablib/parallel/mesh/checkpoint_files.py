"""What checkpoints of ZeRO and of a mesh have in common: entries by their names, a description, and checksums of both.

A checkpoint is a folder of torch.distributed.checkpoint. Its tensors are entries with a name each. What is no tensor,
among it the checksum of every tensor, is one entry more, the description: bytes that begin with their own checksum, as
a setting with a turned bit is as plausible as the one that was saved.

    description     CRC-32 of the rest (4 bytes), then `torch.save` of a dictionary

Whoever loads looks at the description first, then at what it reads of the tensors, and changes nothing before. Every
rank ends such a look with the same error, or none.

Cost: a CRC-32 of every byte that a rank writes or reads; 2^-32 of random damages pass, no single byte does.
Source: torch.distributed.checkpoint (torch 2.13).
Simplified: the list of entries (the file .metadata) is torch's and has no checksum; a wrong name there is
refused, a wrong size or place shows in the checksum of what is read there.
"""

import io
import zlib
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from lablib.signature import shown


def sealed(description: Mapping[str, Any]) -> bytes:
    """The description as bytes, or it would be taken apart; its checksum first."""
    file = io.BytesIO()
    torch.save(dict(description), file)
    return zlib.crc32(file.getvalue()).to_bytes(4, "big") + file.getvalue()


def description_in(path: str | Path, key: str) -> dict[str, Any]:
    """The description that `sealed` made, of a checkpoint that has it under this key. Communicates.

    Raises:
        ValueError: it is not what was saved, or cannot be read.
    """
    try:
        found: Any = read_entries({key: b""}, path)[key]
        if zlib.crc32(found[4:]).to_bytes(4, "big") != found[:4]:
            raise ValueError(
                f"the checkpoint in {path} is damaged: its description is not what was saved; use another one."
            )
        return torch.load(io.BytesIO(found[4:]))
    except ValueError:
        raise
    except Exception as error:  # whatever is in that file may go wrong in any way
        raise ValueError(
            f"the checkpoint in {path} is damaged: its description cannot be read; use another one."
        ) from error


def sizes_of(path: str | Path) -> dict[str, torch.Size]:
    """The keys of a checkpoint, and the shape of each ([0] of what is no tensor)."""
    try:
        entries = FileSystemReader(str(path)).read_metadata().state_dict_metadata
        return {
            key: entry.size if isinstance(entry, TensorStorageMetadata) else torch.Size([0])
            for key, entry in entries.items()
        }
    except Exception as error:  # whatever is in that file may go wrong in any way
        raise ValueError(
            f"there is no checkpoint that can be read in {path}: {type(error).__name__}; give the folder of one that "
            "save_checkpoint ended."
        ) from None


def read_entries(wanted: dict[str, Any], path: str | Path) -> dict[str, Any]:
    """These entries, read. Communicates; where a rank cannot read its own, none can."""
    try:
        load(wanted, checkpoint_id=str(path))
    except (Exception, CheckpointException) as error:  # of torch's, no Exception: what went wrong on some rank
        raise ValueError(f"the checkpoint in {path} is damaged: its files cannot be read; use another one.") from error
    return wanted


def require_listed(keys: Set[str], checksums: Mapping[str, int], path: str | Path) -> None:
    """The tensors that the checkpoint lists are those that were saved."""
    for key in sorted(keys ^ checksums.keys()):
        what = "was saved and is not listed" if key in checksums else "is listed and was not saved"
        raise ValueError(f"the checkpoint in {path} is damaged: {shown(key)} {what}; use another one.")


def require_undamaged(read: Mapping[str, Tensor], checksums: Mapping[str, int], path: str | Path) -> None:
    """What was read is what was saved."""
    for key, tensor in read.items():
        if checksum(tensor) != checksums.get(key):
            raise ValueError(f"the checkpoint in {path} is damaged: {key} is not what was saved; use another one.")


def checksum(tensor: Tensor) -> int:
    """Of a tensor's bytes."""
    return zlib.crc32(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)


def agreed(look: Any) -> Any:
    """What `look` returns, or on every rank the first rank's error: no rank goes on alone. Communicates."""
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
