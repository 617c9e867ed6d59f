"""Parquet: records in columns, in row groups, with an index of everything at the end of the file.

A file is row groups, each with its columns one after another (id, id, ...; data, data, ...), and a footer that says
where each column of each group begins. Columns compress well and one can be read without the others; text of a
language model is one large column, so here the groups matter: they are the unit of reading, and of damage.

    PAR1 | group 0: number, id, data, crc32 | group 1: ... | footer | length of the footer | PAR1

Recovery: a damaged page (its CRC-32 differs) loses its row group of G records. A damaged or missing footer
loses the file: a truncated Parquet file has no records.

Cost: a record at random reads and decompresses its group, G records. Writing holds a group in memory.
Source: the format's specification, github.com/apache/parquet-format (README, "File format"; `crc` in parquet.thrift).
Simplified: four columns, no dictionary, no statistics.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

import pyarrow as pa
import pyarrow.parquet as pq

from lablib.data.formats.records import Damage, Numbered, Record, ShardFormat, numbered, record_crc

RECORDS_PER_GROUP = 64
_FOUR_COLUMNS = ["number", "id", "data", "crc32"]


def _encode(records: Sequence[Record], compression: str) -> bytes:
    columns = [
        pa.array(range(len(records)), pa.uint32()),
        pa.array([record.id for record in records], pa.string()),
        pa.array([record.data for record in records], pa.large_binary()),
        pa.array([record_crc(number, record) for number, record in enumerate(records)], pa.uint32()),
    ]
    out = pa.BufferOutputStream()
    pq.write_table(
        pa.Table.from_arrays(columns, names=_FOUR_COLUMNS),
        out,
        row_group_size=RECORDS_PER_GROUP,
        compression=compression,
        use_dictionary=False,
        write_statistics=False,
        write_page_checksum=True,
    )
    return out.getvalue().to_pybytes()


def _scan(content: memoryview) -> Iterator[Numbered | Damage]:
    try:
        file = _open(content)
    except Exception as error:  # bytes that are no footer end in many kinds of errors
        yield Damage(f"no Parquet file, or its footer is damaged ({_first_line(error)})")
        return
    for group in range(file.num_row_groups):
        try:
            yield from _read_group(file, group)
        except Exception as error:  # checksum, decompressor, decoder: whichever met the damage first
            yield Damage(f"row group {group} is damaged ({_first_line(error)})")


def _index(content: memoryview) -> Callable[[int], Numbered | Damage]:
    file = _open(content)
    sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    starts = [0, *accumulate(sizes)]

    def found_at(number: int) -> Numbered | Damage:
        group = bisect_right(starts, number) - 1
        return _read_group(file, group)[number - starts[group]]

    return found_at


def _open(content: memoryview) -> pq.ParquetFile:
    return pq.ParquetFile(pa.BufferReader(pa.py_buffer(content)), page_checksum_verification=True)


def _read_group(file: pq.ParquetFile, group: int) -> list[Numbered | Damage]:
    table = file.read_row_group(group, _FOUR_COLUMNS)
    columns = [table.column(name).to_pylist() for name in _FOUR_COLUMNS]
    return [numbered(number, Record(name, data), crc) for number, name, data, crc in zip(*columns, strict=True)]


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:100]


PARQUET = ShardFormat("parquet", ".parquet", ("none", "snappy", "zstd", "gzip"), _encode, _scan, _index)
