"""A rank that waits outside torch.distributed for another rank waits for ever; the run ends and says so."""

import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import nbformat
import pytest
import torch.distributed as dist
from nbclient import NotebookClient

from lablib import DeadlockError, LaunchTimeoutError, launch
from lablib.sim.ranks import watchdog

pytestmark = [pytest.mark.usefixtures("everything_is_given_back"), pytest.mark.timeout(60)]

WAITS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "threading.Barrier.wait": (lambda: threading.Barrier(2), lambda barrier: barrier.wait()),
    "threading.Event.wait": (threading.Event, lambda event: event.wait()),
    "queue.Queue.get": (queue.Queue, lambda items: items.get()),
    "threading.Semaphore.acquire": (lambda: threading.Semaphore(0), lambda semaphore: semaphore.acquire()),
    "concurrent.futures._base.Future.result": (Future, lambda future: future.result()),
}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "_SURE_AFTER_S", 0.5)
    # Threads that other tests of this process have left behind might know anything.
    others = set(sys._current_frames())
    now = lambda: {ident: frame for ident, frame in sys._current_frames().items() if ident not in others}  # noqa: E731
    monkeypatch.setattr(watchdog, "thread_frames", now)


@pytest.mark.parametrize("name", WAITS)
def test_a_wait_that_no_rank_can_end_ends_the_run_and_is_named(name: str):
    make, wait = WAITS[name]
    shared = make()

    def program() -> None:
        if dist.get_rank() == 1:
            wait(shared)
        dist.barrier()

    with pytest.raises(
        DeadlockError, match=f"deadlock: rank 1 waits in {name}.*test_watchdog.py.*take turns"
    ) as caught:
        launch(program, ranks=2)
    assert "rank 0 waits in barrier #0" in str(caught.value)


def test_a_wait_that_a_thread_ends_is_left_alone():
    def slow() -> int:
        time.sleep(1.5)
        return 7

    def program() -> int:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(slow).result()

    assert launch(program, ranks=1).values == [7]


def test_a_thread_that_a_busy_machine_starts_late_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    """Until then it has no frame, so it looks as if no other thread ran."""
    asked, begin = queue.SimpleQueue[Any](), threading._start_new_thread  # pyright: ignore[reportAttributeAccessIssue]

    def start_late() -> None:
        function, arguments = asked.get()
        time.sleep(1.5)
        begin(function, arguments)

    helper, frames = threading.Thread(target=start_late), watchdog.thread_frames
    helper.start()
    unseen = lambda: {ident: frame for ident, frame in frames().items() if ident != helper.ident}  # noqa: E731
    monkeypatch.setattr(watchdog, "thread_frames", unseen)

    def program() -> list[int]:
        found: list[int] = []
        with monkeypatch.context() as patch:
            patch.setattr(threading, "_start_new_thread", lambda *start: asked.put(start))
            (thread := threading.Thread(target=found.append, args=(7,))).start()
        thread.join()
        return found

    assert launch(program, ranks=1).values == [[7]]
    helper.join()


def test_a_rank_that_computes_for_long_is_told_once_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(watchdog, "_FIRST_WORD_AFTER_S", 0.6)

    def program() -> int:
        until_s = time.monotonic() + 1.5
        while time.monotonic() < until_s:
            pass
        return dist.get_rank()

    assert launch(program, ranks=1).values == [0]
    assert capfd.readouterr().err.count("launch: rank 0 has made no call for") == 1


@pytest.mark.parametrize(
    "wait", [lambda: time.sleep(2), lambda: threading.Event().wait(60), lambda: queue.Queue().get()]
)
def test_a_time_limit_returns_whatever_a_rank_waits_for(wait: Callable[[], Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(watchdog, "_SURE_AFTER_S", 10)
    began_s = time.monotonic()
    with pytest.raises(LaunchTimeoutError, match="rank 0 was at test_watchdog.py"):
        launch(wait, ranks=2, timeout_s=0.3)
    assert time.monotonic() - began_s < 30


HOLDS_THE_INTERPRETER = """
from lablib import launch
from lablib.sim.ranks import watchdog
watchdog._GRACE_S = 0.5

def program():
    return sum(iter(int, 1))

launch(program, ranks=2, timeout_s=0.2)
"""


def test_what_cannot_be_ended_is_named_on_stderr():
    """A call of C code that never lets another thread run: nothing can end it but the end of the process."""
    process = subprocess.Popen([sys.executable, "-c", HOLDS_THE_INTERPRETER], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert any('"<string>", line 7 in program' in line for line in process.stderr)
    finally:
        process.kill()
        process.wait()
        if process.stderr:
            process.stderr.close()


def test_a_notebooks_own_threads_do_not_hide_a_wait_that_never_ends():
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(IN_A_NOTEBOOK)]
    NotebookClient(notebook, timeout=50, kernel_name="python3").execute()
    assert "rank 1 waits in threading.Barrier.wait" in notebook.cells[0].outputs[-1]["text"]


IN_A_NOTEBOOK = """
import threading
import torch.distributed as dist
from nbclient import NotebookClient
from lablib import DeadlockError, launch
shared = threading.Barrier(2)

def program():
    if dist.get_rank() == 1:
        shared.wait()
    dist.barrier()

try:
    launch(program, ranks=2)
except DeadlockError as error:
    print(error)
"""
