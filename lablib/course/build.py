"""`lab build`: notebooks from masters, and never over somebody's work.

A learner writes answers into the very notebook that is generated, so a rebuild must not take them away:

    state      the notebook ...                                     `lab build`
    missing    is not there                                         writes it
    current    is byte for byte what its master gives               leaves it
    stale      was built from an older master, and not touched      writes it
    yours      holds somebody's edits or outputs                    leaves it, and says so when its master has moved on
                                                                    (--replace keeps it as NN_name.mine-DATE.ipynb)

All labs are read, checked and built in memory before the first file is written: one bad master, and nothing changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path

from lablib.course.errors import CourseError, CourseFailure
from lablib.course.files import cannot_write
from lablib.course.lint import lint
from lablib.course.master import Master, read_master
from lablib.course.notebook import Version, digest, has_outputs, make_notebook, notebook_of, read_notebook, to_text
from lablib.course.places import Lab
from lablib.files import new_file, read_text, write_text


class State(Enum):
    MISSING = "missing"
    CURRENT = "built"
    STALE = "stale"
    YOURS = "yours"  # edited, and its master is the one it was built from
    YOURS_STALE = "yours, stale"  # edited, and its master has changed since
    NO_MASTER = "no master"


@dataclass(frozen=True)
class Built:
    """A lab's learner notebook as its master gives it, and how the file on disk compares."""

    master: Master
    text: str
    state: State


def load_all(labs: Sequence[Lab]) -> list[Built]:
    """Read, check and build the masters of these labs, in memory.

    Raises:
        CourseFailure: a master that is not Python or breaks a rule; the message has one line for each finding.
    """
    masters: list[Master] = []
    findings: list[str] = []
    for lab in labs:
        try:
            master = read_master(lab)
        except CourseError as error:
            findings.append(str(error))
            continue
        masters.append(master)
        findings += [str(finding) for finding in lint(master)]
    if findings:
        raise CourseFailure("\n".join(findings) + " Nothing was written.")
    return [_built(master) for master in masters]


def build(labs: Sequence[Lab], replace: bool = False) -> list[str]:
    """Write the learner notebooks that need it. One line a lab, saying what was done.

    Args:
        replace: write over notebooks that hold somebody's work too, keeping that work in a file beside.
    """
    return [_write(built, replace) for built in load_all(labs)]


def check_built(labs: Sequence[Lab]) -> None:
    """Are all learner notebooks exactly what their masters give?

    Raises:
        CourseFailure: some are not; one line for each, with the remedy.
    """
    orphans = [lab for lab in labs if not lab.master.exists()]
    problems = [f"{lab.notebook} has no master; remove it, or write {lab.master}." for lab in orphans]
    for built in load_all([lab for lab in labs if lab not in orphans]):
        lab = built.master.lab
        if built.state is State.MISSING:
            problems.append(f"{lab.notebook} is missing; run `lab build {lab.number}`.")
        elif built.state is not State.CURRENT:
            replace = "" if built.state is State.STALE else "--replace "
            problems.append(f"{lab.notebook} {_difference(built)}; run `lab build {replace}{lab.number}`.")
    if problems:
        raise CourseFailure("\n".join(problems))


def build_instructor(labs: Sequence[Lab], folder: Path) -> list[str]:
    """Write the instructor versions, solutions included, to `folder`."""
    return [
        _save(folder / built.master.lab.notebook.name, to_text(make_notebook(built.master, Version.INSTRUCTOR)))
        for built in load_all(labs)
    ]


def build_nbgrader(labs: Sequence[Lab], folder: Path) -> list[str]:
    """Write nbgrader assignments to `folder`, which is then a course folder: `source/NN_name/NN_name.ipynb`."""
    return [
        _save(
            folder / "source" / built.master.lab.name / built.master.lab.notebook.name,
            to_text(make_notebook(built.master, Version.NBGRADER)),
        )
        for built in load_all(labs)
    ]


def state_of(lab: Lab) -> State:
    """How the lab's notebook compares with its master (a master that cannot be built counts as changed)."""
    if not lab.master.exists():
        return State.NO_MASTER
    try:
        return _built(read_master(lab)).state
    except CourseError:
        return State.STALE if lab.notebook.exists() else State.MISSING


def _built(master: Master) -> Built:
    notebook = make_notebook(master, Version.LEARNER)
    text = to_text(notebook)
    return Built(master, text, _state(master.lab.notebook, text, notebook.metadata["lablib"]["digest"]))


def _state(path: Path, text: str, new_digest: str) -> State:
    try:
        found = read_text(path)
        if found == text:
            return State.CURRENT
        notebook = notebook_of(found)
        built_with = notebook.metadata.get("lablib", {}).get("digest")
        untouched = digest(notebook) == built_with and not has_outputs(notebook)
    except FileNotFoundError:
        return State.MISSING
    except Exception:  # not a notebook, not UTF-8, ...: whatever it is, somebody put it there
        return State.YOURS_STALE
    if untouched:
        return State.STALE
    return State.YOURS if built_with == new_digest else State.YOURS_STALE


def _write(built: Built, replace: bool) -> str:
    """Write one learner notebook, if its state asks for it."""
    path, name, number = built.master.lab.notebook, built.master.lab.name, built.master.lab.number
    if built.state is State.CURRENT:
        return f"{name}: up to date"
    if built.state in (State.MISSING, State.STALE):
        _save(path, built.text)
        return f"{name}: built"
    if replace:
        kept = path.with_name(f"{name}.mine-{datetime.now():%Y%m%d-%H%M%S}.ipynb")
        try:
            kept = new_file(kept)  # two commands may come in one second
            path.replace(kept)
        except OSError as error:
            raise cannot_write(kept, error) from None
        _save(path, built.text)
        return f"{name}: built; your version is kept as {kept.name}"
    if built.state is State.YOURS:
        return f"{name}: up to date, with your work in it"
    return (
        f"{name}: left alone, for it holds your work; its master has changed since: "
        f"`lab build --replace {number}` builds the new one and keeps yours beside it"
    )


def _save(path: Path, text: str) -> str:
    try:
        write_text(path, text)
    except OSError as error:
        raise cannot_write(path, error) from None
    return f"{path}: built"


def _difference(built: Built) -> str:
    """In which way a notebook differs from its master."""
    try:
        notebook = read_notebook(built.master.lab.notebook)
    except Exception:
        return "is not a notebook"
    return "has outputs or execution counts" if has_outputs(notebook) else "differs from its master"
