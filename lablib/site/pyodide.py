"""The files of Pyodide (CPython for the browser, MPL-2.0): from a folder, from the cache, or fetched by npm."""

import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from lablib.process.user_folders import user_folder

VERSION = "314.0.7"
FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
_LIMIT_S = 600


def find_pyodide(folder: Path | None = None) -> Path:
    """A folder with the files of Pyodide. None: the cache; it is filled by npm at the first call.

    Raises ValueError: a folder without the files; npm is missing, or cannot fetch them.
    """
    if folder is not None:
        if missing := _missing(folder):
            raise ValueError(
                f"--pyodide must be a folder with {', '.join(FILES)}: {folder} lacks {', '.join(missing)}; "
                f"`npm pack pyodide@{VERSION}` and tar give one"
            )
        return folder
    cached = user_folder("cache") / f"pyodide-{VERSION}"
    if _missing(cached):
        _fetch(cached)
    return cached


def _missing(folder: Path) -> list[str]:
    return [name for name in FILES if not (folder / name).is_file()]


def _fetch(folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise ValueError(
            "the files of Pyodide are fetched by npm, which is not installed: install the package `npm`, or give "
            "--pyodide FOLDER"
        )
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        command = [npm, "pack", f"pyodide@{VERSION}", "--pack-destination", place, "--silent"]
        try:
            done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise ValueError(f"npm must fetch Pyodide within {_LIMIT_S} s: it did not; give --pyodide FOLDER") from None
        packed = list(Path(place).glob("*.tgz"))
        if done.returncode or not packed:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise ValueError(f"npm cannot fetch pyodide {VERSION}: {last}; give --pyodide FOLDER")
        with tarfile.open(packed[0]) as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)  # since Python 3.11.4
            for name in FILES:
                archive.extract(f"package/{name}", place)
        for name in FILES:
            (Path(place) / "package" / name).replace(folder / name)
