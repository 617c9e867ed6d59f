"""`make test-gpu`: everything that needs a GPU, one step after the other, and a report to send.

    python tools/gpu_report.py                  on a machine with GPUs: all steps, and benchmarks/gpu/DEVICE-DATE.json
    python tools/gpu_report.py --dry-run        what it would do, and what is missing here; runs nothing
    python tools/gpu_report.py --stand-in       the same steps with gloo on this CPU: whether the command itself works

Steps: tests marked `gpu`; `lab doctor`; `lab calibrate`; programs predicted and measured; each lab that takes a
backend, with its solutions, on 2, 4 or 8 ranks. One GPU is enough: it is calibrated alone, and the two ranks of a lab
share it. A step that fails does not keep the next from running.
The report is JSON: device, versions, date, each step with its result, measured beside predicted. It names no host and
no user.

Exit codes: 0 all passed (or a dry run), 1 a step failed, 2 nothing ran: there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "benchmarks" / "gpu"
SHARE_VARIABLE = "LABLIB_SHARE_GPUS"  # lablib/real/gpu/sharing.py: "1" lets ranks share a GPU
FORMAT = "lablib GPU report 1"
STATES = ("passed", "failed", "left out")
_LAST_LINES = 12
_STEP_TIMEOUT_S = 4 * 3600


@dataclass(frozen=True)
class Step:
    """One thing to run: `needs` is what is missing for it here, "" for nothing."""

    name: str
    command: tuple[str, ...]
    needs: str = ""


@dataclass(frozen=True)
class Result:
    """What became of a step: `said` counts its tests, or ends its output where it failed, or says what is missing."""

    name: str
    command: str
    state: str
    time_s: float
    said: str


Runner = Callable[[Sequence[str]], tuple[int, str]]


def main(words: Sequence[str] | None = None, runner: Runner | None = None) -> int:
    """Run the command. `runner` runs one step and returns its exit code and output; None: as a process."""
    options = _options(words)
    missing = "" if options.stand_in else missing_here()
    with tempfile.TemporaryDirectory() as scratch:
        steps = steps_of(options, Path(scratch), missing)
        if options.dry_run:
            print(plan_text(steps, missing))
            return 0
        if missing:
            print(f"nothing was run: {missing}.\n{_WITHOUT}", file=sys.stderr)
            return 2
        results = [run(step, runner or _process) for step in steps]
        report = report_of(results, options, _compared(Path(scratch)))
    out = Path(options.out) if options.out else FOLDER / f"{_slug(report)}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    failed = [result.name for result in results if result.state == "failed"]
    print(f"\nreport: {out}\ndocs/gpu_reports.md says how to send it.")
    print(f"failed: {', '.join(failed)}" if failed else "everything that ran has passed.")
    return 1 if failed else 0


_WITHOUT = "--dry-run shows the steps; --stand-in runs them with gloo on this CPU, which says nothing of GPUs."


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make test-gpu", description="Try everything that needs a GPU; write a report."
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would run, and what is missing here")
    parser.add_argument("--stand-in", action="store_true", help="run the steps with gloo on this CPU")
    parser.add_argument("--quick", action="store_true", help="a rougher calibration, and the labs' small sizes")
    parser.add_argument("--labs", nargs="*", metavar="NN", help="default: all that take a backend")
    parser.add_argument("--only", nargs="*", metavar="STEP", help="some steps: tests doctor calibrate compare labs")
    parser.add_argument("--out", metavar="FILE.json", help="default: benchmarks/gpu/DEVICE-DATE.json")
    return parser.parse_args(words)


# ---- what there is ----


def missing_here() -> str:
    """What keeps GPU steps from running on this machine; "" for nothing."""
    import torch
    import torch.distributed as dist

    if torch.version.cuda is None:
        return "this torch is built without CUDA; `make clean`, then `UV_TORCH_BACKEND=cu130 make setup`"
    if not torch.cuda.is_available():
        return "torch sees no CUDA device; `nvidia-smi` says whether driver and GPU are there"
    if not dist.is_nccl_available():
        return "this build of torch has no NCCL; install torch's own wheel for CUDA"
    return ""


def num_ranks(stand_in: bool) -> int:
    """A rank for each GPU; two for the stand-in, and where nothing is known."""
    import torch

    return 2 if stand_in else torch.cuda.device_count() or 2


def ranks_of_labs(ranks: int) -> int:
    """The number of ranks that every lab takes: as many as there are GPUs, or the next smaller power of two; or two."""
    return next((count for count in (8, 4) if count <= ranks), 2)


def machine(stand_in: bool) -> dict[str, Any]:
    """Device and versions, without names of host and user."""
    import torch
    from torch.cuda import nccl

    from lablib.calibration.machine import machine_text, versions

    about: dict[str, Any] = {"device": machine_text(not stand_in), "count": num_ranks(stand_in), **versions()}
    about |= {"cuda": torch.version.cuda, "commit": _commit(), "machine": platform.machine()}
    if not stand_in:
        properties = torch.cuda.get_device_properties(0)
        about |= {
            "memory_bytes": properties.total_memory,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "nccl": ".".join(map(str, nccl.version())),
        }
    return about


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


# ---- steps ----


def steps_of(options: argparse.Namespace, scratch: Path, missing: str = "") -> list[Step]:
    """What runs, in order. `scratch` holds what steps leave for the report."""
    ranks, backend = num_ranks(options.stand_in), "gloo" if options.stand_in else "nccl"
    python, lab = (sys.executable,), (sys.executable, "-m", "lablib.cli")
    quick = ("--quick",) if options.quick or options.stand_in else ()
    share = ("env", f"{SHARE_VARIABLE}=1")  # a lab has two ranks or more, also on one GPU
    profile = scratch / "profile.toml"
    tests = ("-m", "pytest", "-n", "0", "-q", "-m", "gpu", f"--junitxml={scratch / 'tests.xml'}")
    compare = (str(Path(__file__)), "--compare", str(scratch / "compared.json"), backend, str(ranks), str(profile))
    calibrate = ("calibrate", "--backend", backend, "--ranks", str(ranks), *quick, "--out", str(profile))
    steps = [
        Step("tests", (*python, *tests), missing),
        Step("doctor", (*lab, "doctor"), ""),
        Step("calibrate", (*lab, *calibrate), missing),
        Step("compare", (*python, *compare), missing),
    ]
    for number, parameters in labs_with_backend().items():
        if not options.labs or number in options.labs:
            flags = lab_flags(parameters, backend, ranks) + list(quick if "quick" in parameters else ())
            command = (*share, *lab, "run", number, "--instructor", *flags, "--out", str(scratch / "labs"))
            steps.append(Step(f"lab {number}", command, missing))
    chosen = set(options.only or [])
    return [step for step in steps if not chosen or step.name in chosen or ("labs" in chosen and "lab " in step.name)]


def lab_flags(parameters: Sequence[str], backend: str, ranks: int) -> list[str]:
    """The flags of `lab run` for a lab with these parameters, on a machine with so many GPUs."""
    count = ranks_of_labs(ranks)
    flags = {"backend": ["--backend", backend], "ranks": ["--ranks", str(count)]}
    flags["real_ranks"] = ["-p", "real_ranks", str(min(count, 4))]
    return [word for name, words in flags.items() if name in parameters for word in words]


def labs_with_backend() -> dict[str, list[str]]:
    """The labs whose first cell has `backend` with nccl, and the parameters that stand there."""
    found = {}
    for path in sorted((ROOT / "labs" / "masters").glob("*/lab.py")):
        text = path.read_text("utf-8")
        parameters = re.findall(r"^(\w+): (?:str|int|bool|float) = ", text, re.MULTILINE)
        if re.search(r"^backend: .*\bnccl\b", text, re.MULTILINE):
            found[path.parent.name[:2]] = parameters
    return found


def plan_text(steps: Sequence[Step], missing: str) -> str:
    """What a dry run says."""
    lines = [f"missing here: {missing}." if missing else "nothing is missing here."]
    for step in steps:
        lines += [f"{step.name}: {_printable(' '.join(step.command))}"]
        lines += [f"    cannot run: {step.needs}"] if step.needs else []
    return "\n".join([*lines, "nothing was run."])


def run(step: Step, runner: Runner) -> Result:
    """Run one step, and say what became of it."""
    print(f"\n== {step.name}: {_printable(' '.join(step.command))}", flush=True)
    command = _printable(" ".join(step.command))
    if step.needs:
        print(f"left out: it needs {step.needs}", flush=True)
        return Result(step.name, command, "left out", 0.0, f"needs {step.needs}")
    began_s = time.perf_counter()
    code, output = runner(step.command)
    time_s = time.perf_counter() - began_s
    said = _tests_text(step.command)
    if code:
        said = "\n".join(filter(None, [said, f"exit code {code}", *_printable(output).splitlines()[-_LAST_LINES:]]))
    print(f"{'failed' if code else 'passed'} after {time_s:.0f} s{said and not code and f': {said}' or ''}", flush=True)
    return Result(step.name, command, "failed" if code else "passed", round(time_s, 1), said)


def _process(command: Sequence[str]) -> tuple[int, str]:
    """Run it, show what it says, and keep the end of that."""
    lines: list[str] = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines = [*lines[-200:], line]
        code = process.wait(_STEP_TIMEOUT_S)
    return code, "".join(lines)


def _tests_text(command: Sequence[str]) -> str:
    """How many tests did what, from the file that pytest wrote; "" for another step."""
    files = [Path(word.partition("=")[2]) for word in command if word.startswith("--junitxml=")]
    if not files or not files[0].exists():
        return ""
    suites = ElementTree.parse(files[0]).getroot().iter("testsuite")
    counts = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for suite in suites:
        counts = {name: count + int(suite.get(name, 0)) for name, count in counts.items()}
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _printable(text: str) -> str:
    """A text without the names of folders of this machine, which may be those of people."""
    for path, name in ((sys.prefix, "VENV"), (str(ROOT), "."), (tempfile.gettempdir(), "TMP"), (str(Path.home()), "~")):
        text = re.sub(rf"(?<![\w.-]){re.escape(path)}(?![\w.-])", name, text)
    return text


# ---- measured beside predicted ----


def compare(out: Path, backend: str, ranks: int, profile: Path) -> None:
    """Programs on the simulator and on the machine: their rows, as JSON by name.

    The cluster is the calibration of a moment ago, where that has worked.
    """
    from lablib import reconcile

    cluster = str(profile) if profile.exists() else "dgx-h100" if backend == "nccl" else "laptop"
    found = {}
    for name, program in programs().items():
        held = reconcile(program, ranks=ranks, backend=backend, cluster=cluster, repeats=3, without="setup")
        print(f"{name}: {held.sentence()}", flush=True)
        found[name] = asdict(held.record()) | {"cluster": "calibrated" if profile.exists() else cluster}
    out.write_text(json.dumps(found), "utf-8")


def programs() -> dict[str, Callable[[], None]]:
    """What is compared: sums of three sizes, products of two, and a step of a data parallel GPT."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from lablib import phase
    from lablib.models import GPT, GPTConfig, next_token_loss

    def sums() -> None:
        for elements in (1_000, 100_000, 10_000_000):
            with phase("setup"):
                x = torch.ones(elements)
                dist.barrier()
            dist.all_reduce(x)

    def products() -> None:
        for size in (512, 1024):
            with phase("setup"):
                w = torch.ones(size, size)
                w @ w
            with phase(f"product of {size}"):
                w @ w

    def step_of_a_gpt() -> None:
        with phase("setup"):
            config = GPTConfig(num_layers=2, d_model=128, num_heads=4, vocab_size=512, max_seq_len=64)
            model = DistributedDataParallel(GPT(config))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            tokens = torch.zeros(2, 65, dtype=torch.int64)
        for _ in range(2):
            next_token_loss(model(tokens[:, :-1]), tokens[:, 1:]).backward()
            optimizer.step()
            optimizer.zero_grad()

    return {"sums": sums, "products": products, "step of a GPT": step_of_a_gpt}


def _compared(scratch: Path) -> dict[str, Any]:
    path = scratch / "compared.json"
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


# ---- the report ----


def report_of(results: Sequence[Result], options: argparse.Namespace, compared: dict[str, Any]) -> dict[str, Any]:
    """The report, as it is written."""
    about = machine(options.stand_in)
    steps = [asdict(result) for result in results]
    is_real = not options.stand_in
    return {"format": FORMAT, "is_gpu": is_real, "about": about, "steps": steps, "compared": compared}


def check_report(report: Any) -> None:
    """Whether this is a report that can be committed as data.

    Raises:
        ValueError: it is not; the message says why.
    """
    if not isinstance(report, dict) or report.get("format") != FORMAT:
        raise ValueError(f"a report has the format {FORMAT!r}: write it anew with `make test-gpu`")
    if not report.get("is_gpu"):
        raise ValueError("it was made with --stand-in, which says nothing of GPUs: run `make test-gpu` on one")
    try:
        date.fromisoformat(report["about"]["date"])
        wrong = [step["name"] for step in report["steps"] if step["state"] not in STATES]
        rows = [len(one["rows"]) for one in report["compared"].values()]
        about = [report["about"][name] for name in ("device", "torch", "cuda", "nccl", "commit")]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"a report has about, steps and compared in full: {error!r}") from None
    if wrong or not all(rows) or not all(about):
        raise ValueError(f"a report says what became of every step, on which device: {wrong or about}")


def _slug(report: dict[str, Any]) -> str:
    words = re.findall(r"[a-z0-9]+", report["about"]["device"].lower())
    return "-".join([*words[:8], report["about"]["date"]])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--compare"]:
        file, its_backend, count, toml = sys.argv[2:]
        compare(Path(file), its_backend, int(count), Path(toml))
    else:
        sys.exit(main())
