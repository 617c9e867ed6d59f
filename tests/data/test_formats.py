"""Every format gives back what was written, in order and at random, and libraries of the field read it too."""

import json
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tfrecord.reader import tfrecord_loader
from webdataset.tariterators import group_by_keys, tar_file_expander

from lablib.data.formats.catalogue import FORMATS
from lablib.data.formats.records import DamagedDataError, Record, Shard, manifest_crc, read_manifest

RECORDS = st.lists(st.builds(Record, id=st.text(max_size=8), data=st.binary(max_size=70)), max_size=9)
WAYS = [(name, compression) for name, one in FORMATS.items() for compression in one.compressions]
SOME = [
    Record("a/b.c", b"low lower"),
    Record("", b""),
    Record("东京\n", "naïve \U0001f600".encode()),
    Record("z", b"\0"),
]


@pytest.mark.parametrize(("name", "compression"), WAYS)
@settings(max_examples=25)
@given(records=RECORDS, shard_size=st.integers(1, 5))
def test_records_come_back(tmp_path_factory, name, compression, records, shard_size):
    folder = tmp_path_factory.mktemp("shards")
    manifest = FORMATS[name].write(iter(records), folder, shard_size, compression)
    assert read_manifest(folder) == manifest and manifest.num_records == len(records)
    assert [record for shard in manifest.shards for record in FORMATS[name].read(shard)] == records
    assert [shard.num_records for shard in manifest.shards] == [
        min(shard_size, len(records) - first) for first in range(0, len(records), shard_size)
    ]
    assert all(shard.path.stat().st_size == shard.size_bytes for shard in manifest.shards)
    if (name, compression) not in (("webdataset", "gzip"), ("tfrecord", "gzip")):
        for index, shard in enumerate(manifest.shards):
            record_at = FORMATS[name].random_access(shard)
            found = [record_at(number) for number in reversed(range(shard.num_records))]
            assert found[::-1] == records[index * shard_size : (index + 1) * shard_size]


@pytest.mark.parametrize(("name", "compression"), WAYS)
def test_large_records_many_records_and_deterministic_bytes(tmp_path, name, compression):
    large = [Record("large", bytes(range(256)) * 12_000), *(Record(str(n), b"x" * n) for n in range(150))]
    manifest = FORMATS[name].write(large, tmp_path, 1_000, compression)
    assert list(FORMATS[name].read(manifest.shards[0])) == large
    before = manifest.shards[0].path.read_bytes()
    FORMATS[name].write(large, tmp_path, 1_000, compression)
    assert manifest.shards[0].path.read_bytes() == before
    if compression != "none":
        assert manifest.size_bytes < 0.5 * len(large[0].data)


def test_webdataset_reads_our_shards(tmp_path):
    manifest = FORMATS["webdataset"].write(SOME, tmp_path, 10)
    with manifest.shards[0].path.open("rb") as stream:
        samples = list(group_by_keys(tar_file_expander([{"url": "shard", "stream": stream}])))
    assert [Record(json.loads(one["json"])["id"], one["data"]) for one in samples] == SOME


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_the_package_tfrecord_reads_our_shards(tmp_path, compression):
    manifest = FORMATS["tfrecord"].write(SOME, tmp_path, 10, compression)
    kind = None if compression == "none" else compression
    loader: Any = tfrecord_loader(
        str(manifest.shards[0].path), None, {"id": "byte", "data": "byte"}, compression_type=kind
    )
    assert [Record(bytes(one["id"]).decode(), bytes(one["data"])) for one in loader] == SOME


def test_pyarrow_reads_our_shards(tmp_path):
    manifest = FORMATS["parquet"].write(SOME, tmp_path, 10, "zstd")
    table = pq.read_table(manifest.shards[0].path).to_pydict()
    assert [*map(Record, table["id"], table["data"])] == SOME


def test_the_framing_of_a_tfrecord_by_hand(tmp_path):
    # CRC-32C of eight bytes of zeros is 0x8C28B28A; masked: rotated right by 15 bits, plus 0xA282EAD8 (TensorFlow).
    from tfrecord.writer import TFRecordWriter

    rotated = (0x8C28B28A >> 15) | (0x8C28B28A << 17)
    assert TFRecordWriter.masked_crc(bytes(8)) == ((rotated + 0xA282EAD8) % 2**32).to_bytes(4, "little")
    manifest = FORMATS["tfrecord"].write([Record("a", b"b")], tmp_path, 1)
    content = manifest.shards[0].path.read_bytes()
    assert int.from_bytes(content[:8], "little") == len(content) - 16


def test_the_sizes_of_files_by_hand(tmp_path):
    records = [Record("ab", b"x" * 600), Record("c", b"")]
    memory_map = FORMATS["memory-map"].write(records, tmp_path / "m", 2)
    assert memory_map.size_bytes == 32 + 2 * 32 + 602 + 1
    tar = FORMATS["webdataset"].write(records, tmp_path / "t", 2)
    blocks = (1 + 2) + (1 + 1) + (1 + 0) + (1 + 1)  # header and data, header and json, of each
    assert tar.size_bytes == -(-(blocks + 2) * 512 // 10_240) * 10_240  # two blocks of zeros, then whole records of tar


def test_what_cannot_be_written_is_one_clear_error(tmp_path):
    one = FORMATS["webdataset"]
    with pytest.raises(ValueError, match="unknown compression of webdataset 'zstd'.*Valid: none, gzip"):
        one.write(SOME, tmp_path, 2, "zstd")
    with pytest.raises(ValueError, match="an id must have an encoding"):
        one.write([Record("\ud800", b"")], tmp_path, 1)
    with pytest.raises(TypeError, match="text and bytes"):
        one.write([Record("a", "text")], tmp_path, 1)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


NAMES = st.text(max_size=3) | st.sampled_from(["shard-00000.records", "../x", "a/b", "..", "a\0"]) | st.integers()
NUMBERS = st.integers(-2, 3) | st.floats() | st.text(max_size=1) | st.none() | st.booleans()


@given(shards=st.lists(st.tuples(NAMES, NUMBERS, NUMBERS) | st.lists(NUMBERS, max_size=4), max_size=3) | NUMBERS)
def test_a_manifest_that_was_changed_lists_files_beside_it_or_is_refused(tmp_path_factory, shards):
    folder = tmp_path_factory.mktemp("changed")
    fields = {"format": "memory-map", "compression": "none", "shards": shards}
    (folder / "manifest.json").write_text(json.dumps(fields | {"crc32": manifest_crc(fields)}))
    try:
        manifest = read_manifest(folder)
    except ValueError as error:
        assert "is not a manifest of shards" in str(error) and "write the shards again" in str(error)
        return
    assert all(shard.path.parent == folder and shard.num_records >= 0 for shard in manifest.shards)
    assert len({shard.path for shard in manifest.shards}) == len(manifest.shards)


@given(share=st.floats(0, 1, exclude_max=True), flipped=st.integers(1, 255))
def test_one_changed_byte_of_a_manifest_changes_nothing_or_is_refused(tmp_path_factory, share, flipped):
    folder = tmp_path_factory.mktemp("byte")
    written = FORMATS["memory-map"].write(SOME, folder, 3)
    content = bytearray((folder / "manifest.json").read_bytes())
    content[int(share * len(content))] ^= flipped
    (folder / "manifest.json").write_bytes(content)
    try:
        assert read_manifest(folder) == written
    except ValueError as error:
        assert "is not a manifest of shards" in str(error) and "write the shards again" in str(error)


def test_a_manifest_with_fewer_records_is_refused(tmp_path):
    FORMATS["memory-map"].write(SOME, tmp_path, 3)
    manifest = tmp_path / "manifest.json"
    manifest.write_text(manifest.read_text().replace(", 3, ", ", 2, "))
    with pytest.raises(ValueError, match="its checksum differs"):
        read_manifest(tmp_path)


def test_what_cannot_be_read_is_one_clear_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_manifest(tmp_path)
    (tmp_path / "manifest.json").write_text("[1]")
    with pytest.raises(ValueError, match="is not a manifest of shards"):
        read_manifest(tmp_path)
    for name in ("webdataset", "tfrecord"):
        manifest = FORMATS[name].write(SOME, tmp_path / name, 10, "gzip")
        with pytest.raises(ValueError, match="in gzip has no random access"):
            FORMATS[name].random_access(manifest.shards[0])
    shard = FORMATS["memory-map"].write(SOME, tmp_path / "m", 10).shards[0]
    with pytest.raises(IndexError, match="4 records: there is no number 4"):
        FORMATS["memory-map"].random_access(shard)(4)
    for one in FORMATS.values():
        shard.path.write_bytes(b"")
        with pytest.raises(DamagedDataError, match="record(s)? 0"):
            one.random_access(Shard(shard.path, 4, 0))(0)
