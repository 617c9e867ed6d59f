"""Read files with limits on type and size, and write them atomically.

A name on a command line may be a pipe without a writer, an endless device, a folder or a video: `read_text` accepts
only regular files in UTF-8 up to a size limit, and never blocks. A write goes to a temporary file in the same folder (a
rename is atomic only inside one file system), is flushed to disk and then renamed in one step. If anything fails before
that, such as a full disk, the old file is unchanged and no temporary file remains.
"""

import ast
import contextlib
import errno
import gzip
import io
import json
import os
import stat
import tempfile
import tomllib
import zlib
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, Literal, TextIO

MAX_BYTES = 64 * 2**20
_KINDS = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"))


class CannotWrite(OSError):
    """A file could not be written: `str` has the file and a remedy, `strerror` the system's reason."""

    def __str__(self) -> str:
        is_full = self.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "free some disk space, or " * is_full + "give a path in a folder that you can write to"
        return f"{self.filename} cannot be written: {self.strerror}; {remedy}"


def read_text(path: str | Path, max_bytes: int = MAX_BYTES) -> str:
    """The text of a file, without a byte order mark.

    Raises:
        OSError: the file does not exist, may not be read, or is not regular; `strerror` has the reason.
        ValueError: it is larger than `max_bytes`, or not UTF-8.
    """
    try:
        return read_bytes(path, max_bytes).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8 (byte {error.start}); save it as UTF-8") from None


def read_bytes(path: str | Path, max_bytes: int = MAX_BYTES) -> bytes:
    """The contents of a file. Raises as `read_text`, except for UTF-8."""
    path = Path(system_path(path))
    _check_regular(path, path.stat().st_mode)  # before opening: opening a pipe blocks
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        _check_regular(path, os.fstat(file.fileno()).st_mode)
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"{path} is too large: a file here has at most {max_bytes / 1e6:.0f} MB; give another one")
    return content


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a TOML text. Raises ValueError with the reason, also for too deep nesting and too many digits."""
    return _parsed(tomllib.loads, text)


def parse_json(text: str | bytes, **options: Any) -> Any:
    """Parse a JSON text, with options of `json.loads`. Raises ValueError, as `parse_toml`."""
    return _parsed(lambda given: json.loads(given, **options), text)


def parse_python(source: str, mode: Literal["exec", "eval"] = "exec") -> Any:
    """`ast.parse`, also in several threads: CPython 3.11 fails now and then if two of them parse at the same time."""
    for _ in range(99):
        with contextlib.suppress(SystemError):  # AST constructor recursion depth mismatch
            return ast.parse(source, mode=mode)
    return ast.parse(source, mode=mode)


def read_json(path: str | Path, max_bytes: int = MAX_BYTES) -> Any:
    """The value of a JSON file, which may be compressed with gzip. Raises OSError, ValueError: as `read_text`."""
    content = read_bytes(path, max_bytes)
    try:
        if content[:2] == b"\x1f\x8b":
            with gzip.open(io.BytesIO(content)) as file:
                content = file.read(max_bytes + 1)
            if len(content) > max_bytes:
                raise ValueError(f"it has more than {max_bytes / 1e6:.0f} MB; give a shorter one")
        return parse_json(content)
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} must be JSON, or JSON in gzip: {error}") from None


def _parsed(parse: Callable[[Any], Any], text: str | bytes) -> Any:
    try:
        return parse(text)
    except RecursionError:
        raise ValueError("its brackets are nested too deeply; give a file of a few levels") from None
    except ValueError as error:
        if "integer string conversion" in str(error):
            raise ValueError("it has a number of thousands of digits; write it as 1e30") from None
        raise


def write_text(path: str | Path, text: str) -> None:
    """Write `text` (UTF-8) to `path`, or leave it untouched. Creates missing parent folders.

    Raises CannotWrite: no space, no permission, ...; `path` is unchanged.
    """
    with _in_a_sentence(path):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(text)


def write_bytes(path: str | Path, content: bytes) -> None:
    """The same for bytes."""
    with _in_a_sentence(path):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.buffer.write(content)


def check_writable(path: str | Path) -> None:
    """Check before a long computation that `write_text` can write there. Creates missing folders.

    Raises CannotWrite: as `write_text`, as far as can be checked in advance.
    """
    with _in_a_sentence(path):
        target = Path(os.path.realpath(system_path(path)))
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder, not a file")
        with tempfile.TemporaryFile(dir=target.parent, buffering=0) as file:
            file.write(bytes(4096))
            os.fsync(file.fileno())


@contextlib.contextmanager
def _in_a_sentence(path: str | Path) -> Iterator[None]:
    """Turn an OSError of the block into CannotWrite for this path."""
    try:
        yield
    except OSError as error:
        raise CannotWrite(error.errno, error.strerror or str(error), printable(path)) from None


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[TextIO]:
    """A text file (UTF-8) that replaces `path` if the block succeeds, and is removed otherwise.

    A link remains: its target is replaced. A device, such as /dev/stdout, is written to. Raises CannotWrite: as
    `write_text`; the folder must exist.
    """
    with _in_a_sentence(path), _replacing(path) as file:
        yield file


@contextlib.contextmanager
def _replacing(path: str | Path) -> Iterator[TextIO]:
    path = Path(os.path.realpath(system_path(path)))
    if path.exists() and not path.is_file():
        with open(os.open(path, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0)), "w", encoding="utf-8") as file:
            yield file
        return
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.", suffix=".tmp")
    try:
        with open(handle, "w", encoding="utf-8", newline="\n") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, _mode_of(path))
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def new_file(path: Path) -> Path:
    """Create an empty file at `path`, or at the first unused of `path`-2, -3, ...; atomic.

    Raises OSError: the folder is missing or cannot be written.
    """
    return _first_free(path, lambda one: one.touch(exist_ok=False))


def new_folder(path: Path) -> Path:
    """The same for a folder; missing parents are created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return _first_free(path, Path.mkdir)


def _first_free(path: Path, make: Callable[[Path], None]) -> Path:
    for number in count(1):
        free = path.with_name(f"{path.stem}-{number}{path.suffix}") if number > 1 else path
        try:
            make(free)
            return free
        except FileExistsError:
            continue
    raise AssertionError("numbers do not end")


def system_path(path: str | Path) -> str:
    """The path as text; its error for a null byte names the file, unlike the system's."""
    text = os.fspath(path)
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise OSError(errno.EINVAL, "no file can have that name", ascii(text)) from None
    if "\0" in text:
        raise OSError(errno.EINVAL, "a path has no null byte", ascii(text))
    return text


def printable(path: str | Path) -> str:
    """The path in printable form, for a message."""
    return ascii(str(path)) if not str(path).isprintable() else str(path)


def _check_regular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = next((words for is_kind, words in _KINDS if is_kind(mode)), "a device")
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(number, f"it is {kind}, not a file", str(path))


def _mode_of(path: Path) -> int:
    """The permissions for the written file: from the file it replaces, or from the umask."""
    try:
        return path.stat().st_mode & 0o777
    except OSError:
        umask = os.umask(0)
        os.umask(umask)
        return 0o666 & ~umask
