"""`lab export --students FOLDER`: a copy of the course without solutions.

    copied      files that git tracks, in their present state; notebooks built from their masters; checks, recorded
                comparisons and translated messages, which notebooks read
    left out    masters (lab.py), their wrong answers, the tests of the project and its continuous integration

`make lab` and `make test` work in the copy; there `make test` checks the copy. The copy holds a list of its files: a
second export to the same folder updates them and removes those that no longer exist.
"""

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from lablib.course.building.build import load_all, with_translations
from lablib.course.building.notebook import Version, make_notebook, to_text
from lablib.course.errors import CourseError, cannot_write
from lablib.course.places import Lab
from lablib.text.files import read_text, write_text
from lablib.text.units import plural

_LIST = ".exported-files"
_LEFT_OUT = (".ci/", ".github/", "tests/", "labs/masters/")  # notebooks are built from their masters
_KEPT = re.compile(r"tests/(conftest\.py|handed_out/.*|.*README\.md)")


def export_students(labs: Sequence[Lab], folder: Path) -> str:
    """Write the copy to `folder`, which is new, empty or an earlier copy. Returns a message.

    Raises:
        CourseError: no git repository with lablib in it, no masters, or a folder with other files.
        CourseFailure: a master that breaks a rule, or a file that cannot be written.
    """
    labs = [lab for lab in labs if lab.master.is_file()]
    if not labs:
        raise CourseError("no masters here to export from: run lab export in the project that has the masters.")
    root = labs[0].labs.parent
    files = {
        path: root / path
        for path in _tracked(root)
        if _KEPT.fullmatch(path) or not (path.startswith(_LEFT_OUT) or re.fullmatch(r"labs/.*\.ipynb", path))
    }
    for lab in labs:
        read = [lab.checks, lab.folder.parent / "README.md"]
        read += [path for name in ("*.json", "checks.*.po") for path in lab.folder.glob(name)]
        files |= {path.relative_to(root).as_posix(): path for path in read if path.is_file()}
    try:
        earlier = _earlier(folder)  # a folder that is refused is so before the notebooks are built
        notebooks = {
            master.lab.notebook.relative_to(root).as_posix(): to_text(make_notebook(master, Version.LEARNER))
            for master in with_translations(load_all(labs))
        }
        for path, source in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, folder / path)
        for path, text in notebooks.items():
            write_text(folder / path, text)
        written = sorted([*files, *notebooks])
        for path in set(earlier) - set(written):
            (folder / path).unlink(missing_ok=True)
        write_text(folder / _LIST, "\n".join([*written, ""]))
    except OSError as error:
        raise cannot_write(Path(error.filename or folder), error) from None
    return f"{folder}: {plural(len(labs), 'labs')} without solutions, {plural(len(written), 'files')}"


def _tracked(root: Path) -> list[str]:
    """Existing files that git tracks, as paths below `root`."""
    command = ["git", "-C", str(root), "ls-files", "-z"]
    try:
        done = subprocess.run(command, capture_output=True, check=True, text=True, encoding="utf-8")
    except (OSError, subprocess.CalledProcessError):
        message = f"lab export copies the files that git tracks: {root} is no git repository; clone it."
        raise CourseError(message) from None
    paths = [path for path in done.stdout.split("\0") if (root / path).is_file()]
    if not any(path.startswith("lablib/") for path in paths):
        message = f"lab export copies lablib and the labs: there is no lablib in {root}; run it in the project."
        raise CourseError(message)
    return paths


def _earlier(folder: Path) -> list[str]:
    """Files that an earlier export wrote to this folder."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return []
    try:
        listed = read_text(folder / _LIST).split("\n")
    except (OSError, ValueError):
        message = f"--students must name a new or empty folder, or an earlier export: {folder} holds something else."
        raise CourseError(message) from None
    return [path for path in listed if path and ".." not in Path(path).parts and not Path(path).is_absolute()]
