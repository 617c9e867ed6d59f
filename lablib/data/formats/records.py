"""Documents in shards: from a stream of records to files with a manifest, and back; common to the four formats.

A data set of millions of small files is slow to list, open and copy. So documents are written one after another into
shards, files of some hundred megabytes, each read from its beginning to its end:

    write(records, folder, shard_size)   shard-00000.tar, shard-00001.tar, ... and manifest.json, written last
    read(shard)                          its records, in order; the first one that is damaged is an error
    random_access(shard)                 a function: number -> record, if the format has an index or can make one

A format is three functions: `encode` makes the bytes of a shard from its records, `scan` finds records in bytes,
damaged or not, `index` finds one of them. Every record carries its number in the shard and a checksum of number, id and
data, in addition to the format's checks: so the delivered records are the written ones (Saltzer, Reed, Clark 1984: only
the ends can check that), and a gap in the numbers gives the number of lost records (`damage.py`).

Cost: a shard of R records and S bytes is made in memory: S bytes. Reading: one pass; for a record at random see its
format (R: a look at R headers).
Source: Saltzer, Reed, Clark, "End-to-end arguments in system design", ACM TOCS 1984; shards: Aizman, Maltby, Breuel,
"High Performance I/O For Large Scale Deep Learning", 2020, arXiv 2001.01858.
Simplified: a record is an id and bytes; shards hold a number of records, not of bytes. The checksum does not cover the
shard: if a record's data is itself a shard of the same format, and the header before it is damaged, webdataset and
tfrecord look for the next header and find the records inside.
"""

import json
import mmap
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from lablib.data.cache import not_written, replacing
from lablib.errors import unknown_name
from lablib.signature import Count, NonNegativeInt, checked, fits, shown
from lablib.text.files import parse_json, read_text

MANIFEST = "manifest.json"


class Record(NamedTuple):
    """A document: any text as its id, and its bytes. Tokens go in as `tokens.numpy().tobytes()`."""

    id: str
    data: bytes

    @property
    def text(self) -> str:
        """The bytes as text. Raises UnicodeDecodeError."""
        return self.data.decode("utf-8")


class Numbered(NamedTuple):
    """A record and its number in its shard, both as they were written."""

    number: int
    record: Record


class Damage(NamedTuple):
    """Bytes of a shard that do not decode to a record, and the reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Shard:
    """A file of records; `num_records` as written, even if some are damaged now."""

    path: Path
    num_records: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The shards that were written, in order, with the name of the format and the compression."""

    format: str
    compression: str
    shards: tuple[Shard, ...]

    @property
    def num_records(self) -> int:
        return sum(shard.num_records for shard in self.shards)

    @property
    def size_bytes(self) -> int:
        return sum(shard.size_bytes for shard in self.shards)


@dataclass(frozen=True, slots=True)
class Loss:
    """Records of a shard that cannot be read: `count` of them from number `first` on."""

    shard: Path
    first: int
    count: int
    reason: str

    def __str__(self) -> str:
        which = f"record {self.first}" if self.count == 1 else f"records {self.first} to {self.first + self.count - 1}"
        return f"{self.shard.name}: {which}: {self.reason}"


class DamagedDataError(ValueError):
    """A record that cannot be read; `loss` names it."""

    def __init__(self, loss: Loss):
        self.loss = loss
        super().__init__(f"{loss}; copy the shard again, or skip lost records (lablib.data.damage, on_error='skip').")


class NoRandomAccessError(ValueError):
    """A shard that is compressed as a whole, so that reading begins at its first record."""


@dataclass(frozen=True)
class ShardFormat:
    """A format of shards."""

    name: str  # name in the manifest
    suffix: str  # ending of its files
    compressions: tuple[str, ...]  # their names; the first is "none"
    encode: Callable[[Sequence[Record], str], bytes]  # (records, compression) -> the bytes of a shard
    # bytes -> the records in order, each with its number, and the damages between them
    scan: Callable[[memoryview], Iterator[Numbered | Damage]]
    # bytes -> a function from a number to its record; it may raise where the bytes are damaged
    index: Callable[[memoryview], Callable[[int], Numbered | Damage]]

    @checked
    def write(
        self,
        records: Iterable[Record],
        folder: Path,
        shard_size: Count,
        compression: str = "none",
        disk: Callable[[Any], Any] | None = None,
    ) -> Manifest:
        """Write the records, `shard_size` of them a shard, each there whole or not at all; the manifest comes last.

        `disk`: wraps each file that is written to, for trying out a full one (`damage.FullDisk`).

        Raises:
            ValueError: a compression that the format lacks, an id that is half a character.
            OSError: no space, no permission: which shard and records, and how many shards before are whole.
        """
        if compression not in self.compressions:
            raise unknown_name(f"compression of {self.name}", compression, self.compressions)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MANIFEST).unlink(missing_ok=True)  # the old one must not list new shards
        shards: list[Shard] = []
        rest = iter(records)
        while some := list(islice(rest, shard_size)):
            content = self.encode([_checked_record(record) for record in some], compression)
            path = folder / f"shard-{len(shards):05d}{self.suffix}"
            first = len(shards) * shard_size
            _write_whole(path, content, disk, f"records {first} to {first + len(some) - 1} of the stream")
            shards.append(Shard(path, len(some), len(content)))
        manifest = Manifest(self.name, compression, tuple(shards))
        listed = [[shard.path.name, shard.num_records, shard.size_bytes] for shard in shards]
        fields = {"format": self.name, "compression": compression, "shards": listed}
        content = json.dumps(fields | {"crc32": manifest_crc(fields)}).encode()
        _write_whole(folder / MANIFEST, content, disk, "the manifest")
        return manifest

    @checked
    def read(self, shard: Shard) -> Iterator[Record]:
        """The records of a shard in order. Raises DamagedDataError at the first that is not there."""
        for found in self.found(shard):
            if isinstance(found, Loss):
                raise DamagedDataError(found)
            yield found.record

    def found(self, shard: Shard) -> Iterator[Numbered | Loss]:
        """The records, and the losses between them: together all numbers of the shard, each once."""
        expected, reason = 0, ""
        for one in self._scan(shard.path):
            if isinstance(one, Damage):
                reason = reason or one.reason  # the first damage since the last record is the cause
            elif expected <= one.number < shard.num_records:
                if one.number > expected:
                    yield Loss(shard.path, expected, one.number - expected, reason or "not in the file")
                yield one
                expected, reason = one.number + 1, ""
        if expected < shard.num_records:
            reason = reason or "the file ends before"
            yield Loss(shard.path, expected, shard.num_records - expected, reason)

    @checked
    def random_access(self, shard: Shard) -> Callable[[int], Record]:
        """A function from a record's number to the record; the file is mapped, and its index made now.

        Raises:
            NoRandomAccessError: compressed as a whole.
            DamagedDataError: the index is damaged; when the function is called, that record.
            IndexError: when the function is called, no record of the shard.
        """
        try:
            found_at = self.index(mapped(shard.path))
        except NoRandomAccessError:
            raise
        except Exception as error:  # any error of the format's reader
            raise DamagedDataError(Loss(shard.path, 0, shard.num_records, f"no index ({error})")) from error

        def record_at(number: int) -> Record:
            if not 0 <= number < shard.num_records:
                raise IndexError(f"{shard.path} has {shard.num_records} records: there is no number {number}.")
            try:
                found = found_at(number)
            except Exception as error:
                found = Damage(f"not found ({error!r})")
            if isinstance(found, Damage):
                raise DamagedDataError(Loss(shard.path, number, 1, found.reason))
            return found.record

        return record_at

    def _scan(self, path: Path) -> Iterator[Numbered | Damage]:
        try:
            content = mapped(path)
        except OSError as error:
            yield Damage(f"the file cannot be read ({error.strerror})")
            return
        yield from self.scan(content)


@checked
def read_manifest(folder: Path) -> Manifest:
    """The manifest that `write` left in a folder.

    Raises:
        OSError: there is none: nothing was written, or writing did not come to its end.
        ValueError: another kind of file, or a changed one: a shard with fewer records would lose the others.
    """
    path = folder / MANIFEST
    try:
        found = parse_json(read_text(path))
        if found.pop("crc32") != manifest_crc(found):
            raise ValueError("its checksum differs: it was changed since it was written")
        shards = [_listed(folder, *entry) for entry in found["shards"]]
        if len({shard.path for shard in shards}) < len(shards):
            raise ValueError("a shard is there twice")
        return Manifest(str(found["format"]), str(found["compression"]), tuple(shards))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} is not a manifest of shards ({error!r}); write the shards again.") from None


def _listed(folder: Path, name: str, num_records: int, size_bytes: int) -> Shard:
    if not fits(name, str) or name in ("", ".", "..") or set(name) & set("/\\\0"):
        raise ValueError(f"a shard is a file next to the manifest, not {shown(name)}")
    if not all(fits(count, NonNegativeInt) for count in (num_records, size_bytes)):
        raise ValueError(f"{name} has {shown(num_records)} records and {shown(size_bytes)} bytes")
    return Shard(folder / name, num_records, size_bytes)


def mapped(path: Path) -> memoryview:
    """The bytes of a file, read when they are looked at. Raises OSError."""
    with path.open("rb") as file:
        if not path.stat().st_size:
            return memoryview(b"")  # nothing to map
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def record_crc(number: int, record: Record) -> int:
    """CRC-32 of number, id and data; 2^-32 of random damages pass."""
    return zlib.crc32(record.data, zlib.crc32(f"{number} {record.id}\n".encode()))


def numbered(number: int, record: Record, crc: int) -> Numbered | Damage:
    """A record that was found with its checksum, or the damage that the checksum shows."""
    if record_crc(number, record) == crc:
        return Numbered(number, record)
    return Damage(f"the checksum of record {number} differs")


def decompressed(content: memoryview) -> tuple[memoryview, Damage | None]:
    """The content without gzip, up to where its stream is damaged: every bit depends on those before."""
    if not _is_gzip(content):
        return content, None
    stream, out, place = zlib.decompressobj(31), bytearray(), 0
    while place < len(content) and not stream.eof:
        before = stream.copy()
        try:
            out += stream.decompress(content[place : place + 65_536])
        except zlib.error:
            with suppress(zlib.error):  # the damaged piece again, one byte at a time until the stream breaks
                for one in range(place, min(place + 65_536, len(content))):
                    out += before.decompress(content[one : one + 1])
            return memoryview(out), Damage("its gzip stream is damaged here or before")
        place += 65_536
    return memoryview(out), None if stream.eof else Damage("its gzip stream is cut")


def check_random_access(content: memoryview, name: str) -> None:
    """Raise NoRandomAccessError for a shard in gzip."""
    if _is_gzip(content):
        raise NoRandomAccessError(
            f"a {name} shard in gzip has no random access: it is compressed as a whole; write it without."
        )


def _is_gzip(content: memoryview) -> bool:
    return bytes(content[:2]) == b"\x1f\x8b"


def _checked_record(record: Record) -> Record:
    if not isinstance(record, Record) or not isinstance(record.id, str) or not isinstance(record.data, bytes):
        raise TypeError(f"a record must be Record(id, data) of text and bytes: got {record!r}")
    try:
        record.id.encode()
    except UnicodeEncodeError:
        raise ValueError(f"an id must have an encoding in UTF-8: got {record.id!r}.") from None
    return record


def _write_whole(path: Path, content: bytes, disk: Callable[[BinaryIO], BinaryIO] | None, what: str) -> None:
    try:
        with replacing(path) as file:
            (disk(file) if disk else file).write(content)
    except OSError as error:
        raise not_written(error, path, f"{what} cannot be written, all before are whole") from error


def manifest_crc(fields: dict[str, Any]) -> int:
    """CRC-32 of a manifest's other fields."""
    return zlib.crc32(json.dumps(fields).encode())
