"""The learner's copies of labs: handed out in `labs/`, edited in `work/`, updated without loss.

    lab open          copies into work/ the labs that are not begun; lists the others that have changed since
    lab update [NN]   updates those too: the new version with the answers carried over (carry_over.py)
    lab reset NN      a fresh copy

An earlier copy is kept in work/ with a time stamp: 08_collectives.kept-20250301-101500.ipynb. git ignores work/, so
`git pull` finds no conflicts. Each of these commands moves edited notebooks from labs/ to work/.
"""

import shutil
from collections.abc import Sequence
from datetime import datetime
from enum import Enum
from pathlib import Path

from nbformat import NotebookNode

from lablib.course.building.carry_over import Carried, carry_over
from lablib.course.building.master import read_master
from lablib.course.building.notebook import Version, digest, has_outputs, make_notebook, read_notebook, stamp, to_text
from lablib.course.errors import CourseError, CourseFailure, cannot_write
from lablib.course.places import Lab
from lablib.text.files import new_file, write_text
from lablib.text.units import plural

_OTHERWISE = "work in another folder: LAB_WORK=~/labs-of-mine lab open"


class State(Enum):
    """State of a learner's copy."""

    NOT_BEGUN = "not begun"  # there is none, or it is unedited
    BEGUN = "begun"
    OUTDATED = "begun, outdated"  # the lab has changed since
    DAMAGED = "damaged"


def open_copies(labs: Sequence[Lab]) -> list[str]:
    """Copy labs that are not begun into work/. Returns messages: notebooks moved there, and labs changed since.

    Raises CourseFailure: work/ cannot be written.
    """
    lines: list[str] = []
    outdated: list[Lab] = []
    for lab in labs:
        try:
            new = handed_out(lab)
        except CourseError:
            continue  # a lab in preparation must not prevent opening another
        lines += moved_from_labs(lab, new)
        state = _state(lab, new)
        if state is State.NOT_BEGUN:
            _write(lab, new)
        outdated += [lab] * (state is State.OUTDATED)
    if outdated:
        names, numbers = ", ".join(lab.name for lab in outdated), " ".join(lab.number for lab in outdated)
        lines.append(
            f"{names}: changed since you began; `lab update {numbers}` brings it and carries your answers over."
        )
    return lines


def update(lab: Lab) -> list[str]:
    """Update a copy and carry over the learner's changes. Returns a line per action.

    Raises CourseError: no such lab can be made, the copy is no notebook, or nothing can be written.
    """
    new = handed_out(lab)
    lines, state = moved_from_labs(lab, new), _state(lab, new)
    if state is State.NOT_BEGUN:
        _write(lab, new)
    if state is not State.OUTDATED:
        if state is State.DAMAGED:
            message = f"{lab.work} is not a notebook: `lab reset {lab.number}` keeps it next to a fresh copy."
            raise CourseFailure(message)
        return [*lines, f"{lab.name}: up to date, {state.value}"]
    merged, carried = carry_over(read_notebook(lab.work), new)
    kept = _replace(lab, merged)
    return [
        *lines,
        f"{lab.name}: updated, {_in_words(carried)}; your earlier copy is kept as {kept.name}. "
        "In an open JupyterLab: File > Reload Notebook from Disk.",
    ]


def reset(lab: Lab) -> list[str]:
    """Make a fresh copy; an edited old copy is kept next to it. Returns lines that say so.

    Raises CourseError: as `update`.
    """
    new = handed_out(lab)
    lines = moved_from_labs(lab, new)
    if _state(lab, new) is State.NOT_BEGUN:
        _write(lab, new)
        return [*lines, f"{lab.name}: a fresh copy is in {lab.work}"]
    kept = _replace(lab, new)
    return [*lines, f"{lab.name}: a fresh copy is in {lab.work}; your earlier one is kept as {kept.name}"]


def state_of(lab: Lab) -> State:
    """State of the learner's copy, compared with the notebook that would be handed out today."""
    try:
        return _state(lab, handed_out(lab))
    except CourseError:
        return State.BEGUN if lab.work.exists() else State.NOT_BEGUN


def handed_out(lab: Lab) -> NotebookNode:
    """The lab as handed out: built from its master; if that is not possible, the notebook in labs/.

    Raises CourseError: there is neither.
    """
    try:
        return make_notebook(read_master(lab), Version.LEARNER)
    except CourseError:
        if not lab.notebook.exists():
            raise
    notebook = _read(lab.notebook)
    if notebook is None:
        raise CourseFailure(f"{lab.notebook} is no notebook: restore it from git, or write its master {lab.master}.")
    if not lab.master.exists():
        for cell in notebook.cells:
            cell.update({"outputs": [], "execution_count": None} if cell.cell_type == "code" else {})
        stamp(notebook)
    return notebook


def moved_from_labs(lab: Lab, new: NotebookNode) -> list[str]:
    """Move an edited notebook from labs/ to work/ and write `new` instead; returns a line that says so.

    Without a readable master it stays: it is the only source of its lab. Raises CourseFailure: it cannot be moved.
    """
    if not lab.master.exists() or _is_worked_in(new) or not lab.notebook.exists():
        return []
    found = _read(lab.notebook)
    if not _is_worked_in(found):
        return []
    is_first = found is not None and _state(lab, new) is State.NOT_BEGUN
    try:
        lab.work.parent.mkdir(parents=True, exist_ok=True)
        place = lab.work if is_first else _free_name(lab, "from-labs")
        shutil.move(lab.notebook, place)
        write_text(lab.notebook, to_text(new))
    except OSError as error:
        raise cannot_write(error.filename or lab.work, error, _OTHERWISE) from None
    return [f"{lab.name}: your work in {lab.notebook} is now {place}; labs/ has the originals."]


def _state(lab: Lab, new: NotebookNode) -> State:
    if not lab.work.exists():
        return State.NOT_BEGUN
    found = _read(lab.work)
    if found is None:
        return State.DAMAGED
    if not _is_worked_in(found):
        return State.NOT_BEGUN
    return State.BEGUN if _built_with(found) == digest(new) else State.OUTDATED


def _read(path: Path) -> NotebookNode | None:
    try:
        return read_notebook(path)
    except (OSError, ValueError):
        return None


def _is_worked_in(notebook: NotebookNode | None) -> bool:
    """Was it edited or run? (A file that is no notebook counts as edited.)"""
    return notebook is None or _built_with(notebook) != digest(notebook) or has_outputs(notebook)


def _built_with(notebook: NotebookNode) -> str | None:
    """The digest of the version that was handed out."""
    return notebook.metadata.get("lablib", {}).get("digest")


def _replace(lab: Lab, notebook: NotebookNode) -> Path:
    """Overwrite a copy, and keep the old one next to it; returns the kept file."""
    kept = None
    try:
        kept = _free_name(lab, "kept")
        shutil.copyfile(lab.work, kept)
        write_text(lab.work, to_text(notebook))
    except OSError as error:
        if kept is not None:
            kept.unlink()
        raise cannot_write(error.filename or lab.work, error, _OTHERWISE) from None
    return kept


def _free_name(lab: Lab, why: str) -> Path:
    return new_file(lab.work.with_name(f"{lab.name}.{why}-{datetime.now():%Y%m%d-%H%M%S}.ipynb"))


def _write(lab: Lab, notebook: NotebookNode) -> None:
    try:
        write_text(lab.work, to_text(notebook))
    except OSError as error:
        raise cannot_write(error.filename or lab.work, error, _OTHERWISE) from None


def _in_words(carried: Carried) -> str:
    """ "with your answers to mean and size, 2 cells that you edited and 1 that you added"."""
    parts = [f"your answers to {', '.join(carried.answers)}"] if carried.answers else []
    counts = {"edited": carried.edited, "added": carried.added}
    parts += [f"{plural(count, 'cells')} that you {what}" for what, count in counts.items() if count]
    words = f"with {' and '.join(parts)}" if parts else "with nothing of yours to carry over"
    if carried.changed_exercises:
        words += f"; a changed beginning of an exercise is above your answer ({', '.join(carried.changed_exercises)})"
    if carried.unplaced:
        words += f"; {carried.unplaced} without a place are at the end"
    return words
