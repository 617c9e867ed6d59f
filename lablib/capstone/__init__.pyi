# ruff: noqa: I001  (in reading order)
from .brief import Brief as Brief, SmallMachine as SmallMachine, brief_names as brief_names, find_brief as find_brief
from .report import (
    Alternative as Alternative,
    LargeRun as LargeRun,
    Lock as Lock,
    Predicted as Predicted,
    Reconciled as Reconciled,
    Report as Report,
    SmallRun as SmallRun,
    parse_report as parse_report,
    read_report as read_report,
    report_toml as report_toml,
    write_report as write_report,
)
from .lock import digest as digest, is_locked as is_locked, locked as locked, now as now
from .repeated_layers import StepCost as StepCost
from .large_run import plan_step as plan_step, simulate_large as simulate_large, simulate_step as simulate_step
from .small_run import Parts as Parts, train_small as train_small
from .quantities import (
    QUANTITIES as QUANTITIES,
    errors as errors,
    gpu_hours as gpu_hours,
    measured as measured,
    with_runs as with_runs,
)
from .consistency import Finding as Finding, changed as changed, findings as findings
from .rubric import Criterion as Criterion, machine_points as machine_points, rubric as rubric
from .page import as_html as as_html, as_markdown as as_markdown
from .board import Board as Board, Entry as Entry, read_board as read_board
