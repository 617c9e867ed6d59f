"""Sources of the bytes of a corpus: Python's own standard library, or a public data set on the network.

Every installation of Python brings some ten megabytes of real text: its standard library, prose in its docstrings
and code between. That makes a corpus with no download, the same one on every run of the same Python.

A source is (key, origin, chunks): a name for the cache, a sentence for the reader, and the bytes as an iterator, so
that a data set larger than memory passes through.
"""

import hashlib
import importlib
import os
import platform
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from lablib.signature import checked
from lablib.text.files import system_path

END_OF_TEXT = "\n<|endoftext|>\n"  # between documents of a corpus that does not mark their ends

# Tests are not prose, site-packages is not the standard library, and config-* and _sysconfigdata* tell of this machine.
_LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
_LEFT_OUT_PREFIXES = ("config-", "_sysconfigdata")


class CorpusUnavailableError(RuntimeError):
    """A corpus is not available on this machine: no network, no package, or no such files, as the message says."""


class Source(NamedTuple):
    """Bytes as an iterator: `key` names them in the cache, `origin` is a sentence for the reader."""

    key: str
    origin: str
    chunks: Iterator[bytes]


@checked
def standard_library(folder: Path | None = None) -> Source:
    """Every module of the standard library in `folder` (None: this Python's), ordered by path, a newline after each."""
    folder = Path(sysconfig.get_path("stdlib") if folder is None else system_path(folder))
    files = sorted(_modules(folder), key=lambda path: path.relative_to(folder).as_posix())
    if not files:
        raise CorpusUnavailableError(
            f"Python's standard library has no source files in {folder}: use a Python installed with its sources, "
            "or a corpus from the network (load_corpus('wikitext-2'))."
        )
    origin = f"standard library of Python {platform.python_version()}, {len(files)} modules"
    return Source(standard_library_key(folder), origin, (path.read_bytes() + b"\n" for path in files))


@checked
def standard_library_key(folder: Path | None = None) -> str:
    """The key of `standard_library(folder)`, without a search for its thousand files."""
    folder = Path(sysconfig.get_path("stdlib") if folder is None else system_path(folder))
    # Two builds of one version (a distribution's and one's own) may differ in a file: each has its place.
    where = hashlib.sha256(str(folder).encode()).hexdigest()[:8]
    return f"python-stdlib-{platform.python_version()}-{where}"


def _modules(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not _is_left_out(name)]  # os.walk goes on into these
        for name in files:
            path = Path(parent, name)
            # A distribution adds links to its files: links are not followed.
            if name.endswith(".py") and not _is_left_out(name) and not path.is_symlink():
                yield path


def _is_left_out(name: str) -> bool:
    return name in _LEFT_OUT or name.startswith(_LEFT_OUT_PREFIXES)


def hugging_face(name: str, path: str, split: str, config: str | None = None, separator: str = "") -> Source:
    """The column `text` of a public data set, rows joined by `separator`, through Hugging Face's package `datasets`.

    Communicates: the first use downloads it. CorpusUnavailableError: the package is missing, or the data set cannot be
    reached; in one sentence.
    """
    try:
        # Not `import datasets`: this repository's folder of that name, seen from its root, would pass for the package.
        load_dataset = importlib.import_module("datasets").load_dataset
    except (ImportError, AttributeError):
        raise CorpusUnavailableError(
            f"corpus {name!r} needs the package 'datasets': install it with `pip install datasets`, "
            "or use load_corpus('python-stdlib'), which needs no network."
        ) from None
    try:
        rows = load_dataset(path, config, split=split)
    except Exception as error:  # the hub, its client and the network each have their own classes
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:120]
        raise CorpusUnavailableError(
            f"corpus {name!r} cannot be downloaded ({type(error).__name__}: {reason}): try again with a network, "
            "or use load_corpus('python-stdlib'), which needs none."
        ) from error
    chunks = ((row["text"] + separator).encode() for row in rows)
    return Source(f"{name}-{split}", f"{path}, split {split!r}, by Hugging Face datasets", chunks)
