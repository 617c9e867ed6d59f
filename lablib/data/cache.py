"""A cache of corpora: files that are whole, or not there.

A corpus is two files: `<key>.bin`, its bytes, and `<key>.json`, their number, checksum and origin. Both are written
under another name and renamed, the bytes first: a reader sees the old file or the new one, never a half of one, even
while eight ranks build the same corpus at once. Reading checks the checksum; a damaged corpus is reported and
built again.

Cost: reading hashes the file, about a second for each gigabyte; the bytes are then mapped, not loaded.
"""

import errno
import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from lablib.process.user_folders import user_folder
from lablib.text.files import system_path


@dataclass(frozen=True, slots=True)
class CachedFile:
    """A file of the cache: its length, its sha256 in hexadecimal, and the origin of its bytes."""

    size_bytes: int
    sha256: str
    source: str


def cache_folder() -> Path:
    """The folder of corpora: the environment's LAB_DATA, or the platform's cache folder."""
    if chosen := os.environ.get("LAB_DATA"):
        return Path(os.path.expanduser(chosen)).resolve()
    return user_folder("cache") / "corpora"


def read_entry(folder: Path, key: str) -> CachedFile | None:
    """The entry of a whole file in the cache; None where there is none, or, with a warning, where it is damaged."""
    path, about = folder / f"{key}.bin", folder / f"{key}.json"
    if not (path.is_file() and about.is_file()):
        return None
    try:
        entry = CachedFile(**json.loads(about.read_text("utf-8")))
        whole = path.stat().st_size == entry.size_bytes and sha256_of(path) == entry.sha256
    except (ValueError, TypeError):
        whole = False
    if whole:
        return entry
    warnings.warn(f"the cached corpus {path} does not match its checksum: it is built again.", stacklevel=2)
    return None


def write_entry(folder: Path, key: str, chunks: Iterable[bytes], source: str) -> CachedFile:
    """Write the chunks, in order, as the file `key` of the cache. An interrupted write leaves the old file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        digest, size_bytes = hashlib.sha256(), 0
        with replacing(folder / f"{key}.bin") as file:
            for chunk in chunks:
                digest.update(chunk)
                size_bytes += file.write(chunk)
        entry = CachedFile(size_bytes, digest.hexdigest(), source)
        with replacing(folder / f"{key}.json") as file:
            file.write(json.dumps(asdict(entry), indent=1).encode())
    except (OSError, ValueError) as error:  # ValueError: a folder's name with a null byte
        raise OSError(
            f"the corpus cannot be written to {folder} ({error}): "
            "free some space there, or set LAB_DATA to another folder."
        ) from error
    return entry


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` when the block ends well, and vanishes when it does not."""
    path = Path(system_path(path))
    descriptor, unfinished = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.chmod(unfinished, 0o644)  # mkstemp's files are private; a classroom may share one cache
            os.fsync(file.fileno())  # on the disk before it has its name: a power cut leaves the old file or the new
        os.replace(unfinished, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(unfinished)


def not_written(error: OSError, path: Path, what: str) -> OSError:
    """The error of a file that could not be written, with its number: path, missing content, reason and remedy."""
    remedy = "free some disk space" if error.errno == errno.ENOSPC else "give a folder that you can write to"
    return OSError(error.errno, f"{path}: {what} ({error.strerror}); {remedy}.")


def sha256_of(path: Path) -> str:
    """The sha256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
