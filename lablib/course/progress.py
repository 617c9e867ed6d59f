"""A learner's progress, kept between kernels in one small file.

    {"version": 1, "labs": {"08": {"ring_all_reduce": {
        "attempts": 3, "hints": 1, "status": "passed", "passed_at": "2025-03-01T10:15:00+01:00",
        "last_at": "2025-03-01T10:15:00+01:00"}}}}

The file is `$LAB_PROGRESS`, or `progress.json` in the platform's user data folder. `LAB_PROGRESS=off` keeps nothing,
and so does a run of nbgrader: that would be the grader's progress.
Two kernels may write at the same time: each takes the lock, reads, changes its entry and replaces the file in one step.
A damaged file is renamed, never deleted, and a new one begun. A passed exercise stays passed.
"""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from lablib.course.errors import CourseFailure
from lablib.process.user_folders import user_folder
from lablib.text.files import parse_json, read_text, write_text

_LOCK_TIMEOUT_S = 5.0
_OFF = "off"


@dataclass(frozen=True, slots=True)
class Entry:
    """One exercise: `status` of the last attempt, `passed_at` of the first success ("" before it).

    `last_at` is the time of the last attempt or hint; two entries that differ in it alone are equal.
    """

    attempts: int = 0
    hints: int = 0
    status: str = "not attempted"
    passed_at: str = ""
    last_at: str = field(default="", compare=False)

    @property
    def is_passed(self) -> bool:
        """Whether it was passed once; a learner's file may have either field."""
        return bool(self.passed_at) or self.status == "passed"

    def attempted(self, status: str) -> "Entry":
        """This entry after one more check ended in `status`. A stub and a check without a verdict are no attempts."""
        if status == "not checked":
            return self
        if status == "not attempted":
            return replace(self, status=status)
        passed_at = self.passed_at or (_now() if status == "passed" else "")
        return replace(self, attempts=self.attempts + 1, status=status, passed_at=passed_at, last_at=_now())

    def hinted(self, total: int) -> "Entry":
        """This entry after one more hint, of `total`."""
        return replace(self, hints=min(self.hints + 1, total), last_at=_now())


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


Labs = dict[str, dict[str, Entry]]


def entry_of(labs: Labs, lab: str, name: str) -> Entry:
    """The entry of one exercise; an empty one if there is none."""
    return labs.get(lab, {}).get(name, Entry())


class DamagedProgress(CourseFailure):
    """The progress file is damaged and was renamed; the message has the new name."""


def progress_path() -> Path | None:
    """The path of the progress file; None if progress is not kept."""
    chosen = os.environ.get("LAB_PROGRESS")
    if chosen == _OFF or os.environ.get("NBGRADER_EXECUTION") == "autograde":
        return None
    if chosen:
        return Path(os.path.expanduser(chosen)).absolute()
    return user_folder("data") / "progress.json"


def read_progress(path: Path) -> Labs:
    """All entries, by lab and exercise; empty if there is no file yet.

    Raises:
        DamagedProgress: the file is damaged and was renamed.
        OSError: it cannot be read.
    """
    try:
        return parse_progress(path)
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise _put_aside(path, error) from None


def parse_progress(path: Path) -> Labs:
    """All entries of a file, which is not changed. Raises OSError, and ValueError for a file of another kind."""
    data = parse_json(read_text(path))
    try:
        return _parse(data)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"it is no progress file: {type(error).__name__}: {error}") from None


def _put_aside(path: Path, error: Exception) -> DamagedProgress:
    """Rename a damaged file and return the error."""
    aside, number = path.with_name(path.name + ".damaged"), 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.damaged-{number}")
    path.replace(aside)
    return DamagedProgress(
        f"a progress file must be what `lab` wrote: {path} is damaged ({error}); it is kept as {aside.name}, and a "
        f"new one begins; to restore it, correct it and give it back its name."
    )


class Progress:
    """Reads and changes entries, in the file where possible and otherwise in this object's memory."""

    def __init__(self, path: Path | None = None):
        self.path = path
        self._memory: Labs = {}

    def entry(self, lab: str, name: str) -> Entry:
        """The entry of one exercise, as last read or written by this or another kernel. Never raises."""
        try:
            stored = read_progress(self.path) if self.path else {}
        except (OSError, DamagedProgress):
            stored = {}
        return stored.get(lab, {}).get(name) or self._memory.get(lab, {}).get(name) or Entry()

    def change(self, lab: str, name: str, change: Callable[[Entry], Entry]) -> tuple[Entry, list[str]]:
        """Apply `change` to an entry and save it: the new entry, and notes for the learner. Never raises."""
        notes: list[str] = []
        if self.path is not None:
            try:
                return self._change_file(self.path, lab, name, change, notes), notes
            except (OSError, TimeoutError) as error:
                notes.append(
                    f"progress could not be saved to {self.path}: {error.strerror or error}; check that folder."
                )
        entry = change(self._memory.get(lab, {}).get(name, Entry()))
        self._memory.setdefault(lab, {})[name] = entry
        return entry, notes

    def _change_file(
        self, path: Path, lab: str, name: str, change: Callable[[Entry], Entry], notes: list[str]
    ) -> Entry:
        with _locked(path):
            try:
                labs = read_progress(path)
            except DamagedProgress as damaged:
                notes.append(str(damaged))
                labs = {}
            before = labs.get(lab, {}).get(name) or self._memory.get(lab, {}).get(name) or Entry()
            entry = change(before)
            labs.setdefault(lab, {})[name] = entry
            if entry != before:
                _write(path, labs)
            return entry


def reset_progress(path: Path, lab: str) -> int:
    """Delete the progress of one lab; returns the number of exercises.

    Raises DamagedProgress, OSError: as `read_progress`.
    """
    with _locked(path):
        labs = read_progress(path)
        forgotten = labs.pop(lab, {})
        if forgotten:
            _write(path, labs)
        return len(forgotten)


def _parse(data: Any) -> Labs:
    """Entries from JSON, without fields that this version does not have."""
    if not isinstance(data, dict) or data.get("version") != 1:
        raise ValueError("it has no version 1")
    kinds = {"attempts": int, "hints": int, "status": str, "passed_at": str, "last_at": str}
    labs: Labs = {}
    for lab, entries in data["labs"].items():
        for name, fields in entries.items():
            known = {field: fields[field] for field in kinds if field in fields}
            if any(type(value) is not kinds[field] for field, value in known.items()):
                raise ValueError(f"lab {lab}, {name}: {fields}")
            labs.setdefault(lab, {})[name] = Entry(**known)
    return labs


def _write(path: Path, labs: Labs) -> None:
    data = {"version": 1, "labs": {lab: {n: asdict(e) for n, e in entries.items()} for lab, entries in labs.items()}}
    write_text(path, json.dumps(data, indent=1, sort_keys=True) + "\n")


def _locked(path: Path) -> Any:
    """The lock that all writers of this file take."""
    from filelock import FileLock

    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path.with_name(path.name + ".lock"), timeout=_LOCK_TIMEOUT_S)
