"""Validation of the planner against published runs: rows, rules for unstated settings, and errors.

fields.py           fields of a row
rows.py             a file of published measurements, read strictly
architecture.py     transformer of a row
machine.py          cluster of a row
synonyms.py         other names that sources use
row_software.py     software of a row
software.py         precision, recomputation, optimizer and offload of a row
splits.py           split over GPUs
case.py             arguments of the predictor
measured.py         measured time and memory of a step
baseline.py         a naive estimate, to compare every error with
score.py            errors by family and in total
tables.py           tables of the report
conditions.py       errors with more and with less knowledge of a row
page.py             the report as a page
measured_runs.py    the rows with the planner's answers, as points
evidence.py         measured runs near a prediction, and a band for its step time
doubts.py           limits of its figures
cross_validate.py   constants fitted without one source, tested on it
constants.py        the fitted constants, and their bounds
explain.py          a measured step next to its prediction, and the changed argument that comes nearest
"""

# ruff: noqa: F401  (the names of the package)
from lablib.validation.case import Case, cases_of
from lablib.validation.cross_validate import Constant, HeldOut, cross_validate
from lablib.validation.evidence import Evidence, evidence_of
from lablib.validation.explain import Change, Explanation, explain
from lablib.validation.rows import PublishedRow, published_mixtures, published_others, published_rows, read_rows
from lablib.validation.score import ScoreReport, score
