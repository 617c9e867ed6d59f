"""`lab new 05 optimizers`: create a lab from the template, which builds, runs and passes."""

import re
from pathlib import Path

from lablib.course.errors import CourseError, cannot_write
from lablib.course.places import Lab, find_labs
from lablib.text.files import read_text, write_text

_TEMPLATE = Path(__file__).parent / "template"
_WORDS = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


def new_lab(labs: Path, number: str, name: str) -> Lab:
    """Write the folder of a new lab, such as ("05", "mixed_precision"), from the template into the labs folder.

    Raises:
        CourseError: no such number or name, or a lab has it already.
        CourseFailure: the folder cannot be written.
    """
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
