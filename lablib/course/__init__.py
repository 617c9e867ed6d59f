"""Labs as a course: building, running and checking them, hints, progress. In reading order:

    places        where labs and their files live
    master        a lab's one source                        parameters    its knobs
    solution      from a solution to its stub               lint          the rules of a master
    notebook      learner, instructor and nbgrader versions build         notebooks from masters
    check         checks, hints                             expect        the words checks are written in
    result        what a check says                         progress      what a learner has done
    proof         proving a check: solution, stub, wrong answers
    execute       running a lab with papermill              jupyter       opening one in JupyterLab
    doctor        what works on this machine                printing      errors and long text, for a notebook's reader
    recorded      a lab's comparison from a quiet machine

A notebook needs `checks_for`, `print_error` and `print_text`; a file of checks needs `exercise` and `Expect`.
"""

from lablib.course.check import Check, Checks, Exercise, checks_for, exercise
from lablib.course.expect import Expect
from lablib.course.printing import print_error, print_text
from lablib.course.recorded import recorded_comparison
from lablib.course.result import Hint, Result

__all__ = [
    "Check",
    "Checks",
    "Exercise",
    "Expect",
    "Hint",
    "Result",
    "checks_for",
    "exercise",
    "print_error",
    "print_text",
    "recorded_comparison",
]
