"""`lab run`: run a lab with papermill, and save it as a notebook and an HTML page.

    1  source: the learner's copy in work/, or the lab as handed out; with --instructor, the master with its solutions
    2  parameters are checked against the notebook's own before the run
    3  papermill runs it in a file with a temporary name, saved now and then (a twentieth of the time) and at the end
    4  the notebook gets its name in one step; then the page is written next to it

A failing cell ends the run; the notebook up to there is kept. A failed write leaves no partial file.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import nbformat

from lablib.course.building.master import Master, of_notebook, read_master
from lablib.course.building.notebook import Version, make_notebook, read_notebook, to_text
from lablib.course.building.parameters import Literal, check_values
from lablib.course.errors import CourseError, CourseFailure, cannot_write
from lablib.course.places import Lab, home_folder, is_installed
from lablib.course.running.environment import environment
from lablib.course.work import handed_out, moved_from_labs
from lablib.text.files import write_text

_ENGINE = "lablib"  # its name in papermill


def run_lab(
    lab: Lab, values: Mapping[str, str | Literal], instructor: bool = False, out: Path | None = None, mine: bool = False
) -> list[Path]:
    """Run a lab and return the files written: notebook and HTML.

    Args:
        values: parameters to set; text is converted to the type the lab declares.
        instructor: run the master's solutions; every check must pass, and no progress is recorded.
        out: output folder; default `runs/` next to work/.
        mine: the learner's functions in work/mine in place of the library's (lablib/labs/mine.py).

    Raises:
        CourseError: an unknown parameter or a wrong value; nothing ran.
        CourseFailure: a cell failed, the kernel died, or nothing could be written.
    """
    notebook = _source(lab, instructor)
    parameters = _parameters(of_notebook(lab, notebook), values)
    folder = (out or home_folder(lab.labs) / "runs").absolute()
    name = f"{lab.work.stem}-{'instructor-' if instructor else ''}{datetime.now():%Y%m%d-%H%M%S}"
    unfinished = None
    try:
        kept, unfinished = _reserved(folder, name)
        write_text(unfinished, to_text(notebook))  # a folder without write permission fails here, not after the run
        strict = {"LAB_STRICT": "1", "LAB_PROGRESS": "off"} if instructor else {}
        of_lab = {"LAB_LANG": lab.language} if lab.language else {}
        with environment(LAB_LABS=str(lab.labs), LAB_MINE="1" if mine else "0", **of_lab, **strict):
            failure = _execute(lab, notebook, parameters, unfinished)
        executed = read_notebook(unfinished)
        executed.metadata.papermill.update(input_path=str(lab.notebook.name), output_path=kept.name)
        write_text(kept, to_text(executed))
    except OSError as error:
        raise cannot_write(Path(error.filename or folder), error) from None
    finally:
        if unfinished is not None:
            with contextlib.suppress(OSError):
                unfinished.unlink()
    if failure:
        raise CourseFailure(f"{failure} The notebook up to there is kept: {kept}")
    try:
        return [kept, _write_page(executed, kept.with_suffix(".html"))]
    except OSError as error:
        raise CourseFailure(f"{cannot_write(kept.with_suffix('.html'), error)} The notebook is kept: {kept}") from None


def _source(lab: Lab, instructor: bool) -> nbformat.NotebookNode:
    if instructor:
        return make_notebook(read_master(lab), Version.INSTRUCTOR)
    new = handed_out(lab)
    for line in moved_from_labs(lab, new):
        print(line)
    if not lab.work.exists():
        return new
    try:
        return read_notebook(lab.work)
    except (OSError, ValueError) as error:
        message = f"{lab.work} is not a notebook ({error}); `lab reset {lab.number}` keeps it next to a fresh copy."
        raise CourseFailure(message) from None


def _parameters(about: Master, values: Mapping[str, str | Literal]) -> dict[str, Literal]:
    """The requested values; widgets are off unless requested."""
    chosen = check_values(about.parameters, values)
    if "cluster" in chosen:
        from lablib.hardware import find_cluster

        try:
            find_cluster(str(chosen["cluster"]))
        except ValueError as error:
            raise CourseError(str(error)) from None
    if any(parameter.name == "interactive" for parameter in about.parameters):
        chosen = {"interactive": False} | chosen
    return chosen


def _execute(lab: Lab, notebook: nbformat.NotebookNode, parameters: dict[str, Literal], path: Path) -> str:
    """Run the notebook into `path`. Returns the error as one sentence, or ""."""
    import papermill
    from jupyter_client.kernelspec import NoSuchKernel
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from papermill.engines import NBClientEngine, papermill_engines

    class Engine(NBClientEngine):
        """Saves less often: papermill writes all outputs so far before and after every cell, 10 s of lab 10's 55."""

        @classmethod
        def execute_managed_notebook(cls, nb_man: Any, *args: Any, **options: Any) -> Any:
            nb_man.save = _seldom(nb_man.save)
            try:
                return super().execute_managed_notebook(nb_man, *args, **options)
            finally:
                del nb_man.save  # the final save always happens

    papermill_engines.register(_ENGINE, Engine)
    logging.getLogger("papermill").setLevel(logging.ERROR)
    elsewhere = home_folder(lab.labs) if is_installed(lab.labs) else lab.labs  # a lab may write files where it runs
    bar = {"desc": f"lab {lab.number}", "unit": "cell", "disable": None}  # None: no bar where the output is a pipe
    try:
        papermill.execute_notebook(
            notebook,
            str(path).replace("{", "{{").replace("}", "}}"),  # papermill formats paths
            parameters,
            engine_name=_ENGINE,
            kernel_name="python3",
            cwd=lab.work.parent if lab.work.exists() else elsewhere,
            progress_bar=bar,  # pyright: ignore[reportArgumentType]  # papermill takes tqdm's arguments too
            # The remaining options go to nbclient.
            store_widget_state=False,  # one FigureWidget would add 5 MB
            iopub_timeout=120,  # seconds for the last output of a cell: 4 are too few on a busy machine
            extra_arguments=["--log-level=CRITICAL"],  # the cells report errors; the kernel's log would only confuse
        )
    except papermill.PapermillExecutionError as error:
        first = next((line for line in error.source.splitlines() if line.strip()), "")
        return (
            f"{lab.name} failed in cell In [{error.exec_count}], `{first}`: {error.ename}: {error.evalue.rstrip('. ')}."
        )
    except DeadKernelError:
        return f"{lab.name}: the kernel died, perhaps for want of memory; try fewer ranks, or --quick."
    except NoSuchKernel:
        return "no Jupyter kernel `python3` here: run `python -m ipykernel install --sys-prefix`."
    except CellTimeoutError:  # an OSError, but not one of the disk
        return f"{lab.name}: a cell's output did not arrive within two minutes: this machine is too busy."
    except KeyboardInterrupt:
        return f"{lab.name} was interrupted."
    return ""


def _seldom(save: Callable[..., None]) -> Callable[..., None]:
    """`save`, skipped where it would take more than a twentieth of the time."""
    next_s = 0.0

    def save_now_and_then(**options: Any) -> None:
        nonlocal next_s
        start_s = time.perf_counter()
        if start_s >= next_s:
            save(**options)
            end_s = time.perf_counter()
            next_s = end_s + 19 * (end_s - start_s)

    return save_now_and_then


def _write_page(notebook: Any, path: Path) -> Path:
    from nbconvert import HTMLExporter

    logging.getLogger("traitlets").setLevel(logging.ERROR)  # it warns of figures without alternative text
    from lablib.figures import with_drawn_figures

    page, _ = HTMLExporter().from_notebook_node(with_drawn_figures(notebook))
    write_text(path, page)
    return path


def _reserved(folder: Path, name: str) -> tuple[Path, Path]:
    """An unused name for a notebook, and the file it is run in, which reserves the name.

    Two runs may begin in the same second: each creates its file in one step or takes the next name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        kept = folder / (f"{name}-{number}.ipynb" if number > 1 else f"{name}.ipynb")
        unfinished = folder / f".{kept.stem}.part.ipynb"
        try:
            unfinished.touch(exist_ok=False)
        except FileExistsError:
            continue
        # Checked after the reservation: a run that had the name before has written its notebook by now.
        if not kept.exists() and not kept.with_suffix(".html").exists():
            return kept, unfinished
        unfinished.unlink()
    raise AssertionError("numbers do not end")
