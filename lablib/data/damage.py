"""Damaged data: stop at a damaged record or skip it; either way name it, count it, and lose no other record.

Of many terabytes some are damaged: a flipped bit, an incomplete copy, a record that does not decode. Stopping may stop
a whole cluster for one document; skipping silently hides how much is missing. So:

    reading = read_shards(manifest, on_error="skip")
    for record in reading: ...
    reading.num_delivered, reading.num_lost, reading.losses     shard-00003.tar: record 17: the checksum ... differs

Delivered and lost records together are all records of the manifest, each once. How much can be recovered after a
damage depends on the format; see `formats/catalogue.py`.

A full disk while writing leaves whole shards and no manifest: a shard is written under another name and renamed.

Cost: none beyond the checksums, which every reader computes.
Source: Bairavasundaram et al., "An Analysis of Data Corruption in the Storage Stack", FAST 2008 (more
than 400,000 checksums that differed, on 1.53 million disks in 41 months); Saltzer et al. 1984, see
`formats/records.py`.
Simplified: a shard that cannot be read is not read a second time.
"""

import errno
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Generic, Literal, TypeVar

from lablib.data.formats.catalogue import FORMATS
from lablib.data.formats.records import DamagedDataError, Loss, Manifest, Record
from lablib.errors import unknown_name
from lablib.signature import NonNegativeInt, checked
from lablib.text.files import system_path

T = TypeVar("T")


class CheckedReading(Generic[T]):
    """Records of shards, delivered one by one, and the losses so far. To be iterated once."""

    def __init__(self, items: Iterator[T | Loss], ends_with_loss: bool):
        self._items = items
        self._ends_with_loss = ends_with_loss
        self.num_delivered = 0  # records given out
        self.losses: list[Loss] = []  # records that cannot be read, in order

    @property
    def num_lost(self) -> int:
        """Number of records that cannot be read."""
        return sum(loss.count for loss in self.losses)

    def __iter__(self) -> Iterator[T]:
        for item in self._items:
            if not isinstance(item, Loss):
                self.num_delivered += 1
                yield item
                continue
            self.losses.append(item)
            if self._ends_with_loss:
                raise DamagedDataError(item)

    def __repr__(self) -> str:
        return f"Reading({self.num_delivered} delivered, {self.num_lost} lost in {len(self.losses)} places)"


@checked
def read_shards(
    manifest: Manifest, on_error: Literal["raise", "skip"] = "raise", decode: Callable[[Record], Any] | None = None
) -> CheckedReading:
    """The records of all shards in order, each decoded.

    Arguments:
        on_error: stop at the first record that cannot be read, or go on with the next.
        decode: function of a record; its errors are losses of that record. None: the record itself.

    Raises:
        ValueError: an unknown format.
        DamagedDataError: while reading, with on_error="raise".
    """
    if manifest.format not in FORMATS:
        raise unknown_name("format", manifest.format, list(FORMATS))
    return CheckedReading(_items(manifest, decode or (lambda record: record)), on_error == "raise")


def _items(manifest: Manifest, decode: Callable[[Record], Any]) -> Iterator[Any]:
    for shard in manifest.shards:
        for found in FORMATS[manifest.format].found(shard):
            if isinstance(found, Loss):
                yield found
                continue
            try:
                item = decode(found.record)
            except Exception as error:  # any error of the caller's function
                item = Loss(shard.path, found.number, 1, f"it does not decode ({error})")
            yield item


@checked
def flip_byte(path: Path, place: int, mask: int = 0xFF) -> None:
    """Change the bits of one byte that `mask` has set; for trying out damage. Raises IndexError beyond the file."""
    path = Path(system_path(path))
    byte = path.read_bytes()[place]
    with path.open("r+b") as file:  # in place: a file half written is what this is about
        file.seek(place % path.stat().st_size)
        file.write(bytes([byte ^ mask]))


@checked
def cut_file(path: Path, size_bytes: NonNegativeInt) -> None:
    """Keep the first bytes of a file only, as a copy that broke off does."""
    path = Path(system_path(path))
    with path.open("r+b") as file:
        file.truncate(min(size_bytes, path.stat().st_size))


class FullDisk:
    """A disk with limited room: writing beyond it raises ENOSPC, as the system does.

    disk = FullDisk(10_000); format.write(..., disk=disk.file)
    """

    def __init__(self, room_bytes: int):
        self.room_bytes = room_bytes

    def file(self, file: BinaryIO) -> "_FileOnFullDisk":
        """The file, on this disk."""
        return _FileOnFullDisk(file, self)


class _FileOnFullDisk:
    def __init__(self, file: BinaryIO, disk: FullDisk):
        self._file, self._disk = file, disk

    def write(self, content: Sequence[int] | bytes) -> int:
        some = bytes(content)[: self._disk.room_bytes]
        self._disk.room_bytes -= self._file.write(some)  # a full disk takes the first bytes
        if len(some) < len(content):
            raise OSError(errno.ENOSPC, "No space left on device")
        return len(some)
