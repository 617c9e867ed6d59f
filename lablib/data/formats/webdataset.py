"""WebDataset: a shard is a tar file, the files of one sample one after another under one name.

Tar is the oldest format of the four and the simplest to read in a stream: a header of 512 bytes (name, size, a sum of
its bytes), the file, zeros up to the next multiple of 512, the next header. Every tool can look into it.

    000000000.data  000000000.json  000000001.data  000000001.json  ...

Recovery: tar has a checksum of headers only, so each record's CRC-32 is in its .json, and a changed byte of data loses
that record. So does a damaged header: the reader searches for the next one at multiples of 512 bytes. Of a truncated
file, all records before the cut.

Cost: 2 headers and 2 paddings, 1.5 to 2 kB per record of any size: for short documents more than the text.
A record at random needs a look at all headers first, to know where each one is.
Source: Aizman, Maltby, Breuel 2020, arXiv 2001.01858; POSIX.1-1988 (ustar). Written with the library `webdataset`,
which reads these shards too.
Simplified: gzip, if any, compresses the whole shard; then all records after a damage are lost.
"""

import gzip
import io
import json
import tarfile
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from webdataset.writer import TarWriter

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

BLOCK = 512


class _Member(NamedTuple):
    """A file in the shard: number of its record, ending of its name, and where its bytes are."""

    number: int
    ending: str
    place: slice


def _encode(records: Sequence[Record], compression: str) -> bytes:
    out = io.BytesIO()
    with TarWriter(out, encoder=False, mtime=0) as tar:
        for number, record in enumerate(records):
            about = json.dumps({"id": record.id, "crc32": record_crc(number, record)}).encode()
            tar.write({"__key__": f"{number:09d}", "data": record.data, "json": about})
    return gzip.compress(out.getvalue(), mtime=0) if compression == "gzip" else out.getvalue()


def _scan(content: memoryview) -> Iterator[Numbered | Damage]:
    content, cut = decompressed(content)
    data: _Member | None = None
    for member in _members(content):
        if isinstance(member, Damage):
            yield member
        elif member.ending == "data":
            data = member
        elif data is not None and member.number == data.number:
            yield _record(content, data, member)
    if cut is not None:
        yield cut


def _members(content: memoryview) -> Iterator[_Member | Damage]:
    """The files of a tar; where there should be a header and is none, the next multiple of 512 bytes is tried."""
    place = 0
    while place < len(content):
        header = bytes(content[place : place + BLOCK])
        start = place = place + BLOCK
        if not any(header):
            continue  # a tar ends in blocks of zeros
        try:
            about = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
            number, ending = about.name.split(".")
            member = _Member(int(number), ending, slice(start, start + about.size))
        except (tarfile.HeaderError, ValueError) as error:
            yield Damage(f"no header of a tar file at byte {start - BLOCK} ({error})")
            continue
        if member.place.stop > len(content):
            # A cut file, or a size that is wrong though the header's sum is right: what follows may still be there.
            yield Damage(f"the file ends in record {member.number}")
            continue
        yield member
        place += -(-about.size // BLOCK) * BLOCK


def _record(content: memoryview, data: _Member, about: _Member) -> Numbered | Damage:
    try:
        found = json.loads(bytes(content[about.place]))
        record = Record(str(found["id"]), bytes(content[data.place]))
        return numbered(data.number, record, found["crc32"])
    except (ValueError, KeyError, TypeError) as error:
        return Damage(f"the metadata of record {data.number} does not decode ({error})")


def _index(content: memoryview) -> Callable[[int], Numbered | Damage]:
    check_random_access(content, "WebDataset")
    members = {(one.number, one.ending): one for one in _members(content) if isinstance(one, _Member)}

    return lambda number: _record(content, members[number, "data"], members[number, "json"])


WEBDATASET = ShardFormat("webdataset", ".tar", ("none", "gzip"), _encode, _scan, _index)
