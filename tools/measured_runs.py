"""Write lablib/validation/measured_runs.jsonl: the published runs with the planner's answers (`make validation`)."""

from lablib.validation.measured_runs import FILE, compute_runs, runs_text

FILE.write_text(runs_text(compute_runs()), "utf-8")
