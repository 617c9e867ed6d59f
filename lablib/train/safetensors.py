"""Files of tensors in the format safetensors: no code in them, each tensor at a known place.

    8 bytes    length N of the header, little-endian
    N bytes    JSON: {"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ..., "__metadata__": {...}}
    the rest   numbers, little-endian, row by row; the offsets count from here, and cover all of it without gaps

So a file can be read tensor by tensor, and loading it executes nothing, unlike a pickle.

Cost: a file is written and read once; reading holds one tensor twice.
Source: github.com/huggingface/safetensors, README, "Format", and its rules for readers.
Simplified: dense tensors of whole bytes. Written here, as the package `safetensors` is not among lablib's dependencies
and the format is this small; tests/train/test_hugging_face.py has bytes made by hand.
"""

import json
import os
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lablib.signature import checked, fits, shown
from lablib.text.files import parse_json, system_path
from lablib.train.manifest import flush_folder

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "I64": torch.int64, "I32": torch.int32,
    "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_MAX_HEADER_BYTES = 100_000_000  # the limit of the format


@checked
def write_safetensors(
    path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors by name, on the CPU and contiguous in the file; replaces `path` at once when it is complete.

    ValueError: a dtype that the format does not have.
    """
    path, at = Path(system_path(path)), 0
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES:
            raise ValueError(f"the dtype must be one of {', '.join(_DTYPES)}: {name} has {tensor.dtype}; convert it.")
        end = at + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that numbers begin at a multiple of 8
    part = path.with_name(f".{path.name}.part")
    with open(part, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    flush_folder(path.parent)


@checked
def read_safetensors(path: str | Path) -> dict[str, Tensor]:
    """All tensors of a file, by name. ValueError: damaged, or a dtype that torch or this reader does not have."""
    with open(system_path(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
            raise _damaged(path, f"the header has {length} bytes, and the file {size}")
        try:
            header = parse_json(file.read(length).decode())
            entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
            ordered = sorted(entries.items(), key=lambda item: item[1]["data_offsets"])
        except (ValueError, AttributeError, KeyError, TypeError):
            raise _damaged(path, "the header is not a JSON object of tensors") from None
        found, at = {}, 0
        for name, entry in ordered:
            dtype, shape = _DTYPES.get(entry.get("dtype")), entry.get("shape")
            if dtype is None or not fits(shape, list[int]) or any(dim < 0 for dim in shape):
                raise _damaged(path, f"{shown(name)} has the dtype {entry.get('dtype')} and the shape {shown(shape)}")
            end = at + prod(shape) * dtype.itemsize
            if entry["data_offsets"] != [at, end] or end > size - 8 - length:
                raise _damaged(path, f"{shown(name)} is at {shown(entry['data_offsets'])} instead of {[at, end]}")
            content = bytearray(file.read(end - at))
            found[name] = (torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype)).view(
                shape
            )
            at = end
        if at != size - 8 - length:
            raise _damaged(path, f"its tensors have {at} bytes, and {size - 8 - length} follow the header")
    return {name: found[name] for name in entries}


def _damaged(path: str | Path, reason: str) -> ValueError:
    return ValueError(f"a file of safetensors must be complete and readable: {path}: {reason}; get the file again.")
