"""A memory map: an index of fixed size in front, then the records; any of them is one step away.

The file is mapped, not read: the system loads a page of 4 kB when it is accessed, keeps it for all processes, and drops
it when memory is short. All entries of the index have one size, so entry i is at a known place, and gives the place of
record i.

    header          magic, number of records, compression, CRC                        32 bytes
    entries         start, stored bytes, bytes of id, CRC of the record, CRC of the entry      32 bytes each
    records         id, data; id, data; ...

Recovery: a damaged entry or record loses that record alone. Of a truncated file, all records that end before
the cut. A damaged header loses the file: without it the number of records is not known.

Cost: 32 bytes a record; a record at random reads its entry and itself, no more. zstd goes over each record alone, which
keeps that and compresses less than over many together.
Source: as the .idx and .bin files of Megatron-LM (see token_file.py), in one file.
Simplified: a format of this course. Others of the kind: ArrayRecord, FFCV's .beton, MosaicML's MDS.
"""

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence

import zstandard

from lablib.data.formats.records import Damage, Numbered, Record, ShardFormat, numbered, record_crc

MAGIC = b"lablibmm"
HEADER = struct.Struct("<8sQI8xI")  # magic, records, compression, (reserved), CRC of the fields before
# start, stored bytes, bytes of the id, CRC of the record, (reserved), CRC of the fields before
ENTRY = struct.Struct("<QQII4xI")
_COMPRESSIONS = ("none", "zstd")


def _encode(records: Sequence[Record], compression: str) -> bytes:
    entries, bodies = bytearray(), bytearray()
    first = HEADER.size + ENTRY.size * len(records)
    for number, record in enumerate(records):
        data = zstandard.ZstdCompressor().compress(record.data) if compression == "zstd" else record.data
        name = record.id.encode()
        fields = (first + len(bodies), len(name) + len(data), len(name), record_crc(number, record))
        entries += _with_crc(ENTRY, *fields)
        bodies += name + data
    return _with_crc(HEADER, MAGIC, len(records), _COMPRESSIONS.index(compression)) + entries + bodies


def _scan(content: memoryview) -> Iterator[Numbered | Damage]:
    try:
        header = _header(content)
    except ValueError as error:
        yield Damage(str(error))
        return
    for number in range(header[1]):
        yield _record(content, number, _COMPRESSIONS[header[2]])


def _record(content: memoryview, number: int, compression: str) -> Numbered | Damage:
    entry = _fields(ENTRY, content, HEADER.size + number * ENTRY.size)
    if entry is None:
        return Damage(f"the index of record {number} is damaged")
    start, size, id_bytes, crc = entry
    if start + size > len(content):
        return Damage(f"the file ends in record {number}")
    try:
        name = str(content[start : start + id_bytes], "utf-8")
        data = bytes(content[start + id_bytes : start + size])
        record = Record(name, zstandard.ZstdDecompressor().decompress(data) if compression == "zstd" else data)
    except (UnicodeDecodeError, zstandard.ZstdError) as error:
        return Damage(f"record {number} does not decode ({error})")
    return numbered(number, record, crc)


def _index(content: memoryview) -> Callable[[int], Numbered | Damage]:
    header = _header(content)
    return lambda number: _record(content, number, _COMPRESSIONS[header[2]])


def _header(content: memoryview) -> tuple:
    header = _fields(HEADER, content, 0)
    if header is None or header[0] != MAGIC or header[2] >= len(_COMPRESSIONS):
        raise ValueError("no memory map of records, or its header is damaged")
    return header


def _with_crc(layout: struct.Struct, *fields) -> bytes:
    before = layout.pack(*fields, 0)[:-4]
    return before + struct.pack("<I", zlib.crc32(before))


def _fields(layout: struct.Struct, content: memoryview, place: int) -> tuple | None:
    """The fields but the checksum; None where that differs, or the file is too short."""
    raw = content[place : place + layout.size]
    if len(raw) < layout.size:
        return None
    *fields, crc = layout.unpack(raw)
    return tuple(fields) if zlib.crc32(raw[:-4]) == crc else None


MEMORY_MAP = ShardFormat("memory-map", ".records", _COMPRESSIONS, _encode, _scan, _index)
