"""Paths of a course: the labs folder, the labs in it, and the files of each lab.

    work/08_collectives.ipynb                        the learner's copy
    labs/08_collectives.ipynb                        the notebook as handed out (generated)
    labs/masters/08_collectives/lab.py               its source, the master, with solutions
    labs/masters/08_collectives/checks.py            one check for each exercise
    labs/masters/08_collectives/wrong_answers.py     answers that the checks must reject, and unusual right answers
    labs/masters/08_collectives/lab.zh.po            its text in another language, by paragraph (translation.py)
    labs/zh/08_collectives.ipynb                     the translated notebook; the copy is work/08_collectives.zh.ipynb

The labs folder is `$LAB_LABS`, or `labs/` here or in a parent folder, or the one next to the package, or the one in an
installed package, which has no masters. The learner's copies are in `$LAB_WORK`, or in `work/` next to the labs folder;
with the labs of an installed package, in `work/` here, or the `work/` of a parent folder that has copies.
"""

import os
import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

import lablib
from lablib.course.errors import CourseError
from lablib.text.language import language

_NAME = re.compile(r"\d\d_\w+")
_NOTEBOOK = re.compile(r"(\d\d_\w+)(?:\.([a-z]{2,3}))?\.ipynb")
_PACKAGE = Path(lablib.__file__).parent
_INSTALLED = Path("handed_out", "labs")  # below the package: setup.py


@dataclass(frozen=True, slots=True, order=True)
class Lab:
    """One lab: `name` is "08_collectives", `labs` the folder it is in. Its files need not exist.

    `language` is the code of a translation, such as "zh"; "" for English.
    """

    name: str
    labs: Path
    language: str = ""

    @property
    def number(self) -> str:
        return self.name[:2]

    @property
    def folder(self) -> Path:
        return self.labs / "masters" / self.name

    @property
    def master(self) -> Path:
        return self.folder / "lab.py"

    @property
    def checks(self) -> Path:
        return self.folder / "checks.py"

    @property
    def wrong_answers(self) -> Path:
        return self.folder / "wrong_answers.py"

    @property
    def translation(self) -> Path:
        return self.folder / f"lab.{self.language}.po"

    @property
    def translations(self) -> "list[Lab]":
        """This lab in each language that it is translated into."""
        codes = [path.name.split(".")[1] for path in sorted(self.folder.glob("lab.*.po"))]
        return [replace(self, language=code) for code in codes]

    @property
    def chosen(self) -> "Lab":
        """This lab in the reader's language (text/language.py), if it is translated into it.

        Raises CourseError: LAB_LANG is no code of a language.
        """
        try:
            lab = replace(self, language=self.language or language())
        except ValueError as error:
            raise CourseError(str(error)) from None
        return lab if lab.translation.is_file() or lab.notebook.is_file() else self

    @property
    def notebook(self) -> Path:
        return self.labs / self.language / f"{self.name}.ipynb"

    @property
    def work(self) -> Path:
        suffix = f".{self.language}" if self.language else ""
        return work_folder(self.labs) / f"{self.name}{suffix}.ipynb"


def work_folder(labs: Path) -> Path:
    """The folder of the learner's copies of these labs. It need not exist."""
    chosen = os.environ.get("LAB_WORK")
    return Path(os.path.expanduser(chosen)).absolute() if chosen else home_folder(labs) / "work"


def home_folder(labs: Path) -> Path:
    """The folder of work/ and runs/: the one that holds the labs folder; for an installed package, see above."""
    if not is_installed(labs):
        return labs.parent
    here = Path.cwd()
    return next((each for each in (here, *here.parents) if any((each / "work").glob("[0-9][0-9]_*.ipynb"))), here)


def is_installed(labs: Path) -> bool:
    """Whether these are the labs of an installed package: without masters, and nothing is written there."""
    return labs.resolve() == (_PACKAGE / _INSTALLED).resolve()


def find_labs_folder(start: Path | None = None) -> Path:
    """The labs folder, searched from `start` (default: the current directory) in the order above.

    Raises CourseError: there is none, or `$LAB_LABS` names a folder that does not exist.
    """
    chosen = os.environ.get("LAB_LABS")
    if chosen:
        folder = Path(os.path.expanduser(chosen)).resolve()
        if not folder.is_dir():
            raise CourseError(f"LAB_LABS must name the labs folder: {folder} is no folder; unset it or correct it.")
        return folder
    here = (start or Path.cwd()).resolve()
    around = [parent / "labs" for parent in (here, *here.parents, _PACKAGE.parent)]
    for folder in (*around, _PACKAGE / _INSTALLED):
        if folder.is_dir() and ((folder / "masters").is_dir() or find_labs(folder)):  # not another folder called `labs`
            return folder
    raise CourseError(
        f"no labs folder in {here} or above it: run `lab` inside the project, or set LAB_LABS to its labs/ folder."
    )


def find_labs(folder: Path) -> list[Lab]:
    """Every lab with a master or a notebook in this folder, in order of number."""
    names = [path.parent.name for path in (folder / "masters").glob("*/lab.py")]
    names += [path.stem for path in folder.glob("*.ipynb")]
    return sorted({Lab(name, folder) for name in names if _NAME.fullmatch(name)})


def some_labs(folder: Path) -> list[Lab]:
    """As `find_labs`. Raises CourseError: there is none."""
    if labs := find_labs(folder):
        return labs
    raise CourseError(f"no labs in {folder}: expected masters/NN_name/lab.py or NN_name.ipynb; see masters/README.md.")


def find_lab(text: str, folder: Path) -> Lab:
    """Find a lab by "9", "09", "09_data_parallel", "data_parallel", or the path of one of its files.

    Raises CourseError: no such lab; the message has the nearest names.
    """
    path = Path(text)
    named = _lab_of(path.resolve(), folder) if path.exists() else None
    if named is not None:
        return named
    labs = sorted(some_labs(folder), key=lambda lab: not lab.folder.is_dir())  # notebooks without a folder come last
    wanted = path.stem if path.suffix == ".ipynb" else text
    for lab in labs:
        if wanted in (lab.name, lab.name[3:]) or (wanted.isdecimal() and int(wanted) == int(lab.number)):
            return lab
    nearest = get_close_matches(wanted.lower(), [name for lab in labs for name in (lab.name, lab.name[3:])], n=1)
    hint = f" did you mean {nearest[0]!r}?" if nearest else ""
    raise CourseError(f"unknown lab {text!r}:{hint} Valid: {', '.join(lab.name for lab in labs)}.")


def _lab_of(path: Path, labs: Path) -> Lab | None:
    """The lab of a notebook, a folder or a file in its folder; a learner's copy belongs to a lab in `labs`."""
    found = _NOTEBOOK.fullmatch(path.name)
    if found:
        if path.parent == work_folder(labs).resolve():
            return Lab(found[1], labs, found[2] or "")
        is_translated = path.parent.parent == labs.resolve()
        return Lab(found[1], labs, path.parent.name) if is_translated else Lab(found[1], path.parent)
    folder = path if path.is_dir() else path.parent
    is_masters = folder.parent.name == "masters" and _NAME.fullmatch(folder.name)
    return Lab(folder.name, folder.parents[1]) if is_masters else None
