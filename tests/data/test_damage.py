"""Damage loses what it touches and nothing else; every record is delivered or named as lost, each once."""

import errno
import struct
import tarfile
import zlib
from itertools import pairwise

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib.data.damage import FullDisk, cut_file, flip_byte, read_shards
from lablib.data.formats.catalogue import FORMATS
from lablib.data.formats.records import DamagedDataError, Loss, Manifest, Record, Shard, read_manifest

WAYS = [(name, compression) for name, one in FORMATS.items() for compression in one.compressions]
STREAMED = [("webdataset", "gzip"), ("tfrecord", "gzip")]
RECORDS = [Record(f"id {n}", bytes((n * k) % 251 for k in range(37 * n % 900))) for n in range(150)]


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> dict[tuple[str, str], Manifest]:
    folder = tmp_path_factory.mktemp("written")
    return {way: FORMATS[way[0]].write(RECORDS, folder / "-".join(way), 1_000, way[1]) for way in WAYS}


def extents(name: str, path) -> list[tuple[int, int, range]]:
    """Bytes of the file (first, end) and the records that are lost with them, by the format's own description."""
    content = path.read_bytes()
    if name == "parquet":
        groups, first = [], 0
        about = pq.ParquetFile(path).metadata
        for group in (about.row_group(index) for index in range(about.num_row_groups)):
            columns = [group.column(index) for index in range(4)]
            ends = [column.data_page_offset + column.total_compressed_size for column in columns]
            groups.append((columns[0].data_page_offset, ends[-1], range(first, first + group.num_rows)))
            first += group.num_rows
        return [*groups, (groups[-1][1], len(content), range(first)), (0, 4, range(first))]
    if name == "webdataset":
        with tarfile.open(path) as tar:
            starts = [one.offset for one in tar.getmembers()][::2] + [tar.offset]
        return [(*ends, range(n, n + 1)) for n, ends in enumerate(pairwise(starts))]
    if name == "tfrecord":
        starts = [0]
        while starts[-1] < len(content):
            starts.append(starts[-1] + 16 + struct.unpack_from("<Q", content, starts[-1])[0])
        return [(*ends, range(n, n + 1)) for n, ends in enumerate(pairwise(starts))]
    count = struct.unpack_from("<Q", content, 8)[0]
    found = [(0, 32, range(count))]
    for n in range(count):
        start, size = struct.unpack_from("<QQ", content, 32 + 32 * n)
        found += [(32 + 32 * n, 64 + 32 * n, range(n, n + 1)), (start, start + size, range(n, n + 1))]
    return found


def check_reading(manifest: Manifest, recoverable: set[int]) -> None:
    """Skipped over, everything recoverable is delivered, nothing is invented, and the count is right."""
    reading = read_shards(manifest, on_error="skip")
    delivered = list(reading)
    lost = {number for loss in reading.losses for number in range(loss.first, loss.first + loss.count)}
    assert [record.id for record in delivered] == [one.id for n, one in enumerate(RECORDS) if n not in lost]
    assert delivered == [one for n, one in enumerate(RECORDS) if n not in lost]
    assert reading.num_delivered + reading.num_lost == len(RECORDS) and reading.num_lost == len(lost)
    assert not lost & recoverable
    if lost:
        with pytest.raises(DamagedDataError, match=f"record(s)? {min(lost)}[: ]"):
            list(read_shards(manifest))


def damaged(written: Manifest, folder, content: bytes) -> Manifest:
    path = folder / written.shards[0].path.name
    path.write_bytes(content)
    return Manifest(written.format, written.compression, (Shard(path, len(RECORDS), len(content)),))


@pytest.mark.parametrize("way", [way for way in WAYS if way not in STREAMED])
@settings(max_examples=40)
@given(data=st.data())
def test_records_outside_of_damage_are_delivered(written, tmp_path_factory, way, data):
    shard = written[way].shards[0]
    content = bytearray(shard.path.read_bytes())
    places = data.draw(
        st.lists(st.tuples(st.integers(0, len(content) - 1), st.integers(1, 64)), min_size=1, max_size=4)
    )
    touched = set()
    for start, length in places:
        for place in range(start, min(start + length, len(content))):
            content[place] ^= data.draw(st.integers(1, 255)) if place == start else 0x5A
            touched.add(place)
    if b"".join([content]) == shard.path.read_bytes():
        touched = set()  # two damages that undo each other
    lost = {
        number
        for first, end, numbers in extents(way[0], shard.path)
        if any(first <= place < end for place in touched)
        for number in numbers
    }
    folder = tmp_path_factory.mktemp("damaged")
    check_reading(damaged(written[way], folder, bytes(content)), set(range(len(RECORDS))) - lost)


@pytest.mark.parametrize("way", [way for way in WAYS if way not in STREAMED])
@settings(max_examples=25)
@given(data=st.data())
def test_records_before_a_cut_are_delivered(written, tmp_path_factory, way, data):
    shard = written[way].shards[0]
    content = shard.path.read_bytes()
    size = data.draw(st.integers(0, len(content)))
    lost = {n for _, end, numbers in extents(way[0], shard.path) if size < end for n in numbers}
    check_reading(
        damaged(written[way], tmp_path_factory.mktemp("cut"), content[:size]), set(range(len(RECORDS))) - lost
    )


@pytest.mark.parametrize("way", STREAMED)
@settings(max_examples=12)
@given(data=st.data())
def test_a_gzip_stream_gives_everything_before_its_damage(written, tmp_path_factory, way, data):
    shard, plain = written[way].shards[0], written[way[0], "none"].shards[0]
    content = bytearray(shard.path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    undamaged = len(zlib.decompressobj(31).decompress(bytes(content[:place])))
    if data.draw(st.booleans()):
        content = content[:place]
    else:
        content[place] ^= data.draw(st.integers(1, 255))
    recoverable = {n for _, end, numbers in extents(way[0], plain.path) if end <= undamaged for n in numbers}
    check_reading(damaged(written[way], tmp_path_factory.mktemp("gzip"), bytes(content)), recoverable)


@pytest.mark.parametrize("way", WAYS)
def test_a_foreign_or_missing_file_loses_its_records_and_no_others(tmp_path, way):
    manifest = FORMATS[way[0]].write(RECORDS[:9], tmp_path, 3, way[1])
    manifest.shards[0].path.unlink()
    manifest.shards[1].path.write_bytes(b"no shard at all, but long enough to look like one" * 20)
    reading = read_shards(read_manifest(tmp_path), on_error="skip")
    assert list(reading) == RECORDS[6:9]
    assert [(loss.shard, loss.first, loss.count) for loss in reading.losses] == [
        (shard.path, 0, 3) for shard in manifest.shards[:2]
    ]
    assert "cannot be read (No such file" in reading.losses[0].reason
    assert repr(reading) == "Reading(3 delivered, 6 lost in 2 places)"


def test_a_damaged_record_is_named_with_shard_and_number(tmp_path):
    manifest = FORMATS["tfrecord"].write(RECORDS[20:30], tmp_path, 5)
    path = manifest.shards[1].path
    flip_byte(path, path.read_bytes().index(RECORDS[27].data))
    with pytest.raises(DamagedDataError, match="shard-00001.tfrecord: record 2: the checksum of the record") as caught:
        list(read_shards(manifest))
    assert (caught.value.loss.first, caught.value.loss.count) == (2, 1)
    with pytest.raises(DamagedDataError, match="record 2"):
        list(FORMATS["tfrecord"].read(manifest.shards[1]))
    cut_file(manifest.shards[0].path, 0)
    reading = read_shards(manifest, on_error="skip")
    assert list(reading) == [*RECORDS[25:27], *RECORDS[28:30]]
    assert str(reading.losses[0]) == "shard-00000.tfrecord: records 0 to 4: the file ends before"


@pytest.mark.parametrize("way", [way for way in WAYS if way not in STREAMED])
@given(part=st.floats(0, 0.99), mask=st.integers(1, 255))
def test_a_damaged_record_is_not_given_out_at_random_either(tmp_path_factory, way, part, mask):
    records = [Record("a", b"lowlowlow" * 9), Record("b", b"newest")]
    shard = FORMATS[way[0]].write(records, tmp_path_factory.mktemp("one"), 5, way[1]).shards[0]
    flip_byte(shard.path, int(part * shard.size_bytes), mask)
    for number, record in enumerate(records):
        try:
            assert FORMATS[way[0]].random_access(shard)(number) == record
        except DamagedDataError as error:
            assert shard.path.name in str(error)


@given(lost=st.integers(0, 4), digits=st.integers(1, 0o777))
def test_a_wrong_size_with_a_right_sum_loses_its_record_alone(tmp_path_factory, lost, digits):
    shard = FORMATS["webdataset"].write(RECORDS[3:8], tmp_path_factory.mktemp("size"), 5).shards[0]
    content = bytearray(shard.path.read_bytes())
    with tarfile.open(shard.path) as tar:
        start = tar.getmembers()[2 * lost].offset
    content[start + 124 : start + 135] = f"{digits:o}".ljust(11, "0").encode()  # far beyond the end of the file
    content[start + 148 : start + 156] = b" " * 8  # the sum is over blanks in its own place
    content[start + 148 : start + 156] = f"{sum(content[start : start + 512]):06o}\0 ".encode()
    shard.path.write_bytes(content)
    found = list(FORMATS["webdataset"].found(shard))
    assert [one.number for one in found if not isinstance(one, Loss)] == [n for n in range(5) if n != lost]
    assert [(one.first, one.count) for one in found if isinstance(one, Loss)] == [(lost, 1)]


def test_a_record_that_does_not_decode_is_lost_alone(tmp_path):
    records = [Record("a", b"text"), Record("b", b"\xff"), Record("c", b"more")]
    manifest = FORMATS["memory-map"].write(records, tmp_path, 2)
    reading = read_shards(manifest, on_error="skip", decode=lambda record: record.text)
    assert list(reading) == ["text", "more"]
    assert str(reading.losses[0]).startswith("shard-00000.records: record 1: it does not decode ('utf-8' codec")
    with pytest.raises(DamagedDataError, match="record 1: it does not decode"):
        list(read_shards(manifest, decode=lambda record: record.text))


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=15)
@given(part=st.floats(0, 1))
def test_a_full_disk_leaves_whole_shards_and_no_manifest(tmp_path_factory, way, part):
    folder = tmp_path_factory.mktemp("full")
    whole = FORMATS[way[0]].write(RECORDS[:20], folder / "roomy", 5, way[1])
    disk = FullDisk(int(part * (whole.size_bytes - 1)))
    with pytest.raises(OSError, match="of the stream cannot be written, all before are whole .*free some") as caught:
        FORMATS[way[0]].write(RECORDS[:20], folder / "full", 5, way[1], disk=disk.file)
    assert caught.value.errno == errno.ENOSPC
    left = sorted((folder / "full").iterdir())
    assert [path.name for path in left] == [shard.path.name for shard in whole.shards[: len(left)]]
    assert [path.read_bytes() for path in left] == [shard.path.read_bytes() for shard in whole.shards[: len(left)]]
    assert f"shard-{len(left):05d}" in str(caught.value) and f"records {5 * len(left)} to" in str(caught.value)


def test_a_full_disk_takes_the_old_manifest_with_it(tmp_path):
    FORMATS["memory-map"].write(RECORDS[:4], tmp_path, 2)
    with pytest.raises(OSError, match="shard-00000"):
        FORMATS["memory-map"].write(RECORDS[4:8], tmp_path, 2, disk=FullDisk(3).file)
    with pytest.raises(FileNotFoundError):
        read_manifest(tmp_path)
    assert list(FORMATS["memory-map"].read(Shard(tmp_path / "shard-00000.records", 2, 0))) == RECORDS[:2]


def test_an_unknown_format_or_choice_is_one_clear_error(tmp_path):
    manifest = Manifest("parket", "none", ())
    with pytest.raises(ValueError, match="unknown format 'parket': did you mean 'parquet'"):
        read_shards(manifest)
    with pytest.raises(TypeError, match="on_error must be"):
        read_shards(manifest, on_error="ignore")  # type: ignore[arg-type]
