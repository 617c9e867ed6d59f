"""The class page: one row per learner, those who need help first; 30 learners fit a screen of 1280 x 720.

    stuck      the last exercise that was tried has 3 attempts or more and is not passed
    quiet      exercises are left, and there was no attempt and no hint for 7 days; or none at all
    working    exercises are left
    done       every exercise is passed

The stuck come in order of attempts and hints, the quiet in order of their last activity, those who work in order of
exercises passed. The page needs no script and no other file.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from lablib.course.progress import Entry, Labs, entry_of
from lablib.text.markup import html_page, in_html
from lablib.text.units import plural

Exercises = Sequence[tuple[str, str]]  # number of the lab, name of the exercise; in order
STUCK_ATTEMPTS = 3
QUIET = timedelta(days=7)
_STATES = ("stuck", "quiet", "working", "done")


@dataclass(frozen=True, slots=True)
class Standing:
    """A learner's row."""

    learner: str
    state: str  # "stuck", "quiet", "working" or "done"
    exercise: str  # lab and name of the exercise tried last; "" before the first
    attempts: int  # attempts, hints: at that exercise
    hints: int
    last_at: datetime | None  # time of the last attempt or hint; None if it is unknown
    passed: int  # number of exercises passed


def standing_of(learner: str, exercises: Exercises, labs: Labs, now: datetime) -> Standing:
    """A learner's standing at the time `now`, which has a time zone."""
    entries = [(f"{number} {name}", entry_of(labs, number, name)) for number, name in exercises]
    begun = [(name, entry) for name, entry in entries if entry.attempts or entry.hints or entry.is_passed]
    # A file of an earlier version has no times but those of successes: there a failed exercise counts as the last.
    has_times = any(entry.last_at for _, entry in begun)
    times = [time for _, entry in begun if (time := _time(entry))]

    def order(one: tuple[str, Entry]) -> tuple[bool, float, int]:
        """The greatest is the exercise tried last."""
        entry, time = one[1], _time(one[1])
        is_failed = entry.status == "failed" and not entry.is_passed
        return (is_failed and not has_times, time.timestamp() if time else 0.0, entry.attempts)

    name, entry = max(begun, key=order, default=("", Entry()))
    passed, last_at = sum(entry.is_passed for _, entry in begun), max(times, default=None)
    if passed == len(entries):
        state = "done"
    elif entry.attempts >= STUCK_ATTEMPTS and not entry.is_passed:
        state = "stuck"
    elif not begun or (last_at and now - last_at > QUIET):
        state = "quiet"
    else:
        state = "working"
    return Standing(learner, state, name, entry.attempts, entry.hints, last_at, passed)


def standings(exercises: Exercises, learners: dict[str, Labs], now: datetime) -> list[Standing]:
    """All learners' standings, those who need help first."""
    return sorted((standing_of(who, exercises, labs, now) for who, labs in learners.items()), key=_urgency)


def class_html(exercises: Exercises, learners: dict[str, Labs], now: datetime | None = None) -> str:
    """The class as a page; `now` is the time with which last activities are compared, default: the present."""
    now = now or datetime.now().astimezone()
    rows = standings(exercises, learners, now)
    counts = {state: sum(row.state == state for row in rows) for state in _STATES}
    by_lab: dict[str, list[str]] = {}
    for number, name in exercises:
        by_lab.setdefault(number, []).append(name)
    heading = ["learner", "state", "last exercise", "attempts", "hints", "last activity", f"passed of {len(exercises)}"]
    head = "".join(f'<th scope="col">{in_html(cell)}</th>' for cell in heading)
    head += "".join(
        f'<th scope="col" title="lab {number}, {plural(len(names), "exercises")}">{in_html(number)}</th>'
        for number, names in by_lab.items()
    )
    body = "\n".join(_row(row, by_lab, learners[row.learner], now) for row in rows)
    summary = ", ".join(f"{counts[state]} {state}" for state in _STATES)
    main = f"""<h1>Progress of the class, {now:%Y-%m-%d}</h1>
<table>
<caption>{plural(len(rows), "learners")}: {summary}. Stuck: {STUCK_ATTEMPTS} or more attempts at the last exercise.
Quiet: no attempt or hint for {QUIET.days} days. On the right: exercises passed per lab.</caption>
<thead><tr>{head}</tr></thead>
<tbody>
{body}
</tbody>
</table>"""
    return html_page("Progress of the class", Path(__file__).with_suffix(".css").read_text("utf-8"), main)


def _row(row: Standing, by_lab: dict[str, list[str]], labs: Labs, now: datetime) -> str:
    cells = [row.state, row.exercise, str(row.attempts), str(row.hints), _age(row.last_at, now), str(row.passed)]
    parts = [f'<th scope="row" title="{in_html(row.learner)}">{in_html(row.learner)}</th>']
    parts += [f"<td>{in_html(cell)}</td>" for cell in cells]
    for number, names in by_lab.items():
        passed = sum(entry_of(labs, number, name).is_passed for name in names)
        parts.append(f'<td class="all">{passed}</td>' if passed == len(names) else f"<td>{passed or '-'}</td>")
    return f'<tr class="{row.state}">{"".join(parts)}</tr>'


def _time(entry: Entry) -> datetime | None:
    """Time of the last attempt or hint, or of the success; a learner's file may hold any text."""
    for text in (entry.last_at, entry.passed_at):
        try:
            return datetime.fromisoformat(text).astimezone()
        except (ValueError, OverflowError):
            continue
    return None


def _urgency(row: Standing) -> tuple[int, float, str]:
    order = {
        "stuck": -(row.attempts + row.hints),
        "quiet": row.last_at.timestamp() if row.last_at else 0.0,
        "working": row.passed,
        "done": 0.0,
    }
    return (_STATES.index(row.state), order[row.state], row.learner)


def _age(time: datetime | None, now: datetime) -> str:
    """ "today", "3 days ago", or "-" for an unknown time."""
    if time is None:
        return "-"
    days = (now.astimezone().date() - time.date()).days
    return "today" if days <= 0 else f"{plural(days, 'days')} ago"
