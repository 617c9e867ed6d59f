"""Comparison of the planner with published runs: rows, rules for what a source leaves open, and errors.

fields.py           what a row may hold
rows.py             a file of published measurements, read strictly
architecture.py     which transformer a row is about
machine.py          which cluster
synonyms.py        what sources call the same thing
software.py         which software, precision and recomputation
splits.py           which split over GPUs
case.py             what the predictor is asked
measured.py         what the row says a step took
baseline.py         the naive estimate beside which every error stands
score.py            the errors, by family and in all
tables.py           its tables
page.py             the report for people
doubts.py           what its figures do not show
cross_validate.py   are the constants physics? Leave one source out
constants.py        which those are, and their bounds
"""

from lablib.validation.case import Case, cases_of
from lablib.validation.cross_validate import Constant, HeldOut, cross_validate
from lablib.validation.rows import Row, published_mixtures, published_rows, read_rows
from lablib.validation.score import Report, score

__all__ = [
    "Row",
    "read_rows",
    "published_rows",
    "published_mixtures",
    "Case",
    "cases_of",
    "Report",
    "score",
    "Constant",
    "HeldOut",
    "cross_validate",
]
