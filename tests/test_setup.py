"""`make lab` and `make test` from nothing: what a person sees when it works, and when something is missing.

The Python, pip and uv of most tests are small scripts that write down what they were asked: no network, in seconds.
"""

import contextlib
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import termios
import time
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NEEDED = "sh make dirname head grep sed tail cut rm cat mkdir cp chmod sleep awk touch uname mv stty".split()
MAC = "#!/bin/sh\necho Darwin\n"  # what `uname -s` says there
ON_GPU_MACHINE = Path("/proc/driver/nvidia/version").exists()
ON_LAPTOP = pytest.mark.skipif(ON_GPU_MACHINE, reason="this machine has an NVIDIA driver")

# A Python that is supported, has venv, and whose pip does what $PIP says. `-m venv` puts a copy of it into the venv.
PYTHON = """#!/bin/sh
echo "$*" >>"$CALLS"
case "$*" in
    --version) echo "Python 3.12.1" ;;
    *"import sys"*|*"import venv"*) ;;
    "-m venv --clear "*) rm -rf "$4"; mkdir -p "$4/bin"; cp "$0" "$4/bin/python"; cp "$0" "$4/bin/lab" ;;
    "-m pip config list") eval "${PIP_CONFIG:-:}" ;;
    *"install --progress-bar off --retries 1 --timeout 10 uv") eval "${PIP_UV:-exit 1}" ;;
    *"install --quiet --dry-run"*) eval "${PIP_FINDS:-:}" ;;
    *"install --progress-bar off --requirement"*) eval "${PIP:-:}" ;;
    *"-m pytest"*) exit "${PYTEST:-0}" ;;
esac
"""

# A uv that can choose torch's build. $UV_FINDS is what it finds, $UV_INSTALLS what becomes of the installation.
UV = """#!/bin/sh
echo "uv $*" >>"$CALLS"
case "$*" in
    "pip install --help") echo "      --torch-backend <TORCH_BACKEND>" ;;
    *--dry-run) echo "UV_HTTP_RETRIES=$UV_HTTP_RETRIES" >>"$CALLS"; eval "${UV_FINDS:-:}" ;;
    "pip install"*) eval "${UV_INSTALLS:-:}" ;;
esac
"""
# uv's own words, where PyTorch's index is closed to it.
UNREACHABLE = """
echo 'error: Request failed after 1 retry in 1.7s' >&2
echo '  cause: Failed to fetch: https://index.invalid/whl/cpu/torch/' >&2
echo '  cause: dns error' >&2
exit 2
"""
PIP = "-m pip --disable-pip-version-check --no-input install"
LOOKS = "--quiet --dry-run --report - --no-deps --retries 1 --timeout 10 --constraint requirements.lock torch"
PIP_LOOKS = f"{PIP} {LOOKS}"
PROJECT = f"{PIP} --progress-bar off --no-deps --no-build-isolation --editable ."


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that set-up reads, in a folder of their own."""
    folder = tmp_path / "check out"  # a space: paths are quoted
    (folder / "tools").mkdir(parents=True)
    for name in ("Makefile", "requirements.lock", "pyproject.toml", "tools/setup.sh", "tools/install.sh"):
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A PATH with the usual tools and a Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in NEEDED:
        (folder / name).symlink_to(str(shutil.which(name)))
    script(folder / "python3", PYTHON)
    return folder


@pytest.fixture
def with_uv(programs: Path) -> Path:
    """The same PATH, with a uv."""
    script(programs / "uv", UV)
    return programs


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
    done = make(checkout, programs, "test", "ARGS=-k one")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "Setting up .venv with Python 3.12.1 (once; some minutes) ...",
        "pip installs the lock, since uv cannot be downloaded. torch: the build that pip finds, which on Linux is "
        "mostly CUDA's (gigabytes).",
    ]
    calls = (checkout / "calls").read_text().splitlines()
    assert [call for call in calls if "install" in call] == [
        f"{PIP} --progress-bar off --retries 1 --timeout 10 uv",
        *([] if ON_GPU_MACHINE else [PIP_LOOKS]),
        f"{PIP} --progress-bar off --requirement requirements.lock",
        PROJECT,
    ]
    assert calls[-1] == "-m pytest -n 2 --dist worksteal --durations=10 -k one"

    (checkout / "calls").unlink()
    again = make(checkout, programs, "test")
    assert (again.returncode, again.stdout) == (0, "")
    assert (checkout / "calls").read_text().splitlines() == ["-m pytest -n 2 --dist worksteal --durations=10"]

    for command in ("labs", "all"):
        (checkout / "calls").unlink()
        assert make(checkout, programs, f"test-{command}").returncode == 0
        call = f"-m pytest -n 2 --dist worksteal --durations=10 --{command}"
        assert (checkout / "calls").read_text().splitlines() == [call]


def test_make_lab_builds_what_is_stale_and_opens_the_first_lab(checkout, programs):
    done = make(checkout, programs, "lab", "ARGS=--no-browser --port 8899")
    assert done.returncode == 0, done.stderr
    assert (checkout / "calls").read_text().splitlines()[-2:] == [
        "build",
        "open 00_first_steps --no-browser --port 8899",
    ]


def test_make_test_fails_when_pytest_does(checkout, programs):
    assert make(checkout, programs, "test", PYTEST="1").returncode != 0


def test_pip_gets_the_users_arguments(checkout, programs):
    make(checkout, programs, "setup", "PIP_ARGS=--find-links wheels")
    assert "--requirement requirements.lock --find-links wheels" in (checkout / "calls").read_text()


@pytest.mark.parametrize("changed", ["requirements.lock", "pyproject.toml"])
def test_a_changed_lock_or_pyproject_is_installed_at_the_next_call(checkout, programs, changed):
    make(checkout, programs, "setup")
    future = time.time() + 10
    os.utime(checkout / changed, (future, future))
    (checkout / "calls").unlink()
    make(checkout, programs, "setup")
    calls = (checkout / "calls").read_text()
    assert "--requirement requirements.lock" in calls
    assert "-m venv" not in calls  # the environment itself is kept


def test_without_python_it_says_which_to_install(checkout, programs):
    (programs / "python3").unlink()
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
    text = sentence(make(checkout, programs, "lab", "PYTHON=python9"))
    assert text.startswith("setup: PYTHON=python9 is not Python 3.11, 3.12 or 3.13 (no such program): name one that is")


def test_a_python_named_for_an_environment_of_another_one_is_refused(checkout, programs):
    assert make(checkout, programs, "setup").returncode == 0
    script(programs / "python3.13", PYTHON.replace("3.12.1", "3.13.0"))
    assert sentence(make(checkout, programs, "test", "PYTHON=python3.13")) == (
        "setup: .venv has Python 3.12.1, and PYTHON=python3.13 is another one (Python 3.13.0): delete it (make clean), "
        "or name another folder, as in make setup PYTHON=python3.13 LABLIB_VENV=other."
    )
    assert make(checkout, programs, "setup", "PYTHON=python3").returncode == 0
    assert make(checkout, programs, "setup", "PYTHON=python3.13", "LABLIB_VENV=other").returncode == 0


def test_a_missing_venv_module_comes_with_its_remedy(checkout, programs):
    script(programs / "python3", PYTHON.replace('*"import sys"*|*"import venv"*) ;;', '*"import venv"*) exit 1 ;;'))
    text = sentence(make(checkout, programs, "lab"))
    assert text.startswith(
        "setup: Python 3.12.1 has no venv module: install it (on Debian and Ubuntu: apt install python3-venv)"
    )


@pytest.mark.parametrize(
    "index", [{"PIP_INDEX_URL": "http://127.0.0.1:9/"}, pytest.param({"PIP_NO_INDEX": "1"}, marks=pytest.mark.thorough)]
)
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
    full = "echo 'ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device'; exit 1"
    assert sentence(make(checkout, programs, "test", PIP=full)).startswith("setup: the disk is full: free about")
    script(programs / "uv", UV)
    full = "echo '  cause: No space left on device (os error 28)'; exit 2"
    assert sentence(make(checkout, programs, "setup", UV_INSTALLS=full)).startswith("setup: the disk is full: free")


def test_another_failure_of_pip_shows_its_own_words(checkout, programs):
    words = "echo 'Looking in links'; echo 'ERROR: torch is not a supported wheel on this platform.'; exit 1"
    done = make(checkout, programs, "test", PIP=words)
    assert done.returncode != 0
    assert (
        "setup: pip could not install the packages; its own words, and all of them in .venv/setup.log:" in done.stderr
    )
    assert "    ERROR: torch is not a supported wheel on this platform." in done.stderr
    assert "Looking in links" not in done.stderr
    assert not (checkout / ".venv" / ".stamp-setup").exists()


def installed_by(checkout: Path) -> list[str]:
    """The calls that install something, without those that only look."""
    calls = (checkout / "calls").read_text().splitlines()
    return [call for call in calls if " install " in call and "--help" not in call and "--dry-run" not in call]


def uv_command(backend: str) -> str:
    named = f" --torch-backend={backend}" if backend else ""
    return (
        f"uv pip install --python .venv/bin/python --no-progress --color never{named} --requirement requirements.lock"
    )


@pytest.mark.parametrize(
    ("machine", "backend", "words"),
    [
        pytest.param("laptop", "cpu", "the CPU build, since this machine has no NVIDIA driver", marks=ON_LAPTOP),
        ("gpu", "auto", "the build for this machine's NVIDIA driver"),
        ("mac", "", "the one build there is for macOS"),
        ("UV_TORCH_BACKEND=rocm7.2", "rocm7.2", "the build that UV_TORCH_BACKEND names, rocm7.2"),
        ("LABLIB_TORCH=cpu", "cpu", "the CPU build, as LABLIB_TORCH asks"),
        pytest.param("LABLIB_TORCH=cuda", "", "the CUDA build, as LABLIB_TORCH asks", marks=ON_LAPTOP),
    ],
)
def test_uv_installs_the_build_of_torch_that_the_machine_can_use(checkout, with_uv, machine, backend, words):
    if machine == "gpu":
        script(with_uv / "nvidia-smi", "#!/bin/sh\necho 'GPU 0: NVIDIA H100'\n")
    if machine == "mac":
        (with_uv / "uname").unlink()
        script(with_uv / "uname", MAC)
    done = make(checkout, with_uv, "setup", **dict(re.findall("(.+)=(.+)", machine)))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1:-1] == [f"uv installs the lock. torch: {words}."]
    assert installed_by(checkout) == [uv_command(backend), PROJECT]
    assert f"{uv_command(backend)} --dry-run" in (checkout / "calls").read_text()  # it looked before it began


@ON_LAPTOP
def test_an_nvidia_smi_without_a_driver_is_no_gpu(checkout, with_uv):
    """A container for CUDA, started on a laptop."""
    script(with_uv / "nvidia-smi", "#!/bin/sh\necho 'no driver'; exit 9\n")
    assert "no NVIDIA driver" in make(checkout, with_uv, "setup").stdout


@pytest.mark.parametrize(
    ("sources", "retries"), [({}, ""), ({}, "7"), ({"PIP_CONFIG": "echo \"global.index-url='here'\""}, "")]
)
def test_where_torchs_index_is_closed_pip_installs_and_one_line_says_why(checkout, with_uv, sources, retries):
    done = make(checkout, with_uv, "setup", UV_FINDS=UNREACHABLE, UV_HTTP_RETRIES=retries, **sources)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1:-1] == [
        "pip installs the lock, since uv cannot fetch https://index.invalid/whl/cpu/torch/. torch: the build that pip "
        "finds, which on Linux is mostly CUDA's (gigabytes)."
    ]
    assert installed_by(checkout)[0].endswith("install --progress-bar off --requirement requirements.lock")
    assert f"UV_HTTP_RETRIES={retries or 1}\n" in (checkout / "calls").read_text()  # three retries take 13 s
    assert "dns error" in (checkout / ".venv" / "setup-uv.log").read_text()
    assert "dns error" not in (checkout / ".venv" / "setup.log").read_text()


def test_whatever_else_uv_says_is_the_reason(checkout, with_uv):
    done = make(checkout, with_uv, "setup", UV_FINDS="echo 'error: No solution'; echo '  cause: no such torch'; exit 2")
    assert done.returncode == 0
    assert 'pip installs the lock, since uv says "cause: no such torch". ' in done.stdout


@pytest.mark.parametrize(
    ("settings", "handed_over", "names"),
    [
        ("global.index-url='here'", "DEFAULT_INDEX=here", "index-url"),
        (":env:.find-links='a b'", "FIND_LINKS=a,b", "find-links"),
        ("install.no-index='1'", "NO_INDEX=1", "no-index"),
        ("global.extra-index-url='\\na\\nb'", "INDEX=a b", "extra-index-url"),
        ("global.index-url='file'\n:env:.index-url='environment'", "DEFAULT_INDEX=environment", "index-url"),
    ],
)
def test_pips_settings_of_where_packages_come_from_are_handed_to_uv(checkout, programs, settings, handed_over, names):
    """uv does not read them: a mirror, or a folder of wheels, would be passed over. torch comes from there, too."""
    script(programs / "uv", UV.replace("*--dry-run)", "*--dry-run) env >environment;"))
    (programs / "env").symlink_to(str(shutil.which("env")))
    lines = "; ".join(f"printf '%s\\n' \"{line}\"" for line in [*settings.split("\n"), ":env:.timeout='9'"])
    done = make(checkout, programs, "setup", PIP_CONFIG=lines)
    assert done.stdout.splitlines()[1:-1] == [
        f"uv installs the lock. torch: the build of the sources in pip's settings ({names})."
    ]
    assert installed_by(checkout) == [uv_command(""), PROJECT]
    found = (checkout / "environment").read_text().splitlines()
    assert {f"UV_{handed_over}", "UV_INDEX_STRATEGY=unsafe-best-match"} <= set(found)


CUDA_FOUND = "echo ' + nvidia-nccl-cu13==2.29.7'"
PYTORCH_CLOSED = f'case "$*" in *--torch-backend=cpu*) {UNREACHABLE} ;; esac; {CUDA_FOUND}'
CUDA_ONLY = {"PIP_CONFIG": "echo \"global.index-url='here'\"", "UV_FINDS": PYTORCH_CLOSED}


def at_a_terminal(checkout: Path, programs: Path, typed: str = "", **environment: str) -> tuple[int, str]:
    """`make setup` at a pseudo-terminal. Returns its exit code and the text that the terminal received."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(ours, (24, int(environment.get("COLUMNS", 80))))
    variables = {"PATH": str(programs), "CALLS": str(checkout / "calls"), "HOME": str(checkout), **environment}
    with subprocess.Popen(
        ["make", "setup"], cwd=checkout, env=variables, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        os.write(ours, typed.encode())
        shown = b""
        with contextlib.suppress(OSError):  # its end, on Linux
            while part := os.read(ours, 4096):
                shown += part
        os.close(ours)
        return process.wait(timeout=120), shown.decode()


@ON_LAPTOP
@pytest.mark.parametrize(("typed", "installs"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_where_only_the_cuda_build_can_be_had_a_terminal_is_asked(checkout, with_uv, typed, installs):
    code, shown = at_a_terminal(checkout, with_uv, typed, **CUDA_ONLY)
    assert "only the CUDA build of torch: 2.5 GB more to download and 3 GB more on the disk than" in shown
    assert "Install it all the same? [y/N]" in shown
    assert (code == 0) is installs and (uv_command("") in installed_by(checkout)) is installs
    assert ("nothing was installed: name a source of torch's CPU build" in shown) is not installs


PIPS_CUDA = {"PIP_FINDS": """printf '"requires_dist": [\\n  "nvidia-nccl-cu13==2.29.7; platform_system == ..."\\n]'"""}


@ON_LAPTOP
@pytest.mark.parametrize(("typed", "installs"), [("y\n", True), ("n\n", False)])
@pytest.mark.parametrize("way", [{}, {"PIP_ARGS": "--pre"}, {"UV_TORCH_BACKEND": "cpu", "UV_FINDS": UNREACHABLE}])
def test_pip_asks_at_a_terminal_before_it_takes_the_cuda_build(checkout, programs, way, typed, installs):
    if "UV_FINDS" in way:  # a build named for uv, which cannot fetch it
        script(programs / "uv", UV)
    code, shown = at_a_terminal(checkout, programs, typed, **PIPS_CUDA, **way)
    assert "Install it all the same? [y/N]" in shown and (code == 0) is installs
    assert any("off --requirement requirements.lock" in call for call in installed_by(checkout)) is installs
    assert ("nothing was installed: name a source of torch's CPU build" in shown) is not installs
    assert f"{PIP_LOOKS} {way.get('PIP_ARGS', '')}".strip() in (checkout / "calls").read_text()


@ON_LAPTOP
def test_a_variable_answers_for_pip_and_a_cpu_build_is_taken_without_a_question(checkout, programs):
    code, shown = at_a_terminal(checkout, programs, LABLIB_TORCH="cuda", **PIPS_CUDA)
    assert code == 0 and "all the same" not in shown and "--dry-run" not in (checkout / "calls").read_text()
    (checkout / ".venv" / ".stamp-setup").unlink()
    assert "LABLIB_TORCH=cpu refuses it" in sentence(make(checkout, programs, "setup", LABLIB_TORCH="cpu", **PIPS_CUDA))
    (checkout / ".venv" / "setup.log").unlink()
    code, shown = at_a_terminal(checkout, programs, PIP_FINDS="""echo '  "sympy>=1.13.3",'""")
    assert code == 0 and "all the same" not in shown


@ON_LAPTOP
def test_a_variable_answers_for_the_terminal_and_without_one_the_size_is_said(checkout, with_uv):
    code, shown = at_a_terminal(checkout, with_uv, LABLIB_TORCH="cuda", **CUDA_ONLY)
    assert code == 0 and "all the same" not in shown
    (checkout / ".venv" / ".stamp-setup").unlink()
    refused = sentence(make(checkout, with_uv, "setup", LABLIB_TORCH="cpu", **CUDA_ONLY))
    assert "3 GB more on the disk than the CPU build, and LABLIB_TORCH=cpu refuses it: name a source" in refused
    done = make(checkout, with_uv, "setup", **CUDA_ONLY)
    assert done.returncode == 0
    assert "than the CPU build. It is installed; LABLIB_TORCH=cpu would refuse it.\n" in done.stdout


@ON_LAPTOP
@pytest.mark.parametrize(
    ("setting", "variable", "takes_cpu"),
    [
        ("find-links", {}, True),
        ("constraint", {}, True),
        ("find-links", {"LABLIB_TORCH": "cuda"}, False),
        ("index-url", {}, False),  # instead of the usual index: PyTorch's is then not asked either
        ("index-url", {"LABLIB_TORCH": "cpu"}, True),
        ("no-index", {}, False),
    ],
)
def test_pytorchs_index_has_the_cpu_build_where_pips_settings_leave_it_open(
    checkout, with_uv, setting, variable, takes_cpu
):
    finds = f'case "$*" in *--torch-backend=cpu*) ;; *) {CUDA_FOUND} ;; esac'
    done = make(checkout, with_uv, "setup", PIP_CONFIG=f"echo \"global.{setting}='here'\"", UV_FINDS=finds, **variable)
    assert installed_by(checkout)[0] == uv_command("cpu" if takes_cpu else ""), done.stderr
    assert ("torch: the CPU build of PyTorch's index." in done.stdout) is takes_cpu
    assert ("only the CUDA build" in done.stdout) is (not takes_cpu and not variable)


def test_another_word_for_the_build_is_refused(checkout, programs):
    refused = sentence(make(checkout, programs, "setup", LABLIB_TORCH="gpu"))
    assert refused == "setup: LABLIB_TORCH must be cpu or cuda: got gpu."


UV_WORDS = """
printf 'Resolved 131 packages in 5ms\\nDownloading torch (200.0MiB)\\nDownloading pandas (11.5MiB)\\n' >&2
printf 'Downloading ruff (1.0GiB)\\n Downloaded ruff\\n' >&2
sleep 1.5
printf ' Downloaded torch\\n Downloaded pandas\\n' >&2
sleep 1.5
"""
PIP_WORDS = """
printf 'Collecting numpy==2.4 (from -r requirements.lock)\\nCollecting torch==2.13.0\\n'
echo '  Downloading torch-2.13.0-cp312-cp312-manylinux_2_28_x86_64.whl (526.6 MB)'
sleep 1.5
echo 'Installing collected packages: numpy, torch'
sleep 1.5
"""


@pytest.mark.parametrize(
    ("columns", "environment", "downloading"),
    [
        (80, {"UV_INSTALLS": UV_WORDS}, "downloading, 1 s: 222 MB in 2 packages to go"),
        (40, {"UV_INSTALLS": UV_WORDS}, "downloading, 1 s: 222 MB in 2 packages "),
        (80, {"PIP_ARGS": "--pre", "PIP": PIP_WORDS}, r"downloading, 1 s: package 2 of about \d+, torch \(526.6 MB\) "),
    ],
)
def test_a_terminal_sees_megabytes_to_go_and_packages(checkout, with_uv, columns, environment, downloading):
    code, shown = at_a_terminal(checkout, with_uv, COLUMNS=str(columns), UV_FINDS="sleep 1.5", **environment)
    assert code == 0
    assert ("\rlooking for packages, 1 s" in shown) is ("PIP" not in environment)
    assert re.search(rf"\r{downloading}", shown) and re.search(r"\rinstalling, \d s: \d+ of (about )?\d+ pack", shown)
    assert max(len(part) for part in re.split(r"[\r\n]", shown) if re.match("looking|downl|inst", part)) < columns
    lines = [line.rpartition("\r")[2].partition(" ")[0] for line in shown.split("\r\n")]
    assert lines == ["Setting", "pip" if "PIP" in environment else "uv", ".venv", ""]


@pytest.mark.parametrize("setting", [":env:.extra-index-url=''", "global.timeout='60'", "global.cert='index-url'"])
def test_other_settings_of_pip_and_empty_ones_leave_uv_its_work(checkout, with_uv, setting):
    done = make(checkout, with_uv, "setup", PIP_CONFIG=f'echo "{setting}"')
    assert "uv installs the lock." in done.stdout


@pytest.mark.parametrize("variable", ["UV_TORCH_BACKEND", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_FIND_LINKS"])
def test_a_setting_of_uv_goes_before_those_of_pip_and_pips_arguments_before_all(checkout, with_uv, variable):
    settings = {variable: "cpu", "PIP_CONFIG": "echo \"global.index-url='here'\""}
    assert "uv installs the lock." in make(checkout, with_uv, "setup", **settings).stdout
    (checkout / ".venv" / ".stamp-setup").unlink()
    done = make(checkout, with_uv, "setup", "PIP_ARGS=--pre", **settings)
    assert "pip installs the lock, since PIP_ARGS are arguments of pip." in done.stdout


def test_a_uv_too_old_to_choose_is_replaced_by_one_in_the_environment(checkout, programs):
    script(programs / "uv", "#!/bin/sh\necho 'uv 0.4'\n")
    script(checkout / "new-uv", UV)
    done = make(checkout, programs, "setup", PIP_UV='cp "$HOME/new-uv" .venv/bin/uv')
    assert "uv installs the lock." in done.stdout
    (checkout / ".venv" / ".stamp-setup").unlink()
    (checkout / "calls").unlink()
    assert "uv installs the lock." in make(checkout, programs, "setup").stdout
    assert "--retries" not in (checkout / "calls").read_text()  # it is there now


def test_a_download_that_breaks_off_is_one_sentence_and_no_reason_for_gigabytes(checkout, with_uv):
    """uv had found everything: pip would take the CUDA build from the same network."""
    broken = "echo '  x Failed to download `torch==2.13.0+cpu`'; echo '  cause: operation timed out'; exit 1"
    text = sentence(make(checkout, with_uv, "setup", UV_INSTALLS=broken))
    assert text == (
        "setup: the packages cannot be downloaded (the first one missing is torch==2.13.0+cpu): connect this machine "
        "to the network or set uv's own options for your mirror or proxy, then run make again."
    )
    assert "--requirement" not in "".join(call for call in installed_by(checkout) if "pip --disable" in call)
    assert not (checkout / ".venv" / ".stamp-setup").exists()
    assert make(checkout, with_uv, "setup").returncode == 0


def test_the_environment_may_lie_elsewhere(checkout, programs):
    done = make(checkout, programs, "test", LABLIB_VENV=str(checkout.parent / "elsewhere"))
    assert done.returncode == 0, done.stderr
    assert (checkout.parent / "elsewhere" / ".stamp-setup").exists()
    assert not (checkout / ".venv").exists()


def test_the_devcontainers_image_has_what_set_up_reads_and_the_workspace_goes_on_from_it(checkout, programs):
    """What its Dockerfile copies, in a folder of its own; what comes to the builder is no more than that."""
    folder = ROOT / ".devcontainer"
    dockerfile, image = (folder / "Dockerfile").read_text(), checkout.parent / "image"
    for names in re.findall(r"^COPY --chown=learner (.+)$", dockerfile, re.MULTILINE):
        *files, target = names.split()
        (image / target).mkdir(parents=True, exist_ok=True)
        for name in files:
            assert f"!{name.split('/')[0]}" in (folder / "Dockerfile.dockerignore").read_text().splitlines()
            shutil.copy(ROOT / name, image / target)
    assert (image / "README.md").exists() and (image / "LICENSE").exists()  # pyproject.toml names them
    command = re.search(r"^RUN (UV_NO_CACHE.+)$", dockerfile, re.MULTILINE)
    assert command
    script(programs / "uv", UV)
    home = {"LABLIB_VENV": str(checkout.parent / "venv"), "CALLS": str(checkout / "calls"), "PATH": str(programs)}
    done = subprocess.run(["sh", "-c", command[1]], cwd=image, env=home, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "uv installs the lock." in done.stdout

    (checkout / "calls").unlink()
    assert json.loads((folder / "devcontainer.json").read_text())["postCreateCommand"].startswith("make setup &&")
    again = make(checkout, programs, "setup", LABLIB_VENV=home["LABLIB_VENV"])
    assert again.returncode == 0, again.stderr
    assert "-m venv" not in (checkout / "calls").read_text()
    assert installed_by(checkout)[-1] == PROJECT  # of the workspace, not of the image


# Names in Ubuntu 24.04 (noble), main and universe: packages.ubuntu.com. librdmacm1 is only provided by the last one.
UBUNTU_24_PACKAGES = set("python3 python3-dev python3-venv g++ git numactl".split())
UBUNTU_24_PACKAGES |= set("ibverbs-providers libibverbs1 librdmacm1t64".split())


def test_the_training_image_installs_the_lock_for_cuda_and_starts_torchrun(checkout, programs):
    """Its text: known instructions, shell that parses, files that are there. Its installation runs with a stand-in."""
    folder, image = ROOT / "docker", checkout.parent / "image"
    text = re.sub(r"\\\n\s*", "", (folder / "Dockerfile").read_text())
    steps = [line.split(" ", 1) for line in text.splitlines() if line and not line.startswith("#")]
    assert {name for name, _ in steps} == set("FROM ARG RUN USER ENV WORKDIR COPY ENTRYPOINT CMD".split())
    base = re.fullmatch(r"nvidia/cuda:(\d+)\.(\d)\.\d-devel-ubuntu24\.04", steps[0][1])
    assert base and f"UV_TORCH_BACKEND=cu{base[1]}{base[2]} " in text  # torch's build has the CUDA of the base
    pythons = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert pythons == ">=3.11,<3.14"  # Ubuntu 24.04 has 3.12
    installed = re.search(r"--no-install-recommends\s+(.*?) &&", text)
    assert installed and set(installed[1].split()) <= UBUNTU_24_PACKAGES
    assert [json.loads(value) for name, value in steps if name in ("ENTRYPOINT", "CMD")] == [["torchrun"], ["--help"]]
    commands = [value for name, value in steps if name == "RUN"]
    assert all(subprocess.run(["sh", "-n", "-c", command]).returncode == 0 for command in commands)

    sent = (folder / "Dockerfile.dockerignore").read_text().splitlines()
    for *files, target in [value.removeprefix("--chown=trainer ").split() for name, value in steps if name == "COPY"]:
        for name in files:
            assert (ROOT / name).exists() and f"!{name.split('/')[0]}" in sent
            if (ROOT / name).is_file():
                (image / target).mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, image / target)
    script(programs / "uv", UV)
    python = checkout.parent / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    script(python, PYTHON)
    variables = {"VIRTUAL_ENV": str(python.parents[1]), "CALLS": str(checkout / "calls"), "PATH": str(programs)}
    command = commands[-1].replace("/tmp/install.log", str(checkout / "install.log"))
    done = subprocess.run(["sh", "-c", command], cwd=image, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lock, project = installed_by(checkout)
    assert "--torch-backend=cu130" in lock and lock.endswith("--requirement requirements.lock")
    assert project == PROJECT


def test_binder_installs_the_lock_and_the_project_into_its_own_python(checkout, programs):
    (programs / "bash").symlink_to(str(shutil.which("bash")))
    for name in ("python", "lab", "jupyter"):
        script(programs / name, PYTHON)
    script(programs / "uv", UV)
    (checkout / "binder").mkdir()
    shutil.copy(ROOT / "binder" / "postBuild", checkout / "binder")
    variables = {"PATH": str(programs), "CALLS": str(checkout / "calls")}
    done = subprocess.run(
        ["./binder/postBuild"], cwd=checkout, env=variables, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    lock, project = installed_by(checkout)
    assert f"--python {programs}/python " in lock and lock.endswith("--requirement requirements.lock")
    assert project == PROJECT
    assert (checkout / "calls").read_text().splitlines()[-2:] == [
        "build",
        "labextension disable @jupyterlab/apputils-extension:announcements",
    ]


# A pip that is at work, and takes an interrupt as pip does. Not a shell: dash loses one that comes while it starts a
# command. Nor one long sleep: an interrupt right before it waits for its end.
AT_WORK = """exec "$REAL" -S -c 'import time; open("started", "w").close(); [time.sleep(0.05) for _ in range(2000)]'"""


def test_an_interrupted_setup_is_done_again(checkout, programs):
    variables = {"PATH": str(programs), "CALLS": str(checkout / "calls"), "PIP": AT_WORK, "REAL": sys.executable}
    with subprocess.Popen(
        ["make", "test"], cwd=checkout, env=variables, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        while not (checkout / "started").exists():
            assert process.poll() is None
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)  # what Ctrl-C does: to make, to the script and to pip
        _, errors = process.communicate()
    assert process.returncode != 0
    assert "setup: interrupted; run make again to go on." in errors
    assert "could not install" not in errors
    assert not (checkout / ".venv" / ".stamp-setup").exists()
    assert make(checkout, programs, "test").returncode == 0
    assert (checkout / ".venv" / ".stamp-setup").exists()


def test_an_environment_of_a_python_that_is_gone_is_made_anew(checkout, programs):
    broken = checkout / ".venv" / "bin"
    broken.mkdir(parents=True)
    (broken / "python").symlink_to("/nowhere/python3.10")
    assert make(checkout, programs, "setup").returncode == 0
    assert "-m venv --clear .venv" in (checkout / "calls").read_text()


def test_the_scripts_are_plain_posix_shell():
    for name in ("setup.sh", "install.sh", "lock.sh"):
        assert (ROOT / "tools" / name).read_text().startswith("#!/bin/sh\n")
        assert subprocess.run(["sh", "-n", str(ROOT / "tools" / name)], check=False).returncode == 0


def test_help_names_every_target(checkout, programs):
    done = make(checkout, programs, "help")
    for target in ("lab", "test", "check", "lint", "build", "lock", "clean"):
        assert f"  make {target} " in done.stdout
