"""benchmarks/data_formats.py: each format has its row, its library reads what we wrote, its page shows the record."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib.data.formats.catalogue import FORMATS
from lablib.data.formats.records import Record
from tests.script_module import script_module

FILE = Path(__file__).parents[2] / "benchmarks" / "data_formats.py"
benchmark = script_module("benchmarks/data_formats.py")


def test_every_way_has_a_row_against_the_memory_map():
    records = [Record(f"{number}", bytes([number] * (number + 1))) for number in range(40)]
    rows = benchmark.rows_of("drawn", records, repeats=2)
    assert [(row["format"], row["compression"]) for row in rows] == benchmark.WAYS
    assert {row["raw_bytes"] for row in rows} == {40 * 41 // 2} and {row["num_records"] for row in rows} == {40}
    base = next(row for row in rows if (row["format"], row["compression"]) == benchmark.BASE)
    assert base["write_ratio"] == base["read_ratio"] == base["random_ratio"] == 1
    lines = benchmark.table(rows).splitlines()
    assert len(lines) == 2 + len(rows) and len({line.count("|") for line in lines}) == 1


@settings(max_examples=10, deadline=None)
@given(data=st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=12), per_shard=st.integers(1, 5))
@pytest.mark.parametrize("way", [way for way in benchmark.WAYS if way[0] != "memory-map"])
def test_the_formats_own_library_reads_our_records(way, data, per_shard, tmp_path_factory):
    records = [Record(f"{number}", one) for number, one in enumerate(data)]
    folder = tmp_path_factory.mktemp("shards") / "-".join(way)
    manifest = FORMATS[way[0]].write(records, folder, per_shard, way[1])
    read = [bytes_of(one) for shard in manifest.shards for one in benchmark.by_library(manifest, shard)]
    assert read == data


def bytes_of(record) -> bytes:
    """A library's record: its bytes, or a mapping that holds them."""
    if isinstance(record, bytes):
        return record
    fields = {name: value for name, value in record.items() if not name.startswith("__")}
    return bytes(fields["data"] if "data" in fields else next(iter(fields.values())))


def test_the_page_shows_what_was_recorded():
    folder = FILE.parent / "data"
    recorded = json.loads((folder / "data_formats.json").read_text())
    assert [(row["format"], row["compression"]) for row in recorded["rows"]] == 2 * benchmark.WAYS
    assert benchmark.table(recorded["rows"]) in (folder / "README.md").read_text()
