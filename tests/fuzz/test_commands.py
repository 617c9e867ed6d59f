"""Any words after `lab`: an exit code and at most one sentence, never a traceback."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lablib.cli.main import main
from tests.fuzz.anything import NAMES, TEXTS
from tests.fuzz.held import at_most

COMMANDS = "plan validate list progress build sim run calibrate update reset no-such-command".split()
OPTIONS = (
    *("--model", "--cluster", "--nodes", "--gpus", "--batch", "--seq-len", "--precision", "--stack", "--optimizer"),
    *("--tensor", "--pipeline", "--top", "--json", "--page", "--readme", "--ranks", "--out", "--timeout", "--quick"),
    *("--reset", "--check", "--backend", "-p", "-h", "--", "-", "--x"),
)
# Of what would start processes, or an hour's work, only the words around it are tried.
WORDS = (*TEXTS, *NAMES, "/dev/zero", "/", ".", "1", "-1", "1,2", "4-", "1-9999999999", "nan", "1e400")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_line_ends_in_a_code_and_a_sentence(
    command: str, counts: Counter[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch
):
    monkeypatch.setenv("LAB_LABS", str(tmp_path))
    monkeypatch.setenv("LAB_WORK", str(tmp_path / "work"))
    words = st.lists(st.one_of(st.sampled_from(OPTIONS), st.sampled_from(WORDS)), max_size=5)

    @settings(
        max_examples=25,
        phases=[Phase.generate],
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(words)
    def every_line(rest: list[str]) -> None:
        counts["calls"] += 1
        if command == "calibrate":
            rest = [*rest, "--backend", "no such backend"]
        try:
            with at_most(30.0):
                code = main([command, *rest])
        except SystemExit as end:  # argparse's --help
            code = end.code
        said = capsys.readouterr().err
        counts["answers" if code == 0 else f"exit code {code}"] += 1
        assert code in (0, 1, 2) and "Traceback" not in said, (rest, said)
        assert code == 0 or said.startswith("lab: "), (rest, said)

    every_line()
