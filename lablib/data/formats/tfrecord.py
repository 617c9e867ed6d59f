"""TFRecord: length, checksum, record, checksum, again and again.

The format of TensorFlow, made for streams that may be damaged: the length has its own checksum, so a reader never
follows a wrong length.

    8 bytes      4 bytes          length bytes    4 bytes
    length       CRC of length    record          CRC of record         (CRC-32C, rotated, plus a constant)

A record is a protocol buffer, `Example`: names and lists of bytes, numbers or floats.

Recovery: a damaged record is lost alone, as its length leads to the next. After a damaged length, the reader searches
byte by byte for 8 bytes that match the checksum after them. Of a truncated file, all records before the cut.

Cost: 16 bytes a record, and some 70 for the names in `Example`. A record at random needs an index; here, a look at all
lengths makes it.
Source: TensorFlow's documentation, "TFRecord and tf.train.Example", section "TFRecords format details". Records are
made by the package `tfrecord`, which also reads these files but does not look at the checksums; this file does.
Simplified: gzip, if any, compresses the whole file; then all records after a damage are lost.
"""

import gzip
import struct
from collections.abc import Callable, Iterator, Sequence

from tfrecord import example_pb2
from tfrecord.writer import TFRecordWriter

from lablib.data.formats.records import (
    Damage,
    Numbered,
    Record,
    ShardFormat,
    check_random_access,
    decompressed,
    numbered,
    record_crc,
)

HEAD, TAIL = 12, 4  # bytes before and after a record
_Example = example_pb2.Example  # type: ignore[attr-defined]  # made when it is imported


def _encode(records: Sequence[Record], compression: str) -> bytes:
    out = bytearray()
    for number, record in enumerate(records):
        fields = {
            "number": (number, "int"),
            "id": (record.id.encode(), "byte"),
            "data": (record.data, "byte"),
            "crc32": (record_crc(number, record), "int"),
        }
        payload = TFRecordWriter.serialize_tf_example(fields)
        length = struct.pack("<Q", len(payload))
        out += length + _crc(length) + payload + _crc(payload)
    return gzip.compress(out, mtime=0) if compression == "gzip" else bytes(out)


def _scan(content: memoryview) -> Iterator[Numbered | Damage]:
    content, cut = decompressed(content)
    place = 0
    while place < len(content):
        length = _length_at(content, place)
        if length is None:
            is_cut = _has_length(content, place)
            yield Damage(f"{'the file ends in the' if is_cut else 'no length of a'} record at byte {place}")
            later = (at for at in range(place + 1, len(content)) if _length_at(content, at) is not None)
            place = next(later, len(content))
            continue
        yield _record(content, place, length)
        place += HEAD + length + TAIL
    if cut is not None:
        yield cut


def _length_at(content: memoryview, place: int) -> int | None:
    """The length of the record that begins here; None if none does, or it goes beyond the end."""
    if not _has_length(content, place):
        return None
    (length,) = struct.unpack("<Q", content[place : place + 8])
    return length if place + HEAD + length + TAIL <= len(content) else None


def _has_length(content: memoryview, place: int) -> bool:
    """Whether there is a length with its checksum here."""
    head = bytes(content[place : place + HEAD])
    return len(head) == HEAD and _crc(head[:8]) == head[8:]


def _record(content: memoryview, place: int, length: int) -> Numbered | Damage:
    start = place + HEAD
    payload = bytes(content[start : start + length])
    if _crc(payload) != bytes(content[start + length : start + length + TAIL]):
        return Damage(f"the checksum of the record at byte {place} differs")
    try:
        fields = _Example.FromString(payload).features.feature
        number, crc = (fields[name].int64_list.value[0] for name in ("number", "crc32"))
        name, data = (fields[name].bytes_list.value[0] for name in ("id", "data"))
        record = Record(name.decode(), data)
    except Exception as error:  # protobuf's errors, or an Example with other fields
        return Damage(f"the record at byte {place} does not decode ({error})")
    return numbered(number, record, crc)


def _index(content: memoryview) -> Callable[[int], Numbered | Damage]:
    check_random_access(content, "TFRecord")
    places: list[tuple[int, int]] = []
    place = 0
    while (length := _length_at(content, place)) is not None:
        places.append((place, length))
        place += HEAD + length + TAIL

    return lambda number: _record(content, *places[number])


def _crc(content: bytes) -> bytes:
    return TFRecordWriter.masked_crc(content)


TFRECORD = ShardFormat("tfrecord", ".tfrecord", ("none", "gzip"), _encode, _scan, _index)
