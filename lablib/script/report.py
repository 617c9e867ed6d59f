"""Report files of a simulated script: timeline, memory report, summary, and the output of each rank.

timeline.json   for ui.perfetto.dev
timeline.html   the figure, with its sentence and its numbers
memory.txt      the peak of each rank by category, and its largest allocations
summary.txt     makespan, busy, exposed communication, traffic, peak memory; also printed
rankN.txt       output of rank N, including standard error
"""

from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from pathlib import Path

from lablib.figures.run.timeline import figure_timeline
from lablib.figures.show import caption_html, picture_bundle, without_subtitle
from lablib.record.memory import Memory
from lablib.run import Run
from lablib.text.files import write_text
from lablib.text.markup import in_html
from lablib.text.units import format_quantity, plural

_MAX_LINES = 16
_MAX_ALLOCATIONS = 6
_FILES = ("timeline.json", "timeline.html", "memory.txt", "summary.txt")


def default_folder(script: Path) -> Path:
    return Path("runs") / f"{script.stem}-{datetime.now():%Y-%m-%d-%H%M%S}"


def write_report(run: Run, folder: Path, script: str) -> str:
    """Write all files of a run into `folder` (made if missing). Returns the summary as text.

    The ranks' output is written first, as no other file has it. A file is complete or missing.
    """
    summary = summary_text(run, script)
    files: dict[str, Callable[[Path], object]] = {
        "summary.txt": lambda path: write_text(path, summary),
        "memory.txt": lambda path: write_text(path, memory_text(run.memory)) if len(run.memory) else None,
        "timeline.html": lambda path: write_text(path, _page(run, script)),
        "timeline.json": run.to_perfetto,
    }
    _write(folder, _of_ranks(run.stdout) | files, summary)
    return summary


def write_output(output: Iterable[str], folder: Path) -> None:
    """Write the output of each rank, one file per rank; also for a run that failed."""
    _write(folder, _of_ranks(output), "")


class IncompleteReport(OSError):
    """Files that could not be written, and the reason, in a sentence; `summary` is the run's, as text."""

    def __init__(self, text: str, summary: str):
        super().__init__(text)
        self.summary = summary


def _of_ranks(output: Iterable[str]) -> dict[str, Callable[[Path], object]]:
    return {f"rank{rank}.txt": partial(write_text, text=text) for rank, text in enumerate(output)}


def _write(folder: Path, files: dict[str, Callable[[Path], object]], summary: str) -> None:
    missing, why = list[str](), ""
    for name, write in files.items():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write(folder / name)
        except OSError as error:
            missing.append(name)
            why = why or error.strerror or str(error)
    if missing:
        shown = ", ".join(missing[:_MAX_LINES]) + (", ..." if len(missing) > _MAX_LINES else "")
        raise IncompleteReport(f"{shown} of {folder} could not be written: {why}", summary)


def summary_text(run: Run, script: str) -> str:
    """Times of the run in a few sentences and a table. All times except the last are virtual."""
    table = run.summary().table()
    shown = table.head(_MAX_LINES).to_string(float_format=lambda value: f"{value:.4g}")
    if len(table) > _MAX_LINES:
        shown += f"\n... {len(table) - _MAX_LINES} more ranks; timeline.json has them all"
    lines = [
        f"{script}: {plural(run.ranks, 'ranks')} on {run.cluster}, simulated (virtual time).",
        run.summary().sentence().replace("step ", "Makespan ", 1) + ".",
        f"Traffic: {plural(len(run.traffic), 'communications')}, "
        f"{format_quantity(run.traffic.sent_bytes(), 'B', 4)} sent.",
        f"Memory: {run.memory.explain()}" if run.memory.is_known else None,
        "",
        shown,
        "",
        *(f"Note: {note}" for note in run.notes),
        f"The simulation itself took {run.wall_s:.1f} s.",
    ]
    return "\n".join(line for line in lines if line is not None) + "\n"


def memory_text(memory: Memory) -> str:
    """The peak of each rank: its time, bytes by category, and the largest allocations."""
    parts = []
    for rank in range(min(memory.num_ranks, _MAX_LINES)):
        peak, phase = memory.peak_bytes(rank), memory.peak_phase(rank)
        when = f"{format_quantity(memory.peak_at_s(rank), 's', 4)} of virtual time" + (f" ({phase})" if phase else "")
        parts.append(f"rank {rank}: the peak is {format_quantity(peak, 'B', 4)}, at {when}")
        for category, size_bytes in memory.at_peak(rank).items():
            if size_bytes:
                parts.append(f"  {category:<16} {format_quantity(size_bytes, 'B', 4):>10}  {size_bytes / peak:4.0%}")
        for held in memory.allocations_at_peak(rank)[:_MAX_ALLOCATIONS]:
            made = " ".join(part for part in (held.name, held.phase, held.source) if part)
            parts.append(
                f"    {format_quantity(held.size_bytes, 'B', 4):>10}  {held.category}, "
                f"{held.num_allocations} made in {made}"
            )
    if memory.num_ranks > _MAX_LINES:
        parts.append(f"... {memory.num_ranks - _MAX_LINES} more ranks")
    return "\n".join(parts) + "\n"


def _page(run: Run, script: str) -> str:
    figure = figure_timeline(run.timeline, title=f"{script} on {run.cluster}: virtual time")
    picture = picture_bundle(without_subtitle(figure), plotlyjs=True)["text/html"]
    title = in_html(f"Timeline of {script}")
    head = f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{title}</title></head>"
    return f"{head}<body style='font-family:sans-serif'>{picture}{caption_html(figure)}</body></html>"


def files_line(folder: Path) -> str:
    names = [name for name in _FILES if (folder / name).exists()]
    return f"written to {folder}: {', '.join(names)} and the output of each rank"
