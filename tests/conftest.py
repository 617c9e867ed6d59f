"""What every test can rely on: no GPU needed, no network needed, nothing written outside temporary folders."""

import functools
import gc
import signal
import sys
from collections import defaultdict
from collections.abc import Callable
from operator import itemgetter
from types import FrameType
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis.internal.conjecture import junkdrawer, providers
from hypothesis.internal.constants_ast import Constants
from jaxtyping import install_import_hook

# The shapes in signatures are checked at every call: a tensor that does not fit its annotation fails the test.
# Before anything of these packages is imported; each technique's package joins them here.
install_import_hook(
    [
        "lablib.models",
        "lablib.data",
        "lablib.precision",
        "lablib.memory",
        "lablib.batches",
        "lablib.optim",
        "lablib.kernels",
    ],
    "beartype.beartype",
)

LONG_RUN_S = 300  # from which on a run ends with its slowest files

# 40 examples that are always the same show what broke; the 100 new ones of each night look for what nobody tried.
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=40)
settings.register_profile("exploring", deadline=None, print_blob=True)


def pytest_configure(config: pytest.Config) -> None:
    """Properties are tried on the same examples every time, with `--all` on new ones; a busy machine is no failure.

    Tests press the stop button. A shell starts its background jobs with SIGINT ignored, and they pass it on. An
    interrupt during a callback of the garbage collector is printed and lost; Hypothesis would add such a callback.
    """
    junkdrawer._gc_initialized = True
    settings.load_profile("exploring" if config.getoption("--all") else "repeatable")
    if not config.getoption("--all"):
        # Hypothesis also draws the numbers that stand in the modules imported so far. Which those are depends on the
        # order of the tests, which differs from run to run with several processes.
        providers._get_local_constants = Constants
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--labs", action="store_true", help="the tests marked `labs` or `browser`, instead of the others")
    parser.addoption("--all", action="store_true", help="every test, also `thorough` ones: cases of what others show")
    parser.addoption("--site", metavar="FOLDER", help="a site built by `lab site`, for test_whole_site.py")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests that no option asks for; skip, with the reason, tests that this machine cannot run."""
    if not config.getoption("--all"):
        labs = bool(config.getoption("--labs"))
        config.hook.pytest_deselected(items=[item for item in items if not is_chosen(item, labs)])
        items[:] = [item for item in items if is_chosen(item, labs)]
    if torch.cuda.is_available():
        return
    no_gpu = pytest.mark.skip(reason="needs a CUDA device; torch sees none")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(no_gpu)


def is_chosen(item: pytest.Item, labs: bool) -> bool:
    """Whether a test runs without `--all`: with `labs` one of a whole lab or a browser, else one of neither."""
    of_a_lab = item.get_closest_marker("labs") or item.get_closest_marker("browser")
    return bool(of_a_lab) == labs and not item.get_closest_marker("thorough")


def pytest_collection_finish() -> None:
    """What stands when the tests begin is never garbage, and going through all of it took half a second each time."""
    gc.collect()
    gc.freeze()
    # Each launch asks whether anything is set aside, and would count all of it again: 20 ms, where a launch takes 5.
    gc.get_freeze_count = functools.cache(gc.get_freeze_count)


@pytest.fixture(scope="session")
def calls_of() -> Callable[..., int]:
    """Counts the calls that an action makes in this thread: a bound on work, not on seconds.

    All functions, Python's and C's; with `folder` Python functions of files in that folder only.
    """

    def count_calls(action: Callable[[], object], folder: str = "") -> int:
        count = 0

        def note(frame: FrameType, event: str, arg: object) -> None:
            nonlocal count
            is_counted = event == "call" if folder else event in ("call", "c_call")
            count += is_counted and frame.f_code.co_filename.startswith(folder)

        sys.setprofile(note)
        try:
            action()
        finally:
            sys.setprofile(None)
        return count

    return count_calls


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """After a run of minutes, the folders and the files that took longest: so what grows is seen while it is small."""
    seconds: dict[str, float] = defaultdict(float)
    for report in (one for reports in terminalreporter.stats.values() for one in reports):
        if isinstance(report, pytest.TestReport):  # setup, call and teardown each have one
            file = report.nodeid.partition("::")[0]
            seconds[file] += report.duration
            seconds[f"{file.rpartition('/')[0]}/"] += report.duration
    if sum(seconds.values()) / 2 < LONG_RUN_S:
        return
    terminalreporter.section("slowest folders and files")
    for name, time_s in sorted(seconds.items(), key=itemgetter(1), reverse=True)[:20]:
        terminalreporter.write_line(f"{time_s:8.1f}s {name}")
