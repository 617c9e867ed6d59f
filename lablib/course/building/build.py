"""`lab build`: write notebooks from masters.

labs/ holds generated notebooks; learners work on copies in work/ (work.py). A notebook in labs/ that was edited moves
to work/ before it is overwritten.

All labs are read, checked and built in memory before the first file is written: one bad master changes nothing.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nbformat import NotebookNode

from lablib.course.building.lint import lint
from lablib.course.building.master import Master, read_master
from lablib.course.building.notebook import Version, has_outputs, make_notebook, notebook_of, to_text
from lablib.course.errors import CourseError, CourseFailure, cannot_write
from lablib.course.grading.settings import write_config
from lablib.course.places import Lab, find_labs, is_installed
from lablib.course.translation import Source, sources_of
from lablib.course.work import moved_from_labs
from lablib.text.files import read_text, write_text


def load_all(labs: Sequence[Lab]) -> list[Master]:
    """Read and check the masters of these labs.

    Raises CourseFailure: a master that is not Python or breaks a rule; the message has one line for each finding.
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
    return masters


def build(labs: Sequence[Lab]) -> list[str]:
    """Write the learner notebooks that are missing or stale, translations too. Returns a line per action."""
    notebooks = [(each.lab, make_notebook(each, Version.LEARNER)) for each in with_translations(load_all(labs))]
    return [line for lab, notebook in notebooks for line in _build(lab, notebook)]


def with_translations(masters: Sequence[Master]) -> list[Master]:
    """The masters, each followed by its translations."""
    return [replace(each, lab=lab) for each in masters for lab in (each.lab, *each.lab.translations)]


def translate(labs: Sequence[Lab], code: str, extract: bool) -> list[str]:
    """Build the notebooks in one language. With `extract`, first write an entry for every paragraph into the .po file.

    Raises CourseError: no such lab is translated.
    """
    masters = [replace(master, lab=replace(master.lab, language=code)) for master in load_all(labs)]
    for source in (source for master in masters for source in _sources(master) if extract):
        if source.path.exists() or source.path.name.startswith("lab."):
            _save(source.path, source.updated(code))
    masters = [master for master in masters if master.lab.translation.exists()]
    if not masters:
        raise CourseError(
            f"no lab is translated into {code!r}: `lab build --lang {code} --extract 00` begins with one."
        )
    lines = [line for each in masters for line in _build(each.lab, make_notebook(each, Version.LEARNER))]
    return lines + translated_shares(masters)


def translated_shares(masters: Sequence[Master]) -> list[str]:
    """A line per translated lab: "lab 00 in zh: 100% translated"."""
    shares = [(master.lab, _sources(master)[0].share()) for master in masters if master.lab.language]
    return [f"lab {lab.number} in {lab.language}: {share:.0%} translated" for lab, share in shares]


def _sources(master: Master) -> list[Source]:
    return sources_of(master.lab, [cell.source for cell in master.cells if cell.kind == "markdown"])


def check_built(labs: Sequence[Lab]) -> list[str]:
    """Check that all learner notebooks match their masters. Returns a line per translation, with its translated share.

    Raises CourseFailure: some do not, or a translation is of text that the master no longer has; one line for each,
    with the remedy.
    """
    orphans = [lab for lab in labs if not lab.master.exists()]
    problems = [f"{lab.notebook} has no master; remove it, or write {lab.master}." for lab in orphans]
    masters = with_translations(load_all([lab for lab in labs if lab not in orphans]))
    for master in masters:
        lab = master.lab
        for source in _sources(master) if lab.language else ():
            stale = source.stale()
            remedy = f"run `lab build --lang {lab.language} --extract {lab.number}`"
            problems += [f"{source.path} {stale}; {remedy}."] * bool(stale)
        difference = _difference(lab.notebook, to_text(make_notebook(master, Version.LEARNER)))
        problems += [f"{lab.notebook} {difference}; run `lab build {lab.number}`."] * bool(difference)
    if problems:
        raise CourseFailure("\n".join(problems))
    return translated_shares(masters)


def build_instructor(labs: Sequence[Lab], folder: Path) -> list[str]:
    """Write the instructor versions, solutions included, to `folder`."""
    return [
        _save(folder / master.lab.notebook.name, to_text(make_notebook(master, Version.INSTRUCTOR)))
        for master in load_all(labs)
    ]


def build_nbgrader(labs: Sequence[Lab], folder: Path) -> list[str]:
    """Write nbgrader assignments to `folder`, a course folder: `source/NN_name/NN_name.ipynb`, and its settings."""
    from lablib.course.grading.assignment import make_assignment  # it can run checks, which import torch

    lines = [
        _save(folder / "source" / master.lab.name / master.lab.notebook.name, to_text(make_assignment(master)))
        for master in load_all(labs)
    ]
    return [*lines, write_config(folder)]


def _build(lab: Lab, notebook: NotebookNode) -> list[str]:
    if not _difference(lab.notebook, to_text(notebook)):
        return [f"{lab.name}: up to date"]
    moved = moved_from_labs(lab, notebook)
    _save(lab.notebook, to_text(notebook))
    return [*moved, f"{lab.name}: built"]


def _save(path: Path, text: str) -> str:
    try:
        write_text(path, text)
    except OSError as error:
        raise cannot_write(path, error) from None
    return f"{path}: built"


def _difference(path: Path, text: str) -> str:
    """The difference between a notebook's file and its expected text; "" if there is none."""
    try:
        found = read_text(path)
        if found == text:
            return ""
        return "has outputs or execution counts" if has_outputs(notebook_of(found)) else "differs from its master"
    except FileNotFoundError:
        return "is missing"
    except (OSError, ValueError):
        return "is not a notebook"


_TEMPLATE = Path(__file__).parent / "template"
_WORDS = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


def new_lab(labs: Path, number: str, name: str) -> Lab:
    """Write the folder of a new lab, such as ("05", "mixed_precision"), from the template into the labs folder.

    Raises:
        CourseError: no such number or name, or a lab has it already.
        CourseFailure: the folder cannot be written.
    """
    if is_installed(labs):
        raise CourseError("lab new writes a master: the labs of an installed package have none; run it in the project.")
    name = name.lower().replace("-", "_").replace(" ", "_")
    if not (number.isascii() and number.isdecimal() and len(number) <= 2):
        raise CourseError(f"a lab's number must be 0 to 99: got {number!r}; try `lab new 18 {name or 'name'}`.")
    if not _WORDS.fullmatch(name):
        raise CourseError(f"a lab's name must be words of letters and digits, joined by `_`: got {name!r}.")
    lab = Lab(f"{int(number):02d}_{name}", labs)
    taken = [other for other in find_labs(labs) if other.number == lab.number or other.name[3:] == name]
    if taken or lab.folder.exists():
        raise CourseError(f"there is a lab {(taken[0].name if taken else lab.name)} already: choose another number.")
    title = name.replace("_", " ").capitalize()
    try:
        for path in (lab.master, lab.checks, lab.wrong_answers):
            text = read_text(_TEMPLATE / f"{path.name}.template")
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, text.replace("{number}", lab.number).replace("{title}", title))
    except OSError as error:
        raise cannot_write(Path(error.filename or lab.folder), error) from None
    return lab
