"""The GitHub Action that simulates a script: its last step as in a runner, with a `lab` that notes its words."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
ACTION = yaml.safe_load((ROOT / ".github/actions/simulate/action.yml").read_text("utf-8"))
STEP = ACTION["runs"]["steps"][-1]


def words_of_lab(folder: Path, given: dict[str, str], code: int = 0) -> list[str]:
    """The words that `lab` receives in `folder`, which ends with `code`; so must the step."""
    inputs = {name: one.get("default", "") for name, one in ACTION["inputs"].items()} | given
    variables = {
        name: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda found: inputs[found[1]], text)
        for name, text in STEP["env"].items()
    }
    (folder / "lab").write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" >words\nexit {code}\n")
    (folder / "lab").chmod(0o755)
    environment = os.environ | variables | {"PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-e", "-o", "pipefail", "-c", STEP["run"]], cwd=folder, env=environment)
    assert done.returncode == code
    return (folder / "words").read_text().splitlines()


@pytest.mark.parametrize("code", [0, 1, 3])
def test_the_action_calls_lab_sim_and_ends_with_its_code(tmp_path: Path, code: int):
    rule = "step_s < 0.6 and peak_bytes < 80e9; $(touch no)"
    words = words_of_lab(tmp_path, {"script": "train.py --steps 3", "ranks": "2", "assert": rule}, code)
    assert words == [
        *("sim", "--ranks", "2", "--cluster", "dgx-h100", "--fidelity", "shapes", "--quiet", "--out", "report"),
        *("--assert", rule, "train.py", "--steps", "3"),
    ]
    assert not (tmp_path / "no").exists()


def test_without_an_assertion_the_action_asks_for_none(tmp_path: Path):
    assert "--assert" not in words_of_lab(tmp_path, {"script": "train.py"})


def test_every_input_of_the_action_is_used_and_none_is_written_into_the_script():
    assert set(re.findall(r"inputs\.(\w+)", " ".join(STEP["env"].values()))) == set(ACTION["inputs"])
    assert all("${{" not in step["run"] for step in ACTION["runs"]["steps"])
