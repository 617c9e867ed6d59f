"""Build the whole site: labs executed, sources written for Sphinx, pages made, and the planner's page.

index.html, labs/, techniques/, docs/, gallery.html, search.html    pages, by Sphinx
planner/       the planner's page (lablib/site/build.py)
notebooks/     the labs as handed out, to download
_static/       style, script, plotly.js once, and figures/ for it
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from lablib.course.building.master import Master, of_notebook, read_master
from lablib.course.building.notebook import to_text
from lablib.course.errors import CourseError, CourseFailure
from lablib.course.places import Lab
from lablib.course.work import handed_out
from lablib.figures.theme import THEME_CSS
from lablib.site.book.executed import executed_labs
from lablib.site.book.lab_pages import lab_page
from lablib.site.book.pages import gallery, start_page, write_guides
from lablib.site.book.techniques import write_techniques
from lablib.site.build import Built, build_site, new_folder
from lablib.text.files import read_text, write_bytes, write_text

_MARK = "lablib-site.json"  # a folder with this file is an earlier site
_BACK = '<p style="margin-top: .6rem"><a href="../index.html" style="color: inherit">The course</a></p>'
_INSTALL = "pip install -r requirements-site.lock"


def build_book(
    out: Path, labs: Sequence[Lab], pyodide: Path | None = None, notebooks: Path | None = None, jobs: int = 2
) -> Built:
    """Write the whole site into a folder.

    Arguments:
        out: a new or empty folder, or an earlier site, which is replaced.
        labs: the labs, in order, in the folder `labs/` of the project.
        pyodide: a folder with the files of Pyodide; None: see pyodide.py.
        notebooks: a folder that keeps the executed labs for the next build; None: all are executed.
        jobs: how many labs are executed at once.

    Raises:
        ValueError: another folder; no files of Pyodide.
        CourseError: Sphinx is not installed; a lab failed; Sphinx found an error.
    """
    began = time.monotonic()
    if missing := [name for name in ("sphinx", "myst_nb", "furo") if find_spec(name) is None]:
        raise CourseError(f"lab site needs Sphinx with myst-nb and Furo: no {', '.join(missing)}; `{_INSTALL}`.")
    root = labs[0].labs.parent
    if not ((root / "docs").is_dir() and (root / "README.md").is_file()):
        raise CourseError(
            f"lab site builds the guides of the project too: no docs/ and README.md in {root}; run it there."
        )
    new_folder(out, _MARK)
    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "source"
        planner = build_site(source / "extra" / "planner", pyodide).folder / "index.html"
        write_text(planner, read_text(planner).replace("<header>", f"<header>\n  {_BACK}", 1))
        _write_sources(source, labs, executed_labs(labs, notebooks or Path(place) / "executed", jobs))
        _run_sphinx(source, Path(place))
        shutil.rmtree(out, ignore_errors=True)
        shutil.move(Path(place) / "html", out)
    written = [path for path in out.rglob("*") if path.is_file()]
    return Built(out, len(written), sum(path.stat().st_size for path in written), time.monotonic() - began)


def _write_sources(source: Path, labs: Sequence[Lab], executed: Sequence[object]) -> None:
    """Everything that Sphinx reads, and the files that it copies."""
    from plotly.offline import get_plotlyjs

    root, static, extra = labs[0].labs.parent, source / "_static", source / "extra"
    shutil.copytree(str(files("lablib.site.book").joinpath("sphinx")), source, dirs_exist_ok=True)
    about, figures = [], {}
    for lab, notebook in zip(labs, executed, strict=True):
        page = lab_page(notebook, lab.name)  # pyright: ignore[reportArgumentType]
        about.append(read_master(lab) if lab.master.is_file() else of_notebook(lab, handed_out(lab)))
        figures[lab.name] = page.first_figure
        write_text(source / "labs" / f"{lab.name}.ipynb", to_text(page.notebook))
        write_text(extra / "notebooks" / f"{lab.name}.ipynb", to_text(handed_out(lab)))
        for name, content in page.files.items():
            write_bytes(static / "figures" / name, content)
    write_techniques(Path(str(files("lablib"))), source / "techniques", {m.lab.name: _code(m) for m in about})
    guides = write_guides(root / "docs", source / "docs", source / "techniques", list(figures))
    write_text(source / "index.md", start_page(about, guides, read_text(root / "README.md")))
    write_text(source / "gallery.md", gallery(about, figures))
    write_text(static / "figures.css", THEME_CSS)
    write_text(static / "plotly.min.js", get_plotlyjs())
    shutil.copyfile(root / "docs" / "animation.gif", source / "animation.gif")
    write_text(extra / _MARK, json.dumps({"labs": [lab.name for lab in labs]}))


def _code(about: Master) -> str:
    return "\n".join(cell.source for cell in about.cells if cell.kind == "code" and not cell.tagged("exercise"))


def _run_sphinx(source: Path, place: Path) -> None:
    """Make the pages; a warning is an error."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-j", str(os.cpu_count() or 1)]
    command += ["-d", str(place / "doctrees"), str(source), str(place / "html")]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise CourseFailure(f"Sphinx cannot make the pages: {done.stderr.strip() or done.stdout.strip()}")
