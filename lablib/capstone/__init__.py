"""Capstone: plan a training, predict it, run it, and reconcile; a report that is checked, scored and rendered.

    brief = find_brief("one-billion")                model, corpus, cluster, budget, small machine
    report = read_report("report.toml")              choices, predictions, runs, reconciliation
    findings(report)                                 numbers that disagree with one another
    rubric(report)                                   points that a program can give

briefs/       the briefs of the course, as TOML
brief         a brief: the task, and the measure of an answer
report        a report: its records, read and written as TOML
lock          the predictions' digest, taken before the runs
large_run     a step of the large run: predicted by the planner, and simulated on shapes
repeated_layers   cost of many layers from few, with context ranks
small_run     the small run: trained for real, with parts of the learner's
quantities    predicted and measured numbers under the same names, and their errors
consistency   findings: every number that can be recomputed is recomputed
rubric        points, by criteria that several plans can meet
figures       the small run's loss, predictions over measurements, the terms of the plan
page          the report as one HTML page or as Markdown
board         reports of a folder in the order of the brief's measure
"""

from lablib.index import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
