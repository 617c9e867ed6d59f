"""Opening JupyterLab: a port in use is said, prompts are off, and everything else is passed on."""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from lablib.course.errors import CourseError, CourseFailure
from lablib.course.places import Lab
from lablib.course.running import jupyter
from lablib.course.running.jupyter import jupyter_command, jupyter_environment, open_lab


@pytest.fixture
def taken() -> Iterator[int]:
    """A port somebody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Command lines that would have become JupyterLab."""
    commands: list[list[str]] = []
    monkeypatch.setattr(jupyter.os, "execve", lambda program, command, environment: commands.append(command))
    return commands


@pytest.mark.parametrize(
    "form", [["--port", "{}"], ["--port={}"], ["--ServerApp.port={}"], ["--port={}", "--ip=127.0.0.1"]]
)
def test_a_port_in_use_is_one_sentence_with_a_free_port(lab: Lab, taken: int, started: list, form: list[str]):
    with pytest.raises(CourseFailure, match=rf"port {taken} is in use by another program: try --port \d+") as raised:
        open_lab(lab, [word.format(taken) for word in form])
    assert raised.value.exit_code == 1 and started == []


@pytest.mark.parametrize("port", ["abc", "", "70000", "-1"])
def test_a_port_that_is_none_is_refused(lab: Lab, started: list, port: str):
    with pytest.raises(CourseError, match="a port must be a number up to 65535"):
        open_lab(lab, [f"--port={port}"])
    assert started == []


def test_jupyterlab_starts_on_a_copy_of_the_lab(lab: Lab, started: list[list[str]]):
    open_lab(lab, ["--no-browser"])
    [command] = started
    assert lab.work.exists() and not lab.notebook.exists()
    assert "--LabApp.default_url=/lab/tree/90_example.ipynb" in command and command[-1] == "--no-browser"
    assert f"--ServerApp.root_dir={lab.work.parent}" in command
    assert not any("port_retries" in word for word in command)  # no port asked for: Jupyter may choose


def test_a_port_asked_for_is_the_port_used(lab: Lab, taken: int):
    assert "--ServerApp.port_retries=0" in jupyter_command(lab, ["--port", "8899"])


@pytest.mark.parametrize(
    ("uid", "arguments", "is_said"),
    [(0, [], True), (0, ["--allow-root"], False), (0, ["--ServerApp.allow_root=True"], False), (1000, [], False)],
)
def test_that_jupyter_runs_as_root_is_said_when_nobody_asked_for_it(
    lab: Lab, started: list, monkeypatch: pytest.MonkeyPatch, capfd, uid: int, arguments: list[str], is_said: bool
):
    monkeypatch.setattr(os, "getuid", lambda: uid, raising=False)
    open_lab(lab, ["--no-browser", *arguments])
    said = capfd.readouterr().err
    assert ("JupyterLab runs as root, with --allow-root: " in said) == is_said and said.count("\n") == is_said
    assert started[0].count("--allow-root") == (is_said or arguments == ["--allow-root"])


def test_the_news_prompt_is_off_by_a_default_behind_the_users_settings(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "/mine")
    mine, ours = jupyter_environment(lab)["JUPYTER_CONFIG_PATH"].split(os.pathsep)
    assert mine == "/mine"
    overrides = json.loads((Path(ours) / "labconfig" / "default_setting_overrides.json").read_text())
    assert overrides["@jupyterlab/apputils-extension:notification"]["fetchNews"] == "false"


def test_jupyterlab_reads_that_default(lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    from jupyterlab_server.settings_utils import _get_overrides

    monkeypatch.setenv("JUPYTER_CONFIG_PATH", jupyter_environment(lab)["JUPYTER_CONFIG_PATH"])
    overrides, error = _get_overrides(str(tmp_path))
    assert not error and overrides["@jupyterlab/apputils-extension:notification"]["fetchNews"] == "false"
