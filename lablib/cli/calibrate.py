"""`lab calibrate`: measure this machine, write its profile, and print the figures."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lablib.calibration.calibrate import Progress, calibrate
from lablib.course.errors import CourseError, CourseFailure
from lablib.course.table import table
from lablib.errors import LaunchError
from lablib.hardware import Cluster
from lablib.hardware.catalogue import THIS_MACHINE, profile_path
from lablib.hardware.toml_file import cluster_text, save_cluster
from lablib.text.files import check_writable
from lablib.text.units import format_quantity


def calibrate_command(backend: str, ranks: int, quick: bool, out: Path | None) -> int:
    """Measure this machine and write its profile to `out` (None: the path of `cluster="this-machine"`).

    Raises:
        CourseError: invalid arguments.
        CourseFailure: the measurement failed, or the file cannot be written.
    """
    path = profile_path() if out is None else out
    if path.suffix != ".toml":
        raise CourseError(f"a profile is a TOML file ending in .toml: got {path}; try {path.stem}.toml")
    try:
        check_writable(path)
    except OSError as error:
        raise CourseFailure(f"nothing was measured, as it could not be saved: {error}, with --out") from None
    try:
        with _bar() as progress:
            cluster = calibrate(backend, ranks, quick, progress)
    except ValueError as error:
        raise CourseError(str(error)) from None
    except LaunchError as error:
        raise CourseFailure(f"the machine could not be measured: {error}") from None
    try:
        save_cluster(cluster, path)
    except (OSError, ValueError) as error:
        print(cluster_text(cluster), flush=True)  # it took minutes to measure
        raise CourseFailure(f"{error}; the profile is printed above: keep it as a .toml file") from None
    name = THIS_MACHINE if out is None else str(path)
    print(f'{report(cluster)}\n\n{path}\nTo predict for this machine: launch(program, cluster="{name}")')
    return 0


@contextmanager
def _bar() -> Iterator[Progress]:
    from tqdm import tqdm

    with tqdm(total=1, file=sys.stderr, bar_format="{l_bar}{bar}| {elapsed} {desc}", ascii=True) as bar:

        def progress(done: int, total: int, what: str) -> None:
            bar.total, bar.n = total, done
            bar.set_description_str(what)

        yield progress


def report(cluster: Cluster) -> str:
    """The measured figures and the quality of their fits, as text."""
    device, link = cluster.device, cluster.intra
    rows = [(f"{dtype} products", format_quantity(peak, "FLOP/s")) for dtype, peak in device.peak_flops_per_s.items()]
    rows.append(("memory", format_quantity(device.memory_bandwidth_bytes_per_s, "B/s")))
    if device.cache_bytes:
        bandwidth = format_quantity(device.cache_bandwidth_bytes_per_s, "B/s")
        rows.append(("cache", f"{bandwidth} up to {format_quantity(device.cache_bytes, 'B')}"))
    smallest = "the smallest kernel" if device.launch_s else "the smallest operation"
    rows.append((smallest, format_quantity(device.kernel_overhead_s - device.launch_s, "s")))
    if device.launch_s:
        rows.append(("a launch by the host", format_quantity(device.launch_s, "s")))
    bandwidth = format_quantity(link.bandwidth_bytes_per_s, "B/s")
    rows.append(("one hop", f"{format_quantity(link.latency_s, 's')} + bytes / ({bandwidth})"))
    rows.append(("the call of a collective", format_quantity(cluster.collective_overhead_s, "s")))
    if links := cluster.profile.get("links"):
        rows.append(("links", links))
    figures = table(("figure", "of one rank, all busy"), rows)
    fits = [(k.removeprefix("error_of_"), v) for k, v in cluster.profile.items() if k.startswith("error_of_")]
    return f"{figures}\n\n{table(('part', 'error of the fit'), fits)}"
