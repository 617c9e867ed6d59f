"""`lab export --colab FOLDER`: the labs as notebooks for Colab, which begin with a cell that installs lablib.

    first cell     installs lablib and anywidget (figures), unless lablib is there already; skipped elsewhere
    the rest       the notebook as built, without solutions, with its link to Colab (addresses.py)

Colab pins IPython 7.34 and ipywidgets 7: lablib's core asks for neither, so the kernel stays as it is.
"""

from collections.abc import Sequence
from pathlib import Path

from nbformat.v4 import new_code_cell

from lablib.course.building import addresses
from lablib.course.building.notebook import to_text
from lablib.course.errors import CourseError, cannot_write
from lablib.course.places import Lab
from lablib.course.work import handed_out
from lablib.text.files import write_text
from lablib.text.units import plural

_ADDRESS = "Repository in [project.urls] of pyproject.toml"


def export_colab(labs: Sequence[Lab], folder: Path, package: str = "") -> str:
    """Write the notebooks to `folder`, over earlier ones. Returns a message.

    Args:
        package: what pip installs on Colab: a name, an address, a wheel; "": the repository.

    Raises:
        CourseError: neither a package nor an address is known.
        CourseFailure: a file that cannot be written.
    """
    address = addresses.repository()
    if not (package or address):
        raise CourseError(
            f"Colab must know where lablib comes from: set {_ADDRESS}, or give --package, a name or an address for pip."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for lab in labs:
            notebook = handed_out(lab)
            notebook.cells.insert(0, new_code_cell(_install(package or f"git+{address}"), id="colab-install"))
            write_text(folder / f"{lab.name}.ipynb", to_text(notebook))
    except OSError as error:
        raise cannot_write(Path(error.filename or folder), error) from None
    return f"{folder}: {plural(len(labs), 'notebooks')} for Colab, which installs {package or address}."


def _install(package: str) -> str:
    return (
        "# Colab only: installs the course, once per session. Elsewhere lablib is there already.\n"
        "import importlib.util\n\n"
        'if importlib.util.find_spec("lablib") is None:\n'
        f'    get_ipython().run_line_magic("pip", "install --quiet {package} anywidget")'
    )
