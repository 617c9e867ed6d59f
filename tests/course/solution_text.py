"""The text of the solutions, for tests that look for it in copies of the course without solutions."""

import re
from collections.abc import Mapping, Sequence

from lablib.course.building.master import Master, read_master
from lablib.course.places import Lab


def squeezed(text: str) -> str:
    """Text without the spacing and quoting that differ between Python and JSON."""
    return re.sub(r"\\n|\s+", " ", text).replace('\\"', '"')


def solutions(master: Master) -> list[tuple[str, list[str]]]:
    """The lines of each exercise's solution."""
    regions = [
        (check.check_name or "", re.findall(r"### BEGIN SOLUTION\n(.*?)\n\s*### END", exercise.source, re.DOTALL))
        for exercise, check in master.exercises
    ]
    return [(name, [line.strip() for line in "\n".join(found).split("\n") if line.strip()]) for name, found in regions]


def assert_no_solution(files: Mapping[str, str], labs: Sequence[Lab], computing: tuple[str, ...]) -> None:
    """No file has the text of a solution of two lines or more; none outside `computing`, the beginnings of paths, has
    the longest line of one that the notebook does not give. lablib has the techniques, and a check may compute its
    reference: single lines of these are equal.
    """
    texts = {path: squeezed(text) for path, text in files.items()}
    assert not [path for path in texts if path.endswith(("/lab.py", "/wrong_answers.py"))]
    assert len([path for path in texts if path.endswith("checks.py")]) >= len(labs)
    for master in map(read_master, labs):
        given = squeezed("\n".join(cell.source for cell in master.cells if not cell.tagged("exercise")))
        for name, lines in solutions(master):
            whole, longest = squeezed("\n".join(lines)), squeezed(max(lines, key=len))
            if len(lines) > 1:
                assert not [path for path, text in texts.items() if whole in text], name
            elsewhere = [path for path in texts if not path.startswith(computing)]
            assert longest in given or not [path for path in elsewhere if longest in texts[path]], name
