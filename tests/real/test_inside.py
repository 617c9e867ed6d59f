"""A program on real processes that launches: refused on every backend, also in the processes that it starts itself."""

import subprocess
import sys
from pathlib import Path

import pytest

from lablib import launch, simulate_script
from lablib.errors import LaunchError, RankError
from lablib.inside import RANK_VARIABLE, check_outside
from lablib.real import run_real

REFUSED = "this is inside a rank of a launch: "


@pytest.mark.parametrize("backend", ["sim", "gloo"])
def test_a_launch_inside_a_gloo_rank_is_refused(backend):
    with pytest.raises(RankError, match=f"raised LaunchError: {REFUSED}call launch from the notebook") as caught:
        run_real(lambda: launch(int, ranks=1, backend=backend), ranks=1, backend="gloo")
    assert type(caught.value.__cause__) is LaunchError


def test_a_simulated_script_inside_a_gloo_rank_is_refused(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("")
    with pytest.raises(RankError, match=f"{REFUSED}simulate a script from outside"):
        run_real(lambda: simulate_script(script), ranks=1, backend="gloo")


def test_a_process_that_a_rank_starts_may_not_launch_either(tmp_path):
    code = "from lablib import launch; launch(int, ranks=1, backend='gloo')"
    root = Path(__file__).parents[2]

    def program():
        done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
        return done.returncode, done.stderr.strip().splitlines()[-1]

    (code_and_words,) = run_real(program, ranks=1, backend="gloo").values
    assert code_and_words[0] == 1 and f"LaunchError: {REFUSED}call launch" in code_and_words[1]


def test_outside_of_a_launch_nothing_is_refused(monkeypatch):
    check_outside("stay")
    monkeypatch.setenv(RANK_VARIABLE, "0")
    with pytest.raises(LaunchError, match="inside a rank of a launch: stay .*__main__"):
        check_outside("stay")
