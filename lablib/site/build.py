"""Build the page: a folder of static files that any file server can give, without a request to another host.

    index.html, *.css, *.js       the page (page/)
    colors.css, choices.json      colours of the figures, names and defaults of the controls, from lablib
    planner.zip                   the modules of lablib that the page imports, and lazy_loader
    pyodide/                      the interpreter and the standard library; numpy if its folder has the wheel

Figures are tables with bars, and one SVG: plotly.js would be 4.7 MB, as much as a third of the rest.
"""

import json
import shutil
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from lablib.figures.style import BUBBLE, COMPUTE, LOOKS, MEMORY_LOOKS
from lablib.site.pyodide import FILES, VERSION, find_pyodide
from lablib.site.settings import CHOICES, CONFIG, DEFAULTS, OWN, SIZES
from lablib.text.files import write_text

# Folders and files of lablib that the page imports; files in them that need torch, or build the page.
_PLANNER = (
    *("configs", "cost", "hardware", "models", "pipeline", "plan", "process/user_folders.py", "process/__init__.py"),
    *("record", "signature", "site", "text", "validation", "__init__.py", "__init__.pyi", "errors.py", "index.py"),
)
_LEFT_OUT = ("models/gpt.py", "models/drawing.py", "pipeline/executor", "site/build.py", "site/pyodide.py", "site/book")
_MARK = "choices.json"  # a folder with this file is an earlier page
_DATE = (1980, 1, 1, 0, 0, 0)  # of the files in the archive, so that equal sources give equal bytes


@dataclass(frozen=True)
class Built:
    """A built page: its folder, number of files, their bytes, and seconds of the build."""

    folder: Path
    num_files: int
    size_bytes: int
    time_s: float


def build_site(out: Path, pyodide: Path | None = None) -> Built:
    """Write the page into a folder.

    Arguments:
        out: a new or empty folder, or an earlier page, which is replaced.
        pyodide: a folder with the files of Pyodide; None: see pyodide.py.

    Raises:
        ValueError: another folder; no files of Pyodide.
    """
    began = time.monotonic()
    new_folder(out, _MARK)
    source = find_pyodide(pyodide)
    if out.is_dir():
        shutil.rmtree(out)
    (out / "pyodide").mkdir(parents=True)
    wheels = sorted(source.glob("numpy-*.whl"))
    for path in (*(source / name for name in FILES), *wheels):
        shutil.copyfile(path, out / "pyodide" / path.name)
    for page in files("lablib.site").joinpath("page").iterdir():
        write_text(out / page.name, page.read_text("utf-8"))
    write_text(out / "colors.css", _colors())
    write_text(out / _MARK, json.dumps(_choices(["numpy"] if wheels else []), indent=1))
    with zipfile.ZipFile(out / "planner.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, source in sorted(_modules()):
            archive.writestr(zipfile.ZipInfo(name, _DATE), source.read_bytes(), zipfile.ZIP_DEFLATED)
    written = [path for path in out.rglob("*") if path.is_file()]
    return Built(out, len(written), sum(path.stat().st_size for path in written), time.monotonic() - began)


def new_folder(out: Path, mark: str) -> None:
    """Check that a folder may be written: new, empty, or an earlier one, which has the file `mark`. ValueError."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out must be a folder: {out} is a file; try public/")
    if out.is_dir() and any(out.iterdir()) and not (out / mark).is_file():
        raise ValueError(f"--out must be a new folder, an empty one or an earlier page: {out} has other files")


def _choices(packages: list[str]) -> dict[str, object]:
    special = {"sizes": SIZES, "config": CONFIG, "own": OWN}
    versions = {"lablib": version("lablib"), "pyodide": VERSION}
    return {"defaults": dict(DEFAULTS), "choices": dict(CHOICES), **special, **versions, "packages": packages}


def _colors() -> str:
    """The colours of actions and categories of memory, as variables of CSS."""
    looks = {
        **{look.letter: look for look in LOOKS.values() if look.letter in "FBIW"},
        **{name.replace(" ", "-"): look for name, look in MEMORY_LOOKS.items()},
        **{
            "communication-buffer": MEMORY_LOOKS["communication"],
            "bubble": BUBBLE,
            "compute": COMPUTE,
            "X": LOOKS["other compute"],
        },
        **{name: LOOKS[name] for name in ("recompute", "optimizer")},
    }
    lines = [f"  --{name}: {look.color}; --{name}-ink: {look.ink};" for name, look in looks.items()]
    return ":root {\n" + "\n".join(lines) + "\n}\n"


def _modules() -> Iterator[tuple[str, Path]]:
    """Name in the archive and path of each module."""
    root = Path(str(files("lablib")))
    for place in _PLANNER:
        found = [root / place] if (root / place).is_file() else (root / place).rglob("*")
        for path in found:
            name = path.relative_to(root).as_posix()
            is_needed = path.suffix in (".py", ".pyi") or path.name == "measured_runs.jsonl"
            if is_needed and not name.startswith(_LEFT_OUT):
                yield f"lablib/{name}", path
    loader = find_spec("lazy_loader")
    assert loader is not None and loader.origin is not None  # a dependency of lablib
    for path in Path(loader.origin).parent.glob("*.py"):
        yield f"lazy_loader/{path.name}", path
