"""`lab capstone`: a report on a planned training, from its brief to the leader board.

    lab capstone briefs                                 the tasks
    lab capstone new one-billion report.toml            a report to fill in
    lab capstone predict report.toml parallel.tensor=4  the planner's numbers, of the plan with changes
    lab capstone lock report.toml                       fix choices and predictions, before the runs
    lab capstone run report.toml [--only large]         the small run for real, the large one on shapes
    lab capstone run report.toml --mine work            the small run with the learner's answers of labs 04, 05, 08, 09
    lab capstone check report.toml                      findings and points; exit code 1 if there are findings
    lab capstone render report.toml --out page.html     one page (.html or .md), without network
    lab capstone board reports/                         all reports of a folder, in order

Exit code 1 of `check` and `render`: the report has findings; the page is written all the same. Also 1, and no page: the
file is no report, such as a text instead of a number.
"""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lablib.cli.train import errors_in_a_sentence
from lablib.course.errors import CourseError, CourseFailure
from lablib.course.table import table
from lablib.text.files import check_writable, write_text
from lablib.text.toml import toml_value
from lablib.text.units import plural

if TYPE_CHECKING:
    from lablib.capstone.consistency import Finding
    from lablib.capstone.report import Report
    from lablib.capstone.small_run import Parts


def capstone_command(options: argparse.Namespace) -> int:
    """Do one action. CourseError: an invalid request; CourseFailure: a run failed."""
    with errors_in_a_sentence():
        try:
            return _ACTIONS[options.action](options)
        except OSError as error:
            raise CourseError(str(error)) from error


def _briefs(options: argparse.Namespace) -> int:
    from lablib.capstone.brief import MEASURES, brief_names, find_brief

    for name in brief_names():
        brief = find_brief(name)
        print(f"{brief.name}: {brief.title}\n  {brief.text}")
        print(
            f"  {brief.gpus} GPUs of {brief.cluster}, {brief.gpu_hours:,g} GPU hours, {brief.days:g} days; goal "
            f"{brief.goal_loss:g} nats; order: {MEASURES[brief.measure]}\n"
        )
    return 0


def _new(options: argparse.Namespace) -> int:
    from lablib.capstone.brief import find_brief, num_parameters
    from lablib.capstone.report import CHOICES
    from lablib.train.config import ModelConfig

    path, template = _file(options, "new", 2), Path(__file__).parents[1] / "capstone" / "report.toml.template"
    if path.exists():
        raise CourseError(f"{path} must be a new file: it exists; give another name")
    brief = find_brief(options.words[0])
    shared: dict[str, Any] = {
        "vocab_size": brief.vocab_size,
        "max_seq_len": brief.seq_len,
        "num_experts": brief.num_experts,
    }
    models = (
        ModelConfig(num_layers=layers, d_model=width, num_heads=width // 128, **shared)
        for width in range(512, 16_384, 512)  # heads and layers are multiples of 4, so that axes can divide them
        for layers in range(width // 128, width // 64 + 1, 4)
    )
    model = next((one for one in models if num_parameters(one) >= brief.min_parameters), ModelConfig(**shared))
    write_text(
        path,
        template.read_text("utf-8").format(
            brief=toml_value(options.words[0]),
            ranks=brief.small.ranks,
            steps=brief.small.steps,
            gpus=brief.gpus,
            cluster=brief.cluster,
            batch_size=4 * brief.gpus,
            seq_len=brief.seq_len,
            reasons="\n".join(f'{name} = ""' for name in CHOICES),
            **{name: getattr(model, name) for name in ("num_layers", "d_model", "num_heads")},
            vocab_size=brief.vocab_size,
            num_experts=brief.num_experts,
        ),
    )
    print(f"{path}: written. Fill it in; then `lab capstone lock {path}` and `lab capstone run {path}`.")
    return 0


def _predict(options: argparse.Namespace) -> int:
    report = _read(_file(options, "predict"))
    from lablib.capstone.consistency import changed
    from lablib.capstone.large_run import plan_step
    from lablib.capstone.quantities import gpu_hours

    report = replace(report, large=changed(report.large, options.passed_on))
    planned = plan_step(report.large, report.brief.cluster, report.brief.gpus)
    print(planned.sentence())
    hours = gpu_hours(report, planned.step_time_s)
    print(f"step_s = {planned.step_time_s:.6g}\nmemory_bytes = {planned.peak_memory_bytes:.6g}")
    print(f"gpu_hours = {hours:.6g}\nloss = {report.brief.loss(report.large):.4f}")
    return 0


def _lock(options: argparse.Namespace) -> int:
    path = _file(options, "lock")
    report = _read(path)
    from lablib.capstone.consistency import findings_before
    from lablib.capstone.lock import locked, now
    from lablib.capstone.report import write_runs

    report = locked(report, now())
    write_runs(report, path)
    assert report.lock is not None
    print(f"{path}: locked at {report.lock.at}, digest {report.lock.sha256[:12]}. Runs from before are removed.")
    if found := findings_before(report):
        print("Correct these now, and lock again; after the runs a correction breaks the lock:")
        print("\n".join(map(str, found)))
    return 0


def _run(options: argparse.Namespace) -> int:
    from lablib.capstone.lock import checked_lock

    path = _file(options, "run")
    report = _read(path)
    check_writable(path)
    checked_lock(report)
    from lablib.capstone.large_run import simulate_large
    from lablib.capstone.quantities import QUANTITIES, measured, with_runs
    from lablib.capstone.report import write_runs
    from lablib.capstone.small_run import train_small

    if options.only != "large":
        parts, notes = _own_parts(options, report)
        print("".join(f"{note}\n" for note in notes), end="")
        print(f"The learner's own code: {', '.join(parts.names) or 'none; the library trains'}.")
        report = with_runs(report, small=train_small(report, options.backend, parts))
        write_runs(report, path)
    if options.only != "small":
        report = with_runs(report, large=simulate_large(report))
        write_runs(report, path)
    rows = []
    for name, value in measured(report).items():
        quantity, predicted = QUANTITIES[name], getattr(report.predicted, name)
        said = "" if predicted is None else quantity.text(predicted)
        error = "" if predicted is None else quantity.error_text(quantity.error(predicted, value))
        rows.append((quantity.title, said, quantity.text(value), error))
    print(table(("quantity", "predicted", "measured", "error"), rows))
    print(f"{path}: written. Explain the errors in [reconciled.*]; then `lab capstone check {path}`.")
    return 0


def _own_parts(options: argparse.Namespace, report: "Report") -> "tuple[Parts, list[str]]":
    """Parts of the small run from the learner's notebooks, and a note for each answer that is left out."""
    from lablib.capstone.small_run import ANSWERS, Parts, parts_that_fit
    from lablib.course.answers import own_answers

    if options.mine is False:
        return Parts(), []
    found, notes = own_answers(ANSWERS, Path(options.mine) if options.mine else None)
    parts, others = parts_that_fit(report, found)
    return parts, notes + others


def _read(path: Path) -> "Report":
    """The report of a file. Actions read it before they import torch, so that a wrong file is an error at once."""
    from lablib.capstone.report import read_report

    return read_report(path)


def _read_and_check(options: argparse.Namespace, action: str) -> "tuple[Report, list[Finding]]":
    path = _file(options, action)
    try:
        report = _read(path)
    except ValueError as error:
        raise (CourseFailure if path.is_file() else CourseError)(str(error)) from None
    from lablib.capstone.consistency import findings

    return report, findings(report, options.simulation)


def _check(options: argparse.Namespace) -> int:
    report, found = _read_and_check(options, "check")
    from lablib.capstone.rubric import machine_points, rubric

    for each in found:
        print(each)
    criteria = rubric(report, found)
    rows = [
        (each.name, "instructor" if each.points is None else f"{each.points:g}", str(each.most), each.text)
        for each in criteria
    ]
    print(("\n" if found else "") + table(("criterion", "points", "of", "why"), rows))
    points, most = machine_points(criteria)
    print(f"{plural(len(found), 'findings')}; {points:g} of {most} points that a program gives.")
    return 1 if found else 0


def _render(options: argparse.Namespace) -> int:
    out = Path(options.out or Path(_file(options, "render")).with_suffix(".html"))
    if out.suffix not in (".html", ".md"):
        raise CourseError(f"--out must be a .html or .md file: got {out}; try --out page.html")
    report, found = _read_and_check(options, "render")
    from lablib.capstone.page import as_html, as_markdown

    write_text(out, (as_html if out.suffix == ".html" else as_markdown)(report, found))
    print(f"{out}: written, with {plural(len(found), 'findings')}.")
    return 1 if found else 0


def _board(options: argparse.Namespace) -> int:
    from lablib.capstone.board import HEADING, read_board

    board = read_board(_file(options, "board"), options.simulation)
    print(table(HEADING, board.rows()))
    if best := board.best_predictor():
        print(f"The best prediction: {best.author or best.file}, off by a factor of {best.factor:.2f} on average.")
    return 0


_ACTIONS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "briefs": _briefs,
    "new": _new,
    "predict": _predict,
    "lock": _lock,
    "run": _run,
    "check": _check,
    "render": _render,
    "board": _board,
}


def _file(options: argparse.Namespace, action: str, count: int = 1) -> Path:
    """The last of the words after an action. CourseError: another number of words."""
    if len(options.words) != count:
        usage = {"new": "BRIEF FILE.toml", "board": "FOLDER"}.get(action, "FILE.toml")
        raise CourseError(f"lab capstone {action} takes {usage}: got {' '.join(options.words) or 'nothing'}")
    return Path(options.words[-1])
