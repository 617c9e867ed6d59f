"""`lab validate`: compare the planner with published runs, and print its errors."""

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from lablib.course.errors import CourseError, CourseFailure
from lablib.course.table import table
from lablib.text.files import read_text, write_text
from lablib.text.units import plural
from lablib.validation import tables
from lablib.validation.conditions import (
    CONDITIONS_HEADING,
    REFUSED_HEADING,
    condition_lines,
    refused_lines,
    software_name,
    with_default_software,
)
from lablib.validation.cross_validate import HeldOut, cross_validate, held_out_text, read_held_out
from lablib.validation.page import Results, markdown, mixtures_sentence, others_sentence, with_section
from lablib.validation.rows import PublishedRow, published_mixtures, published_others, published_rows, read_rows
from lablib.validation.score import Predictor, score

_WORST = 5


def validate_command(
    file: Path | None,
    as_json: bool = False,
    page: Path | None = None,
    readme: Path | None = None,
    leaves_out: bool = False,
) -> int:
    """Score the rows of `file` (None: the published ones of lablib) and print the report.

    Of lablib's rows, mixtures of experts have a separate report, as they were not used in any fit.

    Arguments:
        as_json: print JSON instead of tables.
        page: also write the report there, with its picture next to it.
        readme: a file with a marked section for the picture and the error; needs `page`.
        leaves_out: fit the constants without each source and each software in turn, which takes many minutes; saved
            next to the page.

    Raises:
        CourseError: the rows cannot be read or are impossible, or invalid arguments.
        CourseFailure: a file cannot be written.
    """
    if page is not None and page.suffix != ".md":
        raise CourseError(f"a page is a Markdown file ending in .md: got {page}; try {page.stem}.md")
    if readme is not None and page is None:
        raise CourseError("--readme needs --page: the README links to the page; add --page docs/validation.md")
    try:
        rows = published_rows() if file is None else read_rows(file)
        report = score(rows, _planner())
        # Refuse a report without rows: raise the error of the first row that should be scored.
        meant = {row.line for row in rows if row.is_scorable}
        reasons = [f"line {one.line}, {one.id}: {one.reason}" for one in report.skipped if one.line in meant]
        if reasons and not report.scored:
            others = f" (and {len(reasons) - 1} more rows)" if len(reasons) > 1 else ""
            raise ValueError(f"no row can be scored: {reasons[0]}{others}")
        results = Results(
            report,
            held_out=_leave_out(rows, lambda row: row.family) if leaves_out else [],
            without_software=_leave_out(rows, software_name) if leaves_out else [],
            mixtures=score(published_mixtures(), _planner()) if file is None else None,
            others=score(published_others(), _planner()) if file is None else None,
            default=score(with_default_software(rows), _planner()),
        )
    except ValueError as error:
        raise CourseError(str(error)) from None
    if page is not None:
        _write(results, page, readme)
    if as_json:
        separate = {name: getattr(results, name) for name in ("mixtures", "others")}
        answer = report.to_json() | {name: each.to_json() for name, each in separate.items() if each}
        print(json.dumps(answer, indent=2))
    else:
        print(text(results, rows))
    return 0


def text(results: Results, rows: Sequence[PublishedRow] = ()) -> str:
    """The report as tables for a terminal; the unused fields of `rows` are named."""
    report, held_out, without_software, mixtures, others, default = results
    parts = [table(tables.HEADING, tables.time_lines(report))]
    if report.memory()["rows"]:
        parts.append(table(tables.MEMORY_HEADING, tables.memory_lines(report)))
    if held_out:
        parts.append(table(tables.HELD_OUT_HEADING, tables.held_out_lines(held_out)))
    if default is not None:
        parts.append(table(CONDITIONS_HEADING, condition_lines(report, default, held_out, without_software)))
    if report.scored:
        parts.append(table(tables.SOFTWARE_HEADING, tables.software_lines(report)))
    if report.timed:
        parts.append(table(tables.WORST_HEADING, tables.worst_lines(report, _WORST)))
    if mixtures is not None and mixtures.all()["rows"]:
        parts += [mixtures_sentence(mixtures), table(tables.HEADING, tables.time_lines(mixtures))]
    if others is not None and others.all()["rows"]:
        parts += [others_sentence(others), table(tables.HEADING, tables.time_lines(others))]
    if report.skipped:
        parts.append(table(REFUSED_HEADING, refused_lines(report.skipped)))
        parts.append(
            table(("not scored", "line", "why"), [(one.id, str(one.line), one.reason) for one in report.skipped])
        )
    if unused := Counter(name for row in rows for name in row.unused):
        parts.append(
            "Fields not used: " + ", ".join(f"{name} ({plural(n, 'rows')})" for name, n in sorted(unused.items()))
        )
    return "\n\n".join(parts)


def _planner() -> Predictor:
    from lablib.plan.predict import predict

    return predict


def _leave_out(rows: Sequence[PublishedRow], group: Callable[[PublishedRow], str]) -> list[HeldOut]:
    """Every group of rows left out in turn, under a progress bar."""
    from tqdm import tqdm

    from lablib.validation.constants import constants, planner_with

    with tqdm(total=len(set(map(group, rows))) + 1, file=sys.stderr, ascii=True) as bar:

        def progress(source: str) -> None:
            bar.set_description_str(f"without {source}")
            bar.update()

        return cross_validate(rows, constants(), planner_with, progress=progress, group=group)


def _write(results: Results, page: Path, readme: Path | None) -> None:
    """Write the page, its picture and the held-out errors next to it, and the README's section."""
    from lablib.figures.plans.validation import validation_svg
    from lablib.validation.constants import constants

    picture, saved = page.with_suffix(".svg"), page
    try:
        for field, name in (("held_out", "held_out"), ("without_software", "held_out_software")):
            saved = page.with_name(f"{page.stem}_{name}.json")
            if fit := getattr(results, field):
                write_text(saved, held_out_text(fit, constants()))
            found = read_held_out(read_text(saved))[0] if saved.exists() else []
            results = results._replace(**{field: found})
        write_text(page, markdown(results, picture.name))
        write_text(picture, validation_svg(results.report))
        if readme is not None:
            to_picture, to_page = (Path(os.path.relpath(path, readme.parent)).as_posix() for path in (picture, page))
            write_text(readme, with_section(read_text(readme), results, to_picture, to_page))
    except OSError as error:
        raise CourseFailure(f"the page cannot be written to {page}: {error.strerror or error}") from None
    except ValueError as error:
        raise CourseError(f"{readme or saved}: {error}") from None
