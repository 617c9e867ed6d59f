"""Course of labs: build, run and check notebooks; hints and progress of a learner.

building       masters, and the notebooks built from them
checks         checks of exercises
running        labs in papermill and in JupyterLab; the doctor
grading        nbgrader
places         the labs folder and the files of each lab
work           the learner's copies
translation    labs and messages in another language, by .po files
progress       results of checks, saved
overview       `lab list` and `lab progress`
mine           answers that passed, as a package of the learner's
answers        answers that pass today, as functions
tracks         orders of labs for one audience, with hours
report         progress as JSON, as HTML, and for a class
class_page     the class on one screen: who is stuck
guess          guesses that lock when an answer shows, and their score
show_source    a solution, folded
table, errors  tables; errors of the command line

A notebook needs `checks_for`, `try_out`, `show_source`, `print_error` and `print_text`; a file of checks needs
`exercise`, `Expect` and the functions of `lablib.course.checks.rules`.
"""

from lablib.index import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
