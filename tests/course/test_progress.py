"""The progress file: atomic, shared by kernels, and never lost."""

import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from lablib.course.progress import DamagedProgress, Entry, Progress, progress_path, read_progress, reset_progress

ROOT = Path(__file__).parents[2]


def passed(entry: Entry) -> Entry:
    return entry.attempted("passed")


def test_entries_are_kept_by_lab_and_exercise(tmp_path: Path):
    progress = Progress(tmp_path / "deep" / "progress.json")
    progress.change("08", "ring", passed)
    progress.change("09", "bucket", lambda e: e.attempted("failed"))
    labs = read_progress(tmp_path / "deep" / "progress.json")
    assert labs["08"]["ring"].passed_at and labs["09"]["bucket"] == Entry(1, 0, "failed", "")


def test_the_first_success_keeps_its_date(tmp_path: Path):
    progress = Progress(tmp_path / "progress.json")
    progress.change("08", "ring", lambda e: Entry(passed_at="2025-01-01T00:00:00+00:00"))
    entry, _ = progress.change("08", "ring", passed)
    assert entry.passed_at.startswith("2025-01-01")


def test_an_attempt_and_a_hint_are_the_last_activity_and_a_stub_is_none(tmp_path: Path):
    progress = Progress(tmp_path / "progress.json")
    assert progress.change("08", "ring", lambda e: e.attempted("not attempted"))[0].last_at == ""
    for change in (lambda e: e.attempted("failed"), lambda e: e.hinted(3), passed):
        before = datetime.now().astimezone().replace(microsecond=0)
        entry, _ = progress.change("08", "ring", change)
        assert before <= datetime.fromisoformat(entry.last_at) <= datetime.now().astimezone()
    assert read_progress(tmp_path / "progress.json")["08"]["ring"].last_at == entry.last_at
    assert entry == Entry(2, 1, "passed", entry.passed_at)  # the time of the last activity does not count


def test_two_kernels_lose_nothing_of_each_other(tmp_path: Path):
    """Two processes, each counting its own exercise and a common one up 30 times."""
    path = tmp_path / "progress.json"
    code = (
        "import sys; from dataclasses import replace; from pathlib import Path\n"
        "from lablib.course.progress import Progress\n"
        "progress = Progress(Path(sys.argv[1]))\n"
        "for _ in range(30):\n"
        "    for name in (sys.argv[2], 'both'):\n"
        "        _, notes = progress.change('08', name, lambda e: replace(e, attempts=e.attempts + 1))\n"
        "        assert not notes, notes\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    kernels = [subprocess.Popen([sys.executable, "-c", code, path, name], env=environment) for name in ("a", "b")]
    assert [kernel.wait(timeout=60) for kernel in kernels] == [0, 0]
    assert {name: entry.attempts for name, entry in read_progress(path)["08"].items()} == {"a": 30, "b": 30, "both": 60}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b'{"version": 2, "labs": {}}',
        b'{"version": 1}',
        b'{"version": 1, "labs": []}',
        b'{"version": 1, "labs": {"08": {"ring": {"attempts": "3"}}}}',
        b'{"version": 1, "labs": {"08": {"ring": 3}}}',
    ],
)
def test_a_damaged_file_is_put_aside_whole_and_the_lab_goes_on(tmp_path: Path, text: bytes):
    path = tmp_path / "progress.json"
    path.write_bytes(text)
    entry, notes = Progress(path).change("08", "ring", passed)
    assert entry.passed_at and len(notes) == 1
    assert "is damaged" in notes[0] and "progress.json.damaged" in notes[0]
    assert (tmp_path / "progress.json.damaged").read_bytes() == text
    assert read_progress(path)["08"]["ring"].passed_at


def test_a_second_damaged_file_does_not_replace_the_first(tmp_path: Path):
    path = tmp_path / "progress.json"
    for text in ("one", "two"):
        path.write_text(text)
        with pytest.raises(DamagedProgress):
            read_progress(path)
    kept = [(tmp_path / f"progress.json.damaged{end}").read_text() for end in ("", "-2")]
    assert kept == ["one", "two"]


def test_fields_of_a_later_version_are_ignored(tmp_path: Path):
    path = tmp_path / "progress.json"
    path.write_text(json.dumps({"version": 1, "labs": {"08": {"ring": {"attempts": 2, "stars": 5}}}}))
    assert read_progress(path)["08"]["ring"].attempts == 2


def test_reset_forgets_one_lab_only(tmp_path: Path):
    path = tmp_path / "progress.json"
    for lab in ("08", "09"):
        Progress(path).change(lab, "a", passed)
    assert reset_progress(path, "08") == 1 and list(read_progress(path)) == ["09"]
    assert reset_progress(path, "08") == 0


def test_the_file_is_where_lab_progress_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("LAB_PROGRESS", str(tmp_path / "p.json"))
    assert progress_path() == tmp_path / "p.json"
    monkeypatch.setenv("LAB_PROGRESS", "off")
    assert progress_path() is None
    monkeypatch.delenv("LAB_PROGRESS")
    found = progress_path()
    assert found is not None and found.name == "progress.json" and "lablib" in str(found)
