"""The leader board: reports of a folder in the order of their brief's measure, and the best prediction.

    board = read_board("reports")
    board.entries      those that meet their brief, the best first; then the others, with the reason
    board.best_predictor()

A report counts if it has no finding. The measure can be recomputed: the scaling law's loss of the plan, or GPU hours by
the simulated step. Reports that cannot be read are listed with the error. Works without network.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lablib.capstone.quantities import gpu_hours, mean_factor
from lablib.capstone.report import read_report
from lablib.signature import checked
from lablib.text.units import plural


@dataclass(frozen=True)
class Entry:
    """One report."""

    file: str
    author: str = ""
    brief: str = ""
    loss: float | None = None  # nats, by the scaling law
    gpu_hours: float | None = None
    factor: float | None = None  # by which times and memory were predicted, on average
    points: float = 0.0
    measure: str = "loss"
    reason: str = ""  # why it does not count

    @property
    def counts(self) -> bool:
        return not self.reason

    @property
    def order(self) -> tuple[float, ...]:
        loss, hours = self.loss or float("inf"), self.gpu_hours or float("inf")
        return (loss, hours) if self.measure == "loss" else (hours, loss)


@dataclass(frozen=True)
class Board:
    """All reports of a folder."""

    entries: tuple[Entry, ...]

    def best_predictor(self) -> Entry | None:
        """The report with the smallest mean factor, among those that count."""
        able = [each for each in self.entries if each.counts and each.factor is not None]
        return min(able, key=lambda each: each.factor or 0.0, default=None)

    def rows(self) -> list[tuple[str, ...]]:
        """A row for each report: place, file, author, brief, loss, GPU hours, factor, points, reason."""
        rows, places = list[tuple[str, ...]](), dict[str, int]()
        for each in self.entries:
            if each.counts:
                places[each.brief] = places.get(each.brief, 0) + 1
            values = ((each.loss, "{:.3f}"), (each.gpu_hours, "{:,.0f}"), (each.factor, "{:.2f}"))
            numbers = ["" if value is None else form.format(value) for value, form in values]
            place = str(places[each.brief]) if each.counts else "-"
            rows.append((place, each.file, each.author, each.brief, *numbers, f"{each.points:g}", each.reason))
        return rows


HEADING = ("place", "report", "author", "brief", "loss, nats", "GPU hours", "off by", "points", "does not count as")


@checked
def read_board(folder: str | Path, simulate: bool = True) -> Board:
    """Check every .toml file of a folder, but its briefs. ValueError: no folder, or no report in it."""
    place = Path(folder)
    files = sorted(path for path in place.glob("*.toml") if path.is_file()) if place.is_dir() else []
    entries = [_entry(path, simulate) for path in files]
    if not entries:
        raise ValueError(f"a leader board needs a folder with reports (.toml): got {folder}; try examples/capstone")
    return Board(tuple(sorted(entries, key=lambda each: (not each.counts, each.brief, each.order))))


def _entry(path: Path, simulate: bool) -> Entry:
    try:
        report = read_report(path)
    except ValueError as error:
        return Entry(path.name, reason=f"it cannot be read: {error}")
    # Import torch, which takes seconds.
    from lablib.capstone.consistency import findings
    from lablib.capstone.rubric import machine_points, rubric

    found: Sequence = findings(report, simulate)
    points, _ = machine_points(rubric(report, found))
    return Entry(
        file=path.name,
        author=report.author,
        brief=report.brief.name,
        loss=report.brief.loss(report.large),
        gpu_hours=gpu_hours(report, report.large_run.step_s) if report.large_run else None,
        factor=mean_factor(report),
        points=points,
        measure=report.brief.measure,
        reason="" if not found else f"{plural(len(found), 'findings')}, first: {found[0]}",
    )
