"""Labs as a course: building, running and checking them, hints, progress. In reading order:

    places        where labs and their files live           new           a folder for a lab of one's own
    master        a lab's one source                        parameters    its knobs
    solution      from a solution to its stub               lint          the rules of a master
    notebook      learner, instructor and nbgrader versions build         notebooks from masters
    exercise      how a check is declared                   check         checks and hints in a notebook
    expect        the words checks are written in           rules         rules that many checks share
    draw          inputs drawn anew                         observe       what a call did to its arguments
    assignment    a lab as an nbgrader assignment       grading       nbgrader's settings
    grades_export nbgrader's table of scores            regrade       earlier submissions, graded again
    export        the course without solutions
    trial         one answer tried                          time_limit    ... for no longer than this
    result        what a check says                         progress      what a learner has done
    proof         proving a check: solution, stub, wrong answers
    try_out       a look at one's own function              show_source   a solution, folded
    execute       running a lab with papermill              jupyter       opening one in JupyterLab
    doctor        what works on this machine                printing      errors and long text, for a notebook's reader
    recorded      a lab's comparison from a quiet machine

A notebook needs `checks_for`, `try_out`, `show_source`, `print_error` and `print_text`; a file of checks needs
`exercise`, `Expect` and the functions of `lablib.course.rules`.
"""

from lablib.course.check import Check, Checks, checks_for
from lablib.course.exercise import Exercise, exercise
from lablib.course.expect import Expect
from lablib.course.printing import print_error, print_text
from lablib.course.recorded import recorded_comparison
from lablib.course.result import Hint, Result, Source
from lablib.course.show_source import show_source
from lablib.course.try_out import try_out

__all__ = [
    "Check",
    "Checks",
    "Exercise",
    "Expect",
    "Hint",
    "Result",
    "Source",
    "checks_for",
    "exercise",
    "print_error",
    "print_text",
    "recorded_comparison",
    "show_source",
    "try_out",
]
