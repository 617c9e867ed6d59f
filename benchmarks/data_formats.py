"""The four formats of shards on real text: bytes on disk, and how fast they are written and read.

    python benchmarks/data_formats.py [--repeats 5] [--out benchmarks/data/data_formats.json]

The documents are the modules of Python's standard library, whole (17 kB on the mean) and in pieces of 1,000 bytes.
Every format and compression takes its turn in every repeat; medians of processor time are compared with those of the
memory map without compression, of the same repeats. Files are in the page cache: what is measured is the work of the
format, not of a disk. "library" is the reader of the format's own library, without our checksum of each record.
"""

import argparse
import datetime
import json
import platform
import random
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from tfrecord.reader import tfrecord_loader
from webdataset.tariterators import group_by_keys, tar_file_expander

from lablib.data import load_corpus
from lablib.data.documents import cut_documents, documents
from lablib.data.formats.catalogue import FORMATS
from lablib.data.formats.records import Manifest, NoRandomAccessError, Record, Shard

PIECE_BYTES, NUM_SHARDS, NUM_RANDOM = 1_000, 4, 200
BASE = ("memory-map", "none")
WAYS = [(name, compression) for name, one in FORMATS.items() for compression in one.compressions]


def data_sets() -> dict[str, list[Record]]:
    """The records of each data set."""
    modules = documents(load_corpus())
    pieces = cut_documents(modules, PIECE_BYTES)
    named = {"modules": modules, "pieces": pieces}
    return {
        name: [Record(f"{name}/{number}", bytes(one.numpy())) for number, one in enumerate(some)]
        for name, some in named.items()
    }


def by_library(manifest: Manifest, shard: Shard) -> Iterator[Any]:
    """Records as the format's own library reads them; none for the memory map, which has no other."""
    if manifest.format == "parquet":
        yield from pq.read_table(shard.path).column("data").to_pylist()
    elif manifest.format == "webdataset":
        with shard.path.open("rb") as stream:
            yield from group_by_keys(tar_file_expander([{"url": str(shard.path), "stream": stream}]))
    elif manifest.format == "tfrecord":
        kind = None if manifest.compression == "none" else manifest.compression
        yield from tfrecord_loader(str(shard.path), None, {"data": "byte"}, compression_type=kind)


def seconds(work: Callable[[], Any]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def measure(way: tuple[str, str], records: list[Record], folder: Path, times: dict[str, list[float]]) -> Manifest:
    """One repeat of one format: its times go to `times`, in seconds a record."""
    one, num = FORMATS[way[0]], len(records)
    shutil.rmtree(folder, ignore_errors=True)
    written: list[Manifest] = []
    write_s = seconds(lambda: written.append(one.write(records, folder, -(-num // NUM_SHARDS), way[1])))
    times["write"].append(write_s / num)
    manifest = written[0]
    times["read"].append(seconds(lambda: [list(one.read(shard)) for shard in manifest.shards]) / num)
    if way[0] != "memory-map":
        times["library"].append(seconds(lambda: [list(by_library(manifest, s)) for s in manifest.shards]) / num)
    try:
        getters: list[Callable[[int], Record]] = []
        index_s = seconds(lambda: getters.extend(one.random_access(shard) for shard in manifest.shards))
    except NoRandomAccessError:
        return manifest
    rng = random.Random(len(times["index"]))
    places = [(rng.randrange(len(getters)), rng.random()) for _ in range(NUM_RANDOM)]
    numbers = [(getters[shard], int(part * manifest.shards[shard].num_records)) for shard, part in places]
    times["index"].append(index_s / num)
    times["random"].append(seconds(lambda: [record_at(number) for record_at, number in numbers]) / NUM_RANDOM)
    return manifest


def rows_of(name: str, records: list[Record], repeats: int) -> list[dict[str, Any]]:
    times: dict[tuple[str, str], dict[str, list[float]]] = {way: defaultdict(list) for way in WAYS}
    sizes: dict[tuple[str, str], int] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(repeats):
            for way in WAYS:
                sizes[way] = measure(way, records, Path(folder) / "-".join(way), times[way]).size_bytes
    raw = sum(len(record.data) for record in records)
    rows = []
    for way in WAYS:
        row: dict[str, Any] = {"data": name, "format": way[0], "compression": way[1]}
        row |= {"num_records": len(records), "raw_bytes": raw, "size_bytes": sizes[way]}
        for what, taken in times[way].items():
            base = times[BASE].get(what if what != "library" else "read", [])
            row[f"{what}_us_a_record"] = round(statistics.median(taken) * 1e6, 2)
            if base:
                row[f"{what}_ratio"] = round(statistics.median(a / b for a, b in zip(taken, base, strict=True)), 3)
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown: times over the memory map's."""
    lines = [
        "| data | format | compression | bytes on disk / bytes of text | overhead, bytes a record | write | read "
        "| read by its library | at random | microseconds a record, read | at random |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        plain = row["compression"] == "none"
        cells = [row["data"], row["format"], row["compression"], f"{row['size_bytes'] / row['raw_bytes']:.3f}"]
        cells.append(f"{(row['size_bytes'] - row['raw_bytes']) / row['num_records']:.0f}" if plain else "")
        cells += [f"{row[key]:.2f}" if key in row else "" for key in _ratios("write", "read", "library", "random")]
        cells += [f"{row[key]:.1f}" if key in row else "" for key in ("read_us_a_record", "random_us_a_record")]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _ratios(*names: str) -> list[str]:
    return [f"{name}_ratio" for name in names]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/data/data_formats.json"))
    args = parser.parse_args()
    rows = [row for name, records in data_sets().items() for row in rows_of(name, records, args.repeats)]
    packages = ("pyarrow", "webdataset", "tfrecord", "zstandard")
    about = {
        "command": f"python benchmarks/data_formats.py --repeats {args.repeats}",
        "date": datetime.date.today().isoformat(),
        "versions": {"python": platform.python_version()} | {name: version(name) for name in packages},
        "machine": f"{platform.system()} {platform.machine()}, processor time, files in the page cache",
        "corpus": repr(load_corpus()),
        "base": "/".join(BASE),
    }
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(f'{{\n "about": {json.dumps(about)},\n "rows": [\n  {lines}\n ]\n}}\n')
    print(table(rows))


if __name__ == "__main__":
    main()
