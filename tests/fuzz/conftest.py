"""Counts of the fuzzed calls at the end of a session, and a folder in which they can write no harm."""

import resource
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MAX_BYTES = 16 * 2**30  # of address space: an argument that asks for more gets an error, not the machine's memory


@pytest.fixture
def counts(record_property: Any) -> Iterator[Counter[str]]:
    """What happened to the calls of one test; the sum over all tests is printed at the end."""
    counter: Counter[str] = Counter()
    yield counter
    record_property("fuzz", dict(counter))  # plain, as reports travel between the processes of the tests


@pytest.fixture(autouse=True)
def harmless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Files land in a temporary folder, and so does what lablib keeps for the user."""
    monkeypatch.chdir(tmp_path)
    for name in ("LAB_MACHINE", "LAB_PROGRESS", "LAB_DATA"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line: how many calls were made, and how they ended."""
    total: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "teardown":
                for name, value in report.user_properties:
                    if name == "fuzz":
                        total.update(value)
    if total:
        calls, answers = total.pop("calls", 0), total.pop("answers", 0)
        ends = ", ".join(f"{number} {name}" for name, number in total.most_common())
        terminalreporter.write_line(
            f"fuzzed calls: {calls}, of which {answers} were answered; errors: {ends or 'none'}"
        )
