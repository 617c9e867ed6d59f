"""`lab doctor`: check the installation, and give a remedy for each failure.

    ok       python         3.11.2
    ok       sim            2 simulated ranks agree, 9 ms
    missing  nccl           no CUDA device; NCCL needs an NVIDIA GPU. Everything runs without.
    warning  NCCL_BUFSIZE   must be a known variable: got NCCL_BUFSIZE; did you mean NCCL_BUFFSIZE?
    FAILED   kernel         ...

A probe is a function that returns its finding or raises; any exception becomes a finding, so one broken part never
hides the others. Only a failure of a required probe fails the examination.
"""

import importlib
import platform
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

REINSTALL = "run `make lab` again, or `pip install 'lablib[labs]'`"
_PROBE_TIMEOUT_S = 90.0
_LONGEST = 300
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


class Absent(Exception):
    """An optional part is missing; the message says what does not work without it."""


class Doubtful(Exception):
    """A part works, but probably not as intended; the message says why, with a remedy."""


@dataclass(frozen=True)
class Probe:
    """One thing to examine: `look` returns the finding, or raises for a failure, which has this remedy."""

    name: str
    look: Callable[[], str]
    remedy: str
    required: bool = True


@dataclass(frozen=True)
class ProbeResult:
    """Result of a probe: `state` is "ok", "warning", "missing" (and not required) or "FAILED"."""

    name: str
    state: str
    text: str


def examine(probes: list[Probe] | None = None) -> int:
    """Print the findings of all probes as they come; returns 1 if a required probe fails, or 0."""
    chosen = all_probes() if probes is None else probes
    width = max((len(probe.name) for probe in chosen), default=0)
    failed, doubtful = list[str](), list[str]()
    for probe in chosen:
        finding = look(probe)
        print(f"{finding.state:<8} {finding.name:<{width}}  {finding.text}", flush=True)
        failed += [finding.name] if finding.state == "FAILED" else []
        doubtful += [finding.name] if finding.state == "warning" else []
    warnings = f" Warnings: {', '.join(doubtful)}." if doubtful else ""
    print(f"failed: {', '.join(failed)}" if failed else f"everything the labs need works here.{warnings}")
    return 1 if failed else 0


def look(probe: Probe) -> ProbeResult:
    """Run one probe. Never raises."""
    try:
        return ProbeResult(probe.name, "ok", probe.look())
    except KeyboardInterrupt:
        raise
    except Doubtful as error:
        return ProbeResult(probe.name, "warning", " ".join(str(error).split())[:_LONGEST])
    except BaseException as error:  # a library may even call sys.exit
        words = " ".join(str(error).split())[:_LONGEST]
        what = words if isinstance(error, Absent) else f"{type(error).__name__}: {words}"
        return ProbeResult(
            probe.name, "FAILED" if probe.required else "missing", f"{what.rstrip('. ')}; {probe.remedy}."
        )


def all_probes() -> list[Probe]:
    """All probes, the simplest first."""
    from lablib.course.running.doctor_gpus import gpu_probes  # here: these import this file
    from lablib.course.running.doctor_settings import settings_probes

    packages = ("jupyterlab", "ipykernel", "ipywidgets", "anywidget", "plotly", "papermill", "nbconvert")
    return [
        Probe("python", _python, "install Python 3.11, 3.12 or 3.13 and run `make lab`"),
        Probe("torch", _torch, REINSTALL),
        *(Probe(name, _package(name), REINSTALL) for name in (*packages, "jupytext")),
        Probe("kernel", _kernel, "run `python -m ipykernel install --sys-prefix`"),
        Probe("labs", _labs, "run `lab` inside the project, or set LAB_LABS to its labs/ folder"),
        Probe("accelerators", _accelerators, "not needed: every lab runs on a simulated cluster", required=False),
        Probe("sim", lambda: ranks_agree("sim", 2, "2 simulated ranks"), REINSTALL),
        Probe(
            "gloo",
            lambda: ranks_agree("gloo", 2, "2 processes"),
            "the labs still run on `sim`; check that 127.0.0.1 accepts connections",
        ),
        *gpu_probes(),
        *settings_probes(),
        Probe(
            "c++",
            _cpp_compiler,
            "only torch.compile needs it, for this CPU: `apt install g++`, or `xcode-select --install` on macOS",
            required=False,
        ),
        Probe("chromium", _chromium, "only browser tests need it: `apt install chromium`", required=False),
    ]


def _python() -> str:
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        raise Absent(f"Python must be 3.11 to 3.13: this is {platform.python_version()}")
    return f"{platform.python_version()} ({sys.executable})"


def _package(name: str) -> Callable[[], str]:
    def look() -> str:
        try:
            found = version(name)
        except PackageNotFoundError:
            raise Absent("not installed") from None
        importlib.import_module(name)
        return found

    return look


def _torch() -> str:
    """torch, and its build: set-up installs the CUDA build only where there is an NVIDIA driver."""
    found = _package("torch")()
    import torch

    return f"{found}, {f'with CUDA {torch.version.cuda}' if torch.version.cuda else 'without CUDA'}"


def _kernel() -> str:
    """Jupyter's `python3` kernel is this Python: another one would not have lablib."""
    from jupyter_client.kernelspec import KernelSpecManager

    spec = KernelSpecManager().get_kernel_spec("python3")
    program = shutil.which(spec.argv[0]) or spec.argv[0]
    if (
        spec.argv[0] not in ("python", "python3", "python3.11", "python3.12", "python3.13")
        and program != sys.executable
    ):
        raise Absent(f"the kernel python3 must be this Python: it is {program}, from {spec.resource_dir}")
    return spec.display_name


def _labs() -> str:
    from lablib.course.places import find_labs, find_labs_folder

    folder = find_labs_folder()
    return f"{len(find_labs(folder))} in {folder}"


def _accelerators() -> str:
    import torch

    from lablib.process.visible_gpus import gpus_text

    if torch.cuda.device_count():  # asks NVML: the doctor's process does not initialize CUDA
        return gpus_text()
    if torch.backends.mps.is_available():
        return "Apple GPU (mps)"
    if hasattr(torch, "xpu") and torch.xpu.is_available():
        return f"{torch.xpu.device_count()} x Intel GPU (xpu)"
    if torch.version.cuda is None and shutil.which("nvidia-smi"):
        raise Absent("none: this torch is without CUDA. If you have an NVIDIA GPU, `make clean`, then `make setup`")
    raise Absent("none found")


def ranks_agree(backend: str, ranks: int, who: str, timeout_s: float = _PROBE_TIMEOUT_S) -> str:
    """Ranks of a backend add their numbers. Raises RuntimeError for a wrong sum."""
    from lablib.launch import launch

    start = time.perf_counter()
    run = launch(sum_of_ranks, ranks=ranks, backend=backend, timeout_s=timeout_s)
    if [float(value) for value in run.values] != [ranks * (ranks + 1) / 2] * ranks:
        raise RuntimeError(f"{ranks} ranks added 1 to {ranks} and got {run.values}")
    return f"{who} agree, {1e3 * (time.perf_counter() - start):.0f} ms"


def sum_of_ranks() -> float:
    """The program that tests a backend: 1 + 2 + ..."""
    import torch
    import torch.distributed as dist

    x = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(x)
    return x.item()


def _cpp_compiler() -> str:
    """The C++ compiler of inductor, torch.compile's backend for CPUs."""
    from lablib.kernels import torch_compiler

    try:
        return torch_compiler.find_cpp_compiler()
    except torch_compiler.NoCppCompiler:
        raise Absent("no C++ compiler that torch.compile can use") from None


def _chromium() -> str:
    found = next((path for name in CHROMIUMS if (path := shutil.which(name))), None)
    if found is None:
        raise Absent("not found")
    return found
