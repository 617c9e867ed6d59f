"""The saved profile of this machine for a number of ranks, or a quick one measured now and saved.

A profile fits if it is of this machine, this backend and this number of ranks: a message takes longer the more ranks
communicate. (Ranks that share GPUs are predicted with the profile of one rank per GPU.) A profile of a CPU from an
older version, without `Cluster.shared_cores`, does not fit. Two paths are checked: the path of `lab calibrate`, and one
next to it for each backend and each count:

    this-machine.toml    this-machine-gloo-2.toml

A new profile goes to the first path if it is free, otherwise to the second: the output of `lab calibrate` is kept.
"""

import time
from pathlib import Path

from lablib.calibration.calibrate import Progress, calibrate, check_ranks
from lablib.hardware import Cluster
from lablib.hardware.catalogue import profile_path
from lablib.hardware.toml_file import load_cluster, save_cluster
from lablib.real.gpu.sharing import ranks_with_own_gpu
from lablib.signature import checked
from lablib.text.units import plural

_WIDTH = 76  # a line of text in a notebook


@checked
def this_machine(ranks: int = 4, backend: str = "gloo", progress: Progress | None = None) -> Cluster:
    """This machine as a cluster for predictions: measured in half a minute the first time, and then read from its file.

    Args:
        ranks: number of processes that will be busy at once, at least 2 on "gloo".
        backend: "gloo" (processes on this CPU) or "nccl" (GPUs).
        progress: as for `calibrate`; None: a line of text that is overwritten, and ends with the file's path.

    Raises ValueError, LaunchError: as `calibrate`.
    """
    check_ranks(backend, ranks)
    ranks = ranks_with_own_gpu(backend, ranks)  # no two share one, as they would time each other
    first = profile_path()
    own = first.with_name(f"{first.stem}-{backend}-{ranks}{first.suffix}")
    saved = next((cluster for path in (first, own) if (cluster := _fitting(path, ranks, backend)) is not None), None)
    if saved is not None:
        return saved
    line = _Line(ranks, backend)
    cluster = calibrate(backend, ranks, quick=True, progress=progress or line)
    path = own if first.exists() else first
    try:
        save_cluster(cluster, path)  # in one step: no other lab reads half of it
        told = f"Saved in {path}"
    except (OSError, ValueError):  # also implausible figures, which `load_cluster` would refuse
        remedy = "set LAB_MACHINE to a .toml file that can be written, or use save_cluster on what this call returns"
        told = f"It cannot be saved in {path.parent}: {remedy}"
    if progress is None:
        line.end(told)
    return cluster


def _fitting(path: Path, ranks: int, backend: str) -> Cluster | None:
    """The profile in this file; None if there is none, it cannot be read, or it is of another kind."""
    from lablib.calibration.machine import machine_text  # here: `import lablib` does not import torch

    try:
        cluster = load_cluster(path)
        wanted = {"ranks": str(ranks), "backend": backend, "machine": machine_text(backend == "nccl")}
    except ValueError:
        return None
    # Before the simulator shared cores, figures of a CPU were measured on ranks that shared them in part.
    is_current = backend != "gloo" or cluster.shared_cores > 0
    return cluster if is_current and wanted.items() <= cluster.profile.items() else None


class _Line:
    """One line of text that is overwritten: the present measurement, and its progress."""

    def __init__(self, ranks: int, backend: str):
        self.what = f"Measuring this machine, {plural(ranks, 'ranks')} on {backend}"
        self.begun_s = time.monotonic()

    def __call__(self, done: int, total: int, what: str) -> None:
        self._write(f"{self.what}: {done / total:.0%}, {what}")

    def end(self, told: str) -> None:
        self._write(f"{self.what}: {time.monotonic() - self.begun_s:.0f} s")
        print(f"\n{told}")

    def _write(self, text: str) -> None:
        print(f"\r{text[:_WIDTH]:{_WIDTH}}", end="", flush=True)
