"""An interrupted test session leaves no JupyterLab server and no kernel behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("jupyterlab", reason="no JupyterLab: pip install jupyterlab")
ROOT = Path(__file__).parents[2]
SESSION = """
import json, os, pathlib, time, urllib.request
from tests.browser.conftest import start_server

def test_waits(start_server, tmp_path):
    (tmp_path / "notebooks").mkdir()
    server = start_server(tmp_path / "notebooks")
    for _ in range(2):
        headers = {"Authorization": f"token {server.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{server.url}api/kernels", b"{}", headers)
        assert json.load(urllib.request.urlopen(request, timeout=60))["id"]
    pathlib.Path(os.environ["READY"]).write_text(str(tmp_path))
    time.sleep(600)
"""


def _of_session(mark: str) -> dict[int, str]:
    """Processes with this session in their environment, without those that have ended."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("number", "processes"),
    [
        (signal.SIGTERM, 0),
        pytest.param(signal.SIGINT, 0, marks=pytest.mark.thorough),
        pytest.param(signal.SIGTERM, 1, marks=pytest.mark.thorough),
        pytest.param(signal.SIGKILL, 0, marks=pytest.mark.thorough),
    ],
)
def test_an_interrupted_session_leaves_no_process(tmp_path: Path, number: signal.Signals, processes: int):
    (tmp_path / "test_waits.py").write_text(SESSION)
    ready = tmp_path / "ready"
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(processes), "-p", "no:cacheprovider", "--rootdir"]
    command += [str(tmp_path), "-c", os.devnull, str(tmp_path / "test_waits.py")]
    variables = os.environ | {"READY": str(ready), "PYTHONPATH": str(ROOT)}
    session = subprocess.Popen(command, cwd=tmp_path, env=variables, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        _wait_until(ready.exists, 120)
        assert sum("ipykernel" in line for line in _of_session(str(ready)).values()) >= 2
        session.send_signal(number)
        session.wait(60)
        _wait_until(lambda: not _of_session(str(ready)), 60)
        assert _of_session(str(ready)) == {}
    finally:
        for process in _of_session(str(ready)):
            os.kill(process, signal.SIGKILL)
        session.wait()


def _wait_until(holds, timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not holds() and time.monotonic() < deadline_s:
        time.sleep(0.2)
