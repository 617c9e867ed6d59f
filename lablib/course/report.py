"""Reports of progress: JSON, an HTML page, and one table for a class (as a page: class_page.py).

    lab progress --json > ada.json                   one learner; progress.json itself has the same form
    lab progress --html > progress.html              one self-contained page
    lab progress --merge *.json --csv > class.csv    one row per learner, one column per exercise

A learner's name is the name of the file (ada.json), or of its folder if the file is progress.json (ada/progress.json).
Learners can edit their files: for grades use nbgrader (docs/teaching.md).
"""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from lablib.course.progress import Entry, Labs, entry_of, parse_progress
from lablib.course.table import table
from lablib.text.markup import html_page, in_html

Exercises = Sequence[tuple[str, str]]  # number of the lab, name of the exercise; in order
_CSS = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem; }
table { border-collapse: collapse; }
caption { text-align: left; padding-bottom: .5rem; }
th, td { text-align: left; padding: .25rem .75rem; border: 1px solid #888; vertical-align: top; }
th:first-child { position: sticky; left: 0; background: Canvas; }
td.passed { font-weight: bold; }
"""


def read_learners(paths: Sequence[Path]) -> tuple[dict[str, Labs], list[str]]:
    """The progress of each learner, by name; and a message for each file that is left out."""
    learners: dict[str, Labs] = {}
    left_out: list[str] = []
    for path in paths:
        name = path.absolute().parent.name if path.name == "progress.json" else path.stem
        try:
            labs = parse_progress(path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            left_out.append(
                f"{path} is left out: {reason.rstrip('.')}; ask for the file that `lab progress --json` writes."
            )
            continue
        if name in learners:
            left_out.append(f"{path} is left out: there is another file of {name}; name each as its learner.")
        else:
            learners[name] = labs
    return dict(sorted(learners.items())), left_out


def as_json(exercises: Exercises, labs: Labs) -> str:
    """One learner's progress, in the form of the progress file."""
    return json.dumps({"version": 1, **_counted(exercises, labs)}, indent=1)


def as_html(exercises: Exercises, labs: Labs) -> str:
    """One learner's progress as a page."""
    rows = []
    for number, name in exercises:
        entry = entry_of(labs, number, name)
        rows.append([f"{number} {name}", _state(entry), entry.passed_at[:10], str(entry.attempts), str(entry.hints)])
    heading = ["exercise", "state", "passed on", "attempts", "hints taken"]
    return _page("Progress", f"{_passed(exercises, labs)} of {len(exercises)} exercises are passed.", heading, rows)


def class_text(exercises: Exercises, learners: dict[str, Labs]) -> str:
    """One line per learner: exercises passed in each lab, and in total."""
    numbers = list(dict.fromkeys(number for number, _ in exercises))
    rows = []
    for learner, labs in learners.items():
        parts = [[one for one in exercises if one[0] == number] for number in numbers]
        rows.append([learner, *(f"{_passed(part, labs)}/{len(part)}" for part in [*parts, exercises])])
    return table(["learner", *numbers, "passed"], rows)


def class_csv(exercises: Exercises, learners: dict[str, Labs]) -> str:
    """One row per learner: number of exercises passed, and the state of each."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["learner", "passed", *(f"{number} {name}" for number, name in exercises)])
    for learner, labs in learners.items():
        # A spreadsheet would read such a name as a formula.
        safe = f"'{learner}" if learner[:1] in tuple("=+-@\t\r") else learner
        writer.writerow([safe, _passed(exercises, labs), *(_state(entry_of(labs, *one)) for one in exercises)])
    return text.getvalue()


def class_json(exercises: Exercises, learners: dict[str, Labs]) -> str:
    """Each learner's progress, in the form of `as_json`."""
    counted = {learner: _counted(exercises, labs) for learner, labs in learners.items()}
    return json.dumps({"version": 1, "learners": counted}, indent=1)


def _page(title: str, caption: str, heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A page with one table; the first cell of a row is its header."""
    head = "".join(f'<th scope="col">{in_html(cell)}</th>' for cell in heading)
    body = "\n".join(
        f'<tr><th scope="row">{in_html(name)}</th>'
        + "".join(
            f'<td class="passed">{cell}</td>' if cell == "passed" else f"<td>{in_html(cell)}</td>" for cell in cells
        )
        + "</tr>"
        for name, *cells in rows
    )
    main = f"""<h1>{in_html(title)}</h1>
<table>
<caption>{in_html(caption)}</caption>
<thead><tr>{head}</tr></thead>
<tbody>
{body}
</tbody>
</table>"""
    return html_page(title, _CSS, main)


def _counted(exercises: Exercises, labs: Labs) -> dict:
    listed: dict[str, dict[str, dict]] = {}
    for number, name in exercises:
        listed.setdefault(number, {})[name] = asdict(entry_of(labs, number, name))
    return {"passed": _passed(exercises, labs), "exercises": len(exercises), "labs": listed}


def _passed(exercises: Exercises, labs: Labs) -> int:
    return sum(entry_of(labs, number, name).is_passed for number, name in exercises)


def _state(entry: Entry) -> str:
    """One of three states, for any content of a learner's file."""
    return "passed" if entry.is_passed else "failed" if entry.status == "failed" else "not attempted"
