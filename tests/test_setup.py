"""`make lab` and `make test` from nothing: what a person sees when it works, and when something is missing.

The Python and pip of most tests here are a small script that writes down what it was asked: no network, and seconds.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NEEDED = "sh make dirname head grep sed tail cut rm cat mkdir cp chmod sleep awk touch".split()

# A Python that is supported, has venv, and whose pip does what $PIP says. `-m venv` puts a copy of it into the venv.
PYTHON = """#!/bin/sh
echo "$*" >>"$CALLS"
case "$*" in
    --version) echo "Python 3.12.1" ;;
    *"import sys"*|*"import venv"*) ;;
    "-m venv --clear "*) rm -rf "$4"; mkdir -p "$4/bin"; cp "$0" "$4/bin/python"; cp "$0" "$4/bin/lab" ;;
    *"install --quiet --requirement"*) eval "${PIP:-:}" ;;
    *"-m pytest"*) exit "${PYTEST:-0}" ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that set-up reads, in a folder of their own."""
    folder = tmp_path / "check out"  # a space: paths are quoted
    (folder / "tools").mkdir(parents=True)
    for name in ("Makefile", "requirements.lock", "pyproject.toml", "tools/setup.sh"):
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A PATH with the usual tools and no Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in NEEDED:
        (folder / name).symlink_to(str(shutil.which(name)))
    return folder


def script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def make(checkout: Path, programs: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {"PATH": str(programs), "CALLS": str(checkout / "calls"), "HOME": str(checkout), **environment}
    return subprocess.run(["make", *words], cwd=checkout, env=variables, capture_output=True, text=True, timeout=120)


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    """What set-up says when it gives up: one line; make adds its own."""
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if not line.startswith("make:")]
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_make_test_sets_up_once_in_one_line_and_passes_arguments_on(checkout, programs):
    script(programs / "python3", PYTHON)
    done = make(checkout, programs, "test", "ARGS=-k one")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["Setting up .venv with Python 3.12.1 (once; some minutes) ..."]
    calls = (checkout / "calls").read_text().splitlines()
    assert [call for call in calls if "install" in call] == [
        "-m pip --disable-pip-version-check --no-input install --quiet --requirement requirements.lock",
        "-m pip --disable-pip-version-check --no-input install --quiet --no-deps --no-build-isolation --editable .",
    ]
    assert calls[-1] == "-m pytest -n 2 --dist worksteal -k one"

    (checkout / "calls").unlink()
    again = make(checkout, programs, "test")
    assert (again.returncode, again.stdout) == (0, "")
    assert (checkout / "calls").read_text().splitlines() == ["-m pytest -n 2 --dist worksteal"]


def test_make_lab_builds_what_is_stale_and_opens_the_first_lab(checkout, programs):
    script(programs / "python3", PYTHON)
    done = make(checkout, programs, "lab", "ARGS=--no-browser --port 8899")
    assert done.returncode == 0, done.stderr
    assert (checkout / "calls").read_text().splitlines()[-2:] == [
        "build",
        "open 00_first_steps --no-browser --port 8899",
    ]


def test_make_test_fails_when_pytest_does(checkout, programs):
    script(programs / "python3", PYTHON)
    assert make(checkout, programs, "test", PYTEST="1").returncode != 0


def test_pip_gets_the_users_arguments(checkout, programs):
    script(programs / "python3", PYTHON)
    make(checkout, programs, "setup", "PIP_ARGS=--find-links wheels")
    assert "--requirement requirements.lock --find-links wheels" in (checkout / "calls").read_text()


@pytest.mark.parametrize("changed", ["requirements.lock", "pyproject.toml"])
def test_a_changed_lock_or_pyproject_is_installed_at_the_next_call(checkout, programs, changed):
    script(programs / "python3", PYTHON)
    make(checkout, programs, "setup")
    future = time.time() + 10
    os.utime(checkout / changed, (future, future))
    (checkout / "calls").unlink()
    make(checkout, programs, "setup")
    calls = (checkout / "calls").read_text()
    assert "--requirement requirements.lock" in calls
    assert "-m venv" not in calls  # the environment itself is kept


def test_without_python_it_says_which_to_install(checkout, programs):
    text = sentence(make(checkout, programs, "lab"))
    assert text == (
        "setup: Python 3.11, 3.12 or 3.13 is needed and none was found (python3: no such program): install one, "
        "or name it, as in make lab PYTHON=/path/to/python3.12."
    )


def test_an_old_python_is_named_and_a_newer_one_beside_it_is_found(checkout, programs):
    script(programs / "python3", '#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.2" && exit\nexit 1\n')
    assert "none was found (python3: Python 3.9.2): install one" in sentence(make(checkout, programs, "test"))
    script(programs / "python3.12", PYTHON)
    assert make(checkout, programs, "test").returncode == 0


def test_a_python_named_by_the_user_must_be_supported(checkout, programs):
    script(programs / "python3", PYTHON)
    text = sentence(make(checkout, programs, "lab", "PYTHON=python9"))
    assert text.startswith("setup: PYTHON=python9 is not Python 3.11, 3.12 or 3.13 (no such program): name one that is")


def test_a_missing_venv_module_comes_with_its_remedy(checkout, programs):
    script(programs / "python3", PYTHON.replace('*"import sys"*|*"import venv"*) ;;', '*"import venv"*) exit 1 ;;'))
    text = sentence(make(checkout, programs, "lab"))
    assert text.startswith(
        "setup: Python 3.12.1 has no venv module: install it (on Debian and Ubuntu: apt install python3-venv)"
    )


@pytest.mark.parametrize("index", [{"PIP_NO_INDEX": "1"}, {"PIP_INDEX_URL": "http://127.0.0.1:9/"}])
def test_without_a_network_it_says_so_and_the_next_call_goes_on(checkout, programs, index):
    """With the real pip, where the package index is switched off or refuses connections."""
    environment = {"PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "0", **index}
    text = sentence(make(checkout, programs, "test", f"PYTHON={sys.executable}", **environment))
    assert text.startswith("setup: the packages cannot be downloaded (the first one missing is ")
    assert text.endswith(
        "connect this machine to the network or set pip's own options for your mirror or proxy, then run make again."
    )
    assert not (checkout / ".venv" / ".stamp-setup").exists()
    assert (checkout / ".venv" / "bin" / "python").exists()


def test_a_full_disk_is_one_sentence(checkout, programs):
    script(programs / "python3", PYTHON)
    full = "echo 'ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device'; exit 1"
    assert sentence(make(checkout, programs, "test", PIP=full)).startswith("setup: the disk is full: free about")


def test_another_failure_of_pip_shows_its_own_words(checkout, programs):
    script(programs / "python3", PYTHON)
    words = "echo 'Looking in links'; echo 'ERROR: torch is not a supported wheel on this platform.'; exit 1"
    done = make(checkout, programs, "test", PIP=words)
    assert done.returncode != 0
    assert (
        "setup: pip could not install the packages; its own words, and all of them in .venv/setup.log:" in done.stderr
    )
    assert "    ERROR: torch is not a supported wheel on this platform." in done.stderr
    assert "Looking in links" not in done.stderr
    assert not (checkout / ".venv" / ".stamp-setup").exists()


def test_an_interrupted_setup_is_done_again(checkout, programs):
    script(programs / "python3", PYTHON)
    variables = {"PATH": str(programs), "CALLS": str(checkout / "calls"), "PIP": "echo >started; sleep 30"}
    process = subprocess.Popen(
        ["make", "test"], cwd=checkout, env=variables, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while not (checkout / "started").exists():
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # what Ctrl-C does: to make, to the script and to pip
    _, errors = process.communicate(timeout=20)
    assert process.returncode != 0
    assert "setup: interrupted; run make again to go on." in errors
    assert "could not install" not in errors
    assert not (checkout / ".venv" / ".stamp-setup").exists()
    assert make(checkout, programs, "test").returncode == 0
    assert (checkout / ".venv" / ".stamp-setup").exists()


def test_an_environment_of_a_python_that_is_gone_is_made_anew(checkout, programs):
    script(programs / "python3", PYTHON)
    broken = checkout / ".venv" / "bin"
    broken.mkdir(parents=True)
    (broken / "python").symlink_to("/nowhere/python3.10")
    assert make(checkout, programs, "setup").returncode == 0
    assert "-m venv --clear .venv" in (checkout / "calls").read_text()


def test_the_scripts_are_plain_posix_shell():
    for name in ("setup.sh", "lock.sh"):
        assert (ROOT / "tools" / name).read_text().startswith("#!/bin/sh\n")
        assert subprocess.run(["sh", "-n", str(ROOT / "tools" / name)], check=False).returncode == 0


def test_help_names_every_target(checkout, programs):
    done = make(checkout, programs, "help")
    for target in ("lab", "test", "check", "lint", "build", "lock", "clean"):
        assert f"  make {target} " in done.stdout
