"""Texts and comments of a report survive every `lab capstone` command."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lablib.capstone import LargeRun, Report, SmallRun, large_run, parse_report, read_report, small_run, write_report
from lablib.capstone.report import Reconciled
from lablib.cli.main import main
from lablib.text.files import parse_toml
from tests.text.test_toml import spellings, texts

WORDS = texts | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def lab(*words: str | Path) -> int:
    return main(["capstone", *map(str, words)])


def texts_of(report: Report) -> list[str]:
    explained = [(name, each.explanation) for name, each in report.reconciled.items() if each.explanation]
    return [
        report.title,
        report.author,
        report.conclusion,
        report.predicted.method,
        *(f"{name}: {text}" for name, text in (*report.reasons.items(), *sorted(explained))),
        *(each.reason for each in report.alternatives),
    ]


@pytest.fixture(scope="module")
def runs(report: Report) -> Iterator[None]:
    """Both runs without their seconds: these tests are about texts."""
    kept = report.small_run, report.large_run

    def run_of(which: int, given: Report) -> SmallRun | LargeRun:
        run = kept[which]
        assert given.lock is not None and run is not None
        return replace(run, sha256=given.lock.sha256)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small_run, "train_small", lambda given, *_: run_of(0, given))
        patch.setattr(large_run, "simulate_large", lambda given: run_of(1, given))
        yield


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=6, deadline=None)
@given(data=st.data())
def test_texts_and_comments_survive_every_command(
    report: Report, brief_file: Path, runs: object, data: st.DataObject, capsys: pytest.CaptureFixture[str]
):
    def text() -> str:
        return data.draw(WORDS)

    written = replace(
        report,
        brief_name=str(brief_file),
        title=text(),
        author=text(),
        conclusion=text(),
        reasons={name: text() for name in report.reasons},
        predicted=replace(report.predicted, method=text() or "m"),
        alternatives=tuple(replace(each, reason=text()) for each in report.alternatives),
        lock=None,
        small_run=None,
        large_run=None,
        reconciled={"step_s": Reconciled(0.5, text()), "small_loss": Reconciled(0.5, text())},
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.toml"
        write_report(written, path)
        lines = list[str]()
        for number, line in enumerate(path.read_text().split("\n")):  # as a learner writes: comments, long texts
            name, _, value = line.partition(" = ")
            if value.startswith('"') and name not in ("brief", "changes"):
                line = f"{name} = {data.draw(st.sampled_from(spellings(parse_toml(line)[name])))}"
            lines.append(f"{line}  # comment {number}." if line else f"# comment {number}.")
        path.write_text("\n".join(lines), newline="\n")
        assert texts_of(read_report(path)) == texts_of(written)
        for words in (
            ["predict", path],
            ["lock", path],
            ["run", path, "--only", "small"],
            ["run", path],
            ["lock", path],
            ["run", path],
        ):
            assert lab(*words) == 0
            found = path.read_bytes().decode()
            assert texts_of(parse_report(parse_toml(found), folder=path.parent)) == texts_of(written)
            assert all(f"# comment {number}." in found for number in range(len(lines)))
        page = Path(folder) / "page.html"
        assert lab("render", path, "--no-simulation", "--out", page) in (0, 1)
        capsys.readouterr()
        shown = unescape(page.read_bytes().decode())
        for each in (written.title, written.author, written.conclusion, *written.reasons.values()):
            assert each in shown
        for each in (*written.alternatives, written.reconciled["step_s"]):
            assert getattr(each, "reason", "") in shown and getattr(each, "explanation", "") in shown
