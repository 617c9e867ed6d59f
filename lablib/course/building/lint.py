"""Lint rules for masters, checked when labs are built.

 1  the first cell is text: `# Lab NN: Title`, with the number of the file, and a paragraph `**Question.** ...`
 2  one cell is tagged `parameters`, the first or second of the code cells; it has `interactive` and `quick`
 3  a cell `check = checks_for("NN")`, or `labNN.checks_for`, comes before the first check
 4  each exercise is followed by its check, and each check belongs to an exercise
 5  only cells tagged `exercise` hold solutions (others would reach the learner), and each can become a stub
 6  a cell tagged `check` ends in `check.name(answer)`; the name exists in the lab's file of checks, and is used once
 7  a cell between an exercise and its check tries the answer: `try_out(...)`
 8  each section has its minutes, at least those to read its words and code and to write its solutions;
    their sum, without sections tagged `further`, is at most 60
 9  names bound in a section tagged `further` are used only there, not in another one, since a reader may skip it
10  every parameter but `interactive` and `quick` is used by some cell
11  a cell's displayed value, a figure or a source, is its last line: a notebook drops the values of other lines
12  a line of code is at most 96 characters wide: next to a file list a notebook cuts off longer lines
13  no line inside a paragraph begins with `-`, `+`, `*` or `12.` and a space: a notebook would show a list
14  the first cell states the prerequisites, `**Prerequisites.** Lab 08; helpful: lab 02.`: earlier labs, or `None`; and
    if it states the time, `**Time.** 60 minutes`, that is the sum of its sections

A finding is one sentence with file and line.
"""

import ast
import re
from collections.abc import Iterator
from difflib import get_close_matches
from itertools import pairwise

from lablib.course.building.master import Cell, Master, at
from lablib.course.building.names import names
from lablib.course.building.parameters import REQUIRED
from lablib.course.building.solution import has_solution, to_stub
from lablib.course.errors import CourseError
from lablib.text.files import read_text

MAX_MINUTES = 60
MAX_WIDTH = 96
_WORDS_A_MINUTE, _LINES_A_MINUTE = 150, 4  # a technical text and code, read for the first time
_MINUTES_PER_SOLUTION = 2.5  # and half a minute for each of its lines
_SOLUTION = re.compile(r"#+ BEGIN SOLUTION$(.*?)#+ END SOLUTION$", re.DOTALL | re.MULTILINE)
_LINE, _COMMENT = (re.compile(pattern, re.MULTILINE) for pattern in (r"^\s*?(?!#|import |from )\S", r"^\s*#.*"))
_WORD, _SOURCES = re.compile(r"\S*\w\S*"), re.compile(r"^(?:#+ |\*\*)Sources", re.MULTILINE)


def lint(master: Master) -> list[CourseError]:
    rules = (
        *(_heading, _parameters, _checks_for, _pairs, _solutions, _check_names),
        *(_trials, _minutes, _further, _used_parameters, _dropped, _width, _lists),
        _prerequisites,
    )
    return [at(master, cell, message) for rule in rules for cell, message in rule(master)]


Findings = Iterator[tuple[Cell | None, str]]


def _heading(master: Master) -> Findings:
    first = master.cells[0] if master.cells else None
    if first is None or first.kind != "markdown" or not master.title:
        yield first, f"the first cell must be text that begins `# Lab {master.lab.number}: Title`; add it."
    elif f"# Lab {master.lab.number}" not in first.source and f"# {master.lab.number}" not in first.source:
        text = f"the heading must have the file's number, {master.lab.number}: got {first.source.splitlines()[0]!r}."
        yield first, text
    if not master.question:
        yield first, "the first cell must ask the lab's question: add a paragraph that begins `**Question.**`."


def _parameters(master: Master) -> Findings:
    code = [cell for cell in master.cells if cell.kind == "code"]
    tagged = [cell for cell in code if cell.tagged("parameters")]
    if len(tagged) != 1:
        yield (
            tagged[1] if tagged else None,
            f"exactly one cell must be tagged `parameters`: got {len(tagged)}; "
            + ("merge them." if tagged else 'add `# %% tags=["parameters"]`.'),
        )
        return
    if tagged[0] not in code[:2]:
        text = "the parameters must be the first or second code cell, so that every later cell sees them; move them up."
        yield tagged[0], text
    try:
        missing = [name for name in REQUIRED if name not in {parameter.name for parameter in master.parameters}]
    except CourseError as error:
        yield tagged[0], str(error)
        return
    if missing:
        yield tagged[0], f"the parameters must include {', '.join(REQUIRED)}: missing {', '.join(missing)}."


def _checks_for(master: Master) -> Findings:
    checks = [cell for cell in master.cells if cell.tagged("check")]
    before = [cell for cell in master.cells if checks and cell.line < checks[0].line and cell.kind == "code"]
    statements = {ast.unparse(node) for cell in before for node in ast.parse(cell.source).body}
    wanted = re.compile(rf"check = (\w+\.)?checks_for\('{master.lab.number}'\)")
    if checks and not any(map(wanted.fullmatch, statements)):
        line = f'check = checks_for("{master.lab.number}")'
        yield checks[0], f"a cell before the first check must say `{line}`; add it to the imports."


def _pairs(master: Master) -> Findings:
    waiting: Cell | None = None
    for cell in master.cells:
        if cell.tagged("exercise"):
            if waiting:
                text = "an exercise must be followed by its check before the next exercise; add a cell tagged `check`."
                yield waiting, text
            waiting = cell
        elif cell.tagged("check"):
            if waiting is None:
                yield cell, "a check must come after its own exercise; add a cell tagged `exercise` above it."
            waiting = None
    if waiting:
        yield waiting, "an exercise must be followed by its check; add a cell tagged `check`."


def _solutions(master: Master) -> Findings:
    for cell in master.cells:
        marked = cell.kind == "code" and has_solution(cell.source)
        if cell.tagged("exercise") and not marked:
            yield cell, "an exercise must hold a solution between `### BEGIN SOLUTION` and `### END SOLUTION`; mark it."
        elif not cell.tagged("exercise") and "SOLUTION" in cell.source and has_solution(cell.source):
            yield (
                cell,
                'a solution must be in a code cell tagged `exercise`, or learners would see it; add tags=["exercise"].',
            )
        elif marked:
            try:
                to_stub(cell.source)
            except CourseError as error:
                yield cell, str(error)


def _check_names(master: Master) -> Findings:
    path = master.lab.checks
    declared = declared_checks(read_text(path)) if path.is_file() else []
    seen: set[str] = set()
    for cell in master.cells:
        if not cell.tagged("check"):
            continue
        name, call = cell.check_name, cell.check_call
        if name is None or call is None or not call.args:
            yield cell, "a cell tagged `check` must end in `check.name(answer)`, so that its result is shown; add it."
        elif not path.is_file():
            yield cell, f"check {name!r} has no file: expected {path}; write it."
        elif name not in declared:
            nearest = get_close_matches(name, declared, n=1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"it has: {', '.join(declared) or 'none'}."
            yield cell, f"check {name!r} is not in {path.name}: {hint}"
        elif name in seen:
            yield cell, f"each check must be used once: {name!r} is used again; give the second exercise its own check."
        seen.add(name or "")


def _trials(master: Master) -> Findings:
    for exercise, check in master.exercises:
        between = [cell for cell in master.cells if exercise.line < cell.line < check.line]
        if not any(cell.kind == "code" and "try_out(" in cell.source for cell in between):
            yield check, "a learner must be able to try an answer: add a cell with `try_out(...)` above the check."


def _minutes(master: Master) -> Findings:
    for section in master.sections:
        if not section.minutes > 0:
            yield section.cells[0], f"section {section.title!r} must state its time: add `minutes=5` to its cell."
        elif section.minutes < (least := int(sum(map(_least_minutes, section.cells)))):
            text = f"section {section.title!r} takes {least} minutes or more, by its words, code and solutions: got "
            yield section.cells[0], f"{text}{section.minutes:g}; state more, or move a part to a section `further`."
    if master.minutes > MAX_MINUTES:
        yield (
            None,
            f"a lab is one hour: its sections take {master.minutes:g} minutes; shorten it, or tag a section `further`.",
        )


def _least_minutes(cell: Cell) -> float:
    """Minutes to read a cell and to write its solution. Imports and sources are not read; a stub is read as text."""
    solution, rest = "".join(_SOLUTION.findall(cell.source)), _SOLUTION.sub("", cell.source)
    is_code = cell.kind == "code" and not solution
    text = "\n".join(_COMMENT.findall(rest)) if is_code else _SOURCES.split(rest)[0]
    lines = len(_LINE.findall(rest)) if is_code else 0
    written = _MINUTES_PER_SOLUTION + len(_LINE.findall(solution)) / 2 if solution else 0.0
    return len(_WORD.findall(text)) / _WORDS_A_MINUTE + lines / _LINES_A_MINUTE + written


def _further(master: Master) -> Findings:
    section_of = {cell: section for section in master.sections if section.is_further for cell in section.cells}
    bound, always = dict[str, Cell](), set[str]()  # names of sections that may be skipped; names of the main path
    for cell in (cell for cell in master.cells if cell.kind == "code"):
        binds, uses = names(cell.source)
        section = section_of.get(cell)
        for name in sorted((uses - binds) & bound.keys()):
            if section is None or (section_of[bound[name]] is not section and name not in always):
                text = f"a reader may skip cells tagged `further`: this cell uses {name!r} of line {bound[name].line}."
                yield cell, text
        if section is None:
            always |= binds
            bound = {name: where for name, where in bound.items() if name not in binds}
        else:
            bound |= dict.fromkeys(binds, cell)


def _used_parameters(master: Master) -> Findings:
    knobs = next((cell for cell in master.cells if cell.tagged("parameters")), None)
    used = [names(cell.source)[1] for cell in master.cells if cell.kind == "code" and cell is not knobs]
    try:
        needed = [parameter.name for parameter in master.parameters if parameter.name not in REQUIRED]
        unused = [name for name in needed if not any(name in found for found in used)]
    except CourseError:
        return  # reported by _parameters
    if unused:
        yield knobs, f"every parameter must be used by some cell: {', '.join(unused)} is not; remove it."


_SHOWN = ("show_source", "figure", "figure_", "_calculator")  # functions with these names return a value to display


def _dropped(master: Master) -> Findings:
    for cell in master.cells:
        for statement in ast.parse(cell.source).body[:-1] if cell.kind == "code" else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                name = ast.unparse(statement.value.func).split(".")[-1]
                if name in _SHOWN or name.startswith(_SHOWN[2]) or name.endswith(_SHOWN[3]):
                    text = f"only the last line of a cell is shown: move `{name}(...)` there, or wrap it in `show`."
                    yield cell, text


def _width(master: Master) -> Findings:
    for cell in master.cells:
        wide = [line for line in cell.source.splitlines() if cell.kind == "code" and len(line) > MAX_WIDTH]
        for line in wide:
            yield cell, f"a line of code is at most {MAX_WIDTH} characters wide: got {len(line)}, {line!r}; break it."


def declared_checks(source: str) -> list[str]:
    """Names of the functions under `@exercise(...)` in a file of checks, read without running it."""
    return [
        node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(d, ast.Call) and ast.unparse(d.func).endswith("exercise") for d in node.decorator_list)
    ]


_ITEM = re.compile(r"([-+*]|\d+[.)]) ")


def _lists(master: Master) -> Findings:
    for cell in (cell for cell in master.cells if cell.kind == "markdown"):
        for before, line in pairwise(cell.source.splitlines()):
            goes_on = before.strip() and not before.startswith(" ") and not _ITEM.match(before)
            if goes_on and _ITEM.match(line):
                yield cell, f"a line in a paragraph would begin a list: got {line[:30]!r}; break the line elsewhere."


def _prerequisites(master: Master) -> Findings:
    first, stated, own = master.cells[0] if master.cells else None, master.prerequisites, master.lab.number
    if stated is None:
        yield first, "the first cell must name the labs before it: add `**Prerequisites.** Lab 00.`, or None."
    late = [number for number in (*stated.needed, *stated.helpful) if number >= own] if stated else []
    if late:
        yield first, f"prerequisites must be labs before {own}: got {', '.join(late)}; name earlier ones."
    if master.stated_minutes and float(master.stated_minutes) != master.minutes:
        both = f"{master.stated_minutes} and {master.minutes:g}"
        yield first, f"the stated time must be the sum of the sections: got {both}; correct one of them."
