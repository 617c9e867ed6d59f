"""JupyterLab in headless Chromium, as a learner has it: `notebook_page` opens a notebook, runs it, and looks at it.

The server works on a copy of the notebooks, and keeps settings, progress and corpora in a temporary folder. Screenshots
go to `artifacts/`. The browser is the system's own (Debian's package `chromium`); none is downloaded.
"""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ARTIFACTS = Path(__file__).parents[2] / "artifacts"
# No sandbox: CI runs as root in a container. The rest keeps Chromium from calling home.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-sync",
]
SETTINGS = {  # JupyterLab asks to fetch news at its first start, in a box that covers a corner of the notebook
    "@jupyterlab/apputils-extension/notification.jupyterlab-settings": {"fetchNews": "false", "checkForUpdates": False}
}


_WITH_PARENT = """
import os, signal, sys
from lablib.process.lifetime import die_with_parent
die_with_parent(int(sys.argv[1]), signal.SIGTERM)
os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True)
class Server:
    """A running JupyterLab: its address with a slash at the end, its token, and the folder it serves."""

    url: str
    token: str
    folder: Path


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of the system's Chromium; skips where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip("no Chromium on this machine: install the package `chromium`")
    return path


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Any]:
    """One browser for all tests of the session; each page has a profile of its own."""
    playwright_api = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright")
    with playwright_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], Server]]:
    """Call it with a folder of notebooks: JupyterLab on a copy of that folder. All servers end with the session.

    Where the session ends without its fixtures (SIGTERM, a worker of xdist), Linux sends them SIGTERM.
    """
    processes: list[subprocess.Popen[bytes]] = []

    def start(notebooks: Path) -> Server:
        home = tmp_path_factory.mktemp("jupyter")
        folder = home / "labs"
        shutil.copytree(notebooks, folder)
        for name, setting in SETTINGS.items():
            path = home / "settings" / name
            path.parent.mkdir(parents=True)
            path.write_text(json.dumps(setting))
        token = secrets.token_hex(16)
        command = [sys.executable, "-c", _WITH_PARENT, str(os.getpid()), sys.executable, "-m", "jupyterlab"]
        command += ["--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1"]
        command += [
            f"--ServerApp.root_dir={folder}",
            f"--IdentityProvider.token={token}",
            "--ServerApp.port_retries=99",
        ]
        with (home / "server.log").open("wb") as log:
            process = subprocess.Popen(command, env=_environment(home), cwd=folder, stdout=log, stderr=log)
        processes.append(process)
        return Server(_address(process, home), token, folder)

    yield start
    for process in processes:
        process.send_signal(signal.SIGTERM)  # Jupyter ends its kernels, they end their workers
    for process in processes:
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _environment(home: Path) -> dict[str, str]:
    """Everything Jupyter, IPython and the labs would keep in the user's home goes to `home`."""
    folders = {"JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data", "JUPYTER_RUNTIME_DIR": "runtime"}
    folders |= {
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
    }
    folders |= {"LAB_DATA": "corpora", "LAB_PROGRESS": "progress.json", "LAB_MACHINE": "this-machine.toml"}
    return os.environ | {name: str(home / folder) for name, folder in folders.items()}


def _address(process: subprocess.Popen[bytes], home: Path) -> str:
    """Where the server listens: it chose a free port itself and wrote it down."""
    written = home / "runtime" / f"jpserver-{process.pid}.json"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if written.exists() and (text := written.read_text()):
            return json.loads(text)["url"]
        time.sleep(0.1)
    raise RuntimeError(f"JupyterLab did not start; its log:\n{(home / 'server.log').read_text()[-3000:]}")


class NotebookPage:
    """One notebook in JupyterLab, as a person works with it: menus, keys, scrolling."""

    def __init__(self, page: Any, server: Server, name: str):
        self.page, self.server, self.name = page, server, name
        assert (server.folder / name).is_file(), f"no notebook {name}: `make build` generates the labs"
        # "reset": JupyterLab may otherwise open the notebook of an earlier page again, in a tab of its own.
        page.goto(f"{server.url}lab/tree/{name}?token={server.token}&reset", timeout=60_000)
        page.locator(".jp-Notebook .jp-Cell").filter(visible=True).first.wait_for(timeout=60_000)
        self._wait_idle(60)  # the kernel is up

    def run_all(self, timeout_s: float = 240) -> None:
        """Run > Run All Cells, and wait for the last one."""
        self.page.get_by_role("menuitem", name="Run", exact=True).click()
        self.page.locator('li[data-command="runmenu:run-all"]').click()
        deadline = time.monotonic() + timeout_s
        while True:
            self._wait_idle(deadline - time.monotonic())
            cells = [cell for cell in self.save()["cells"] if cell["cell_type"] == "code" and "".join(cell["source"])]
            if all(cell["execution_count"] for cell in cells) or self.errors():
                return
            assert time.monotonic() < deadline, f"{self.name} did not finish in {timeout_s} s"

    def save(self) -> dict[str, Any]:
        """Save, and what is then in the file: all outputs, also of cells that are scrolled away."""
        path = self.server.folder / self.name
        before = path.stat().st_mtime_ns
        self.page.keyboard.press("Control+s")
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            self.page.wait_for_timeout(100)
            if path.stat().st_mtime_ns != before:
                try:
                    return json.loads(path.read_text("utf-8"))
                except json.JSONDecodeError:
                    pass  # the server is still writing it
        return json.loads(path.read_text("utf-8"))

    def errors(self) -> list[str]:
        """Name and text of every error in an output of the saved notebook."""
        outputs = [
            output
            for cell in json.loads((self.server.folder / self.name).read_text("utf-8"))["cells"]
            for output in cell.get("outputs", ())
        ]
        return [f"{output['ename']}: {output['evalue']}" for output in outputs if output["output_type"] == "error"]

    def unfold(self) -> None:
        """Open every folded section, as a person does who reads on."""
        folded = self.page.locator(".jp-showHiddenCellsButton")
        while count := folded.count():
            folded.last.click()
            self.page.wait_for_timeout(500)
            assert folded.count() < count, "a folded section does not open"

    def sliders_with_a_figure(self) -> Iterator[Any]:
        """From top to bottom, the handle of every slider whose cell also has a plotly figure, scrolled into view.

        Those that are greyed are left out: they say that they change nothing.
        """
        # JupyterLab keeps every cell in the page and paints those near the screen; what is painted late is waited for.
        for handle in self.page.locator(
            ".jp-Cell:has(.js-plotly-plot) .noUi-target:not([disabled]) .noUi-handle"
        ).all():
            handle.scroll_into_view_if_needed()
            self.page.wait_for_timeout(500)
            yield handle

    def screenshot(self, suffix: str) -> Path:
        """The screen as a PNG in `artifacts/`, kept for a person to look at."""
        ARTIFACTS.mkdir(exist_ok=True)
        path = ARTIFACTS / f"{Path(self.name).stem}-{suffix}.png"
        self.page.screenshot(path=str(path))
        return path

    def _wait_idle(self, timeout_s: float) -> None:
        """Wait until the kernel has been idle for a second: between two cells it is so for a moment only."""
        status = self.page.locator("#jp-main-statusbar")
        deadline, quiet = time.monotonic() + timeout_s, 0
        while quiet < 5:
            assert time.monotonic() < deadline, f"the kernel of {self.name} was not idle in time"
            self.page.wait_for_timeout(200)
            quiet = quiet + 1 if "Idle" in status.inner_text() else 0


@pytest.fixture
def notebook_page(browser: Any) -> Iterator[Callable[..., NotebookPage]]:
    """Call it with a server and the name of a notebook: the notebook, open. How it looked at the end is kept.

    A third argument is JavaScript that the page runs before its own.
    """
    notebooks: list[NotebookPage] = []

    def open_notebook(server: Server, name: str, script: str = "") -> NotebookPage:
        page = browser.new_page(viewport={"width": 1280, "height": 1100})
        page.add_init_script(script)
        notebooks.append(NotebookPage(page, server, name))
        return notebooks[-1]

    yield open_notebook
    for notebook in notebooks:
        notebook.screenshot("end")
        notebook.page.close()
