"""A thread of the notebook that prints or sets a variable in a launch reaches the notebook's, a rank's the rank's."""

import contextlib
import ctypes
import importlib
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch.distributed as dist

from lablib import RankError, launch

pytestmark = [pytest.mark.usefixtures("everything_is_given_back"), pytest.mark.timeout(30)]


class Neighbour:
    """A thread of the notebook, older than the launch, which does what it is told, when it is told."""

    def __init__(self) -> None:
        self._wanted: Any = None
        self._is_wanted, self._is_done = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def do(self, what: Callable[[], Any]) -> Any:
        self._wanted = what
        self._is_wanted.release()
        self._is_done.acquire()
        return self._answer

    def end(self) -> None:
        self.do(lambda: None)
        self._wanted = None
        self._is_wanted.release()
        self._thread.join()

    def _serve(self) -> None:
        while self._is_wanted.acquire() and self._wanted is not None:
            try:
                self._answer = self._wanted()
            except Exception as error:
                self._answer = error
            self._is_done.release()


@pytest.fixture
def neighbour() -> Iterator[Neighbour]:
    thread = Neighbour()
    yield thread
    thread.end()


def test_what_a_thread_of_the_notebook_prints_is_not_the_ranks(neighbour: Neighbour, capsys: Any):
    def program() -> None:
        print(f"rank {dist.get_rank()}")
        neighbour.do(lambda: print("a neighbour"))
        neighbour.do(lambda: sys.stdout.write("who writes\n"))
        neighbour.do(lambda: print("and complains", file=sys.stderr))
        dist.barrier()

    assert launch(program, ranks=2).stdout == ["rank 0\n", "rank 1\n"]
    told = capsys.readouterr()
    assert told.out == "a neighbour\nwho writes\n" * 2 and told.err == "and complains\n" * 2


def test_what_a_thread_of_a_rank_prints_is_the_ranks(capsys: Any):
    def program() -> None:
        def work() -> None:
            print(f"a thread of rank {dist.get_rank()}")
            inner = threading.Thread(target=lambda: sys.stdout.write("and its thread\n"))
            inner.start()
            inner.join()

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        dist.barrier()

    run = launch(program, ranks=2)
    assert run.stdout == [f"a thread of rank {rank}\nand its thread\n" for rank in range(2)]
    assert capsys.readouterr().out == ""


def test_a_rank_that_redirects_its_output_redirects_nobody_elses(neighbour: Neighbour, capsys: Any):
    def program() -> str:
        with contextlib.redirect_stdout(io.StringIO()) as text:
            neighbour.do(lambda: print("a neighbour"))
            print(f"rank {dist.get_rank()}")
            dist.barrier()
        print("after")
        return text.getvalue()

    run = launch(program, ranks=2)
    assert run.values == ["rank 0\n", "rank 1\n"] and run.stdout == ["after\n"] * 2
    assert capsys.readouterr().out == "a neighbour\n" * 2


def test_a_thread_of_the_notebook_may_redirect_the_notebooks(neighbour: Neighbour):
    other, before = io.StringIO(), sys.stdout

    def program() -> None:
        neighbour.do(lambda: setattr(sys, "stdout", other))
        print("a rank")

    try:
        run = launch(program, ranks=1)
        assert sys.stdout is other and vars(sys)["stdout"] is other
    finally:
        sys.stdout = before
    assert run.stdout == ["a rank\n"] and other.getvalue() == ""


def test_a_variable_that_a_thread_of_the_notebook_sets_is_the_notebooks(neighbour: Neighbour):
    def set_variables() -> None:
        os.environ["LAB_TEST_NEIGHBOUR"] = "set"
        os.environ["LAB_TEST_BOTH"] = "notebook's"

    def program() -> tuple[str | None, ...]:
        os.environ["LAB_TEST_BOTH"] = f"rank {dist.get_rank()}'s"
        os.environb[b"LAB_TEST_BYTES"] = b"rank's"
        neighbour.do(set_variables)
        seen = neighbour.do(lambda: (os.getenv("RANK"), os.getenv("LAB_TEST_BYTES"), os.environ["LAB_TEST_BOTH"]))
        assert seen == (None, None, "notebook's")
        dist.barrier()
        return tuple(os.getenv(f"LAB_TEST_{name}") for name in ("NEIGHBOUR", "BOTH", "BYTES"))

    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    try:
        assert launch(program, ranks=2).values == [(None, f"rank {rank}'s", "rank's") for rank in range(2)]
        assert os.environ["LAB_TEST_NEIGHBOUR"] == "set" and os.environ["LAB_TEST_BOTH"] == "notebook's"
        assert getenv(b"LAB_TEST_NEIGHBOUR") == b"set" and getenv(b"LAB_TEST_BOTH") == b"notebook's"
        assert getenv(b"LAB_TEST_BYTES") is None and "LAB_TEST_BYTES" not in os.environ
    finally:
        for name in ("LAB_TEST_NEIGHBOUR", "LAB_TEST_BOTH"):
            del os.environ[name]


def test_a_rank_may_print_to_nothing_or_delete_its_output(neighbour: Neighbour, capsys: Any):
    def program() -> None:
        if dist.get_rank() == 0:
            sys.stdout = None
            print("to nothing")
        elif dist.get_rank() == 1:
            del sys.stdout
            assert not hasattr(sys, "stdout")
            with pytest.raises(RuntimeError, match="lost sys.stdout"):
                print("to where?")
        dist.barrier()
        neighbour.do(lambda: print("a neighbour"))
        if dist.get_rank() == 2:
            print("rank 2")

    assert launch(program, ranks=3).stdout == ["", "", "rank 2\n"]
    assert capsys.readouterr().out == "a neighbour\n" * 3


def test_a_thread_that_outlives_its_run_is_the_notebooks_from_then_on(capsys: Any):
    late, may_print = threading.Event(), threading.Event()

    def leave_a_thread() -> None:
        def work() -> None:
            may_print.wait()
            print("late", os.getenv("RANK"))
            late.set()

        threading.Thread(target=work, daemon=True).start()

    def another_program() -> None:
        if dist.get_rank() == 0:
            may_print.set()
            late.wait()

    launch(leave_a_thread, ranks=1)
    assert launch(another_program, ranks=2).stdout == ["", ""]
    assert capsys.readouterr().out == "late None\n"


def test_afterwards_python_has_its_own_classes_back():
    classes = type(sys), type(os.environ), type(os.environb)
    launch(dist.get_rank, ranks=2)
    with pytest.raises(RankError):
        launch(lambda: 1 / 0, ranks=2)
    assert (type(sys), type(os.environ), type(os.environb)) == classes == (ModuleType, os._Environ, os._Environ)
    assert vars(sys)["stdout"] is sys.stdout and vars(sys)["stderr"] is sys.stderr


def test_a_module_that_a_rank_imports_is_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Python makes it of the class of `sys`; of ours, no pickle would take it, and `stdout` would not be its own."""
    (tmp_path / "imported_on_a_rank.py").write_text("stdout = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert launch(lambda: importlib.import_module("imported_on_a_rank").stdout, ranks=2).values == [3, 3]
    module = sys.modules.pop("imported_on_a_rank")
    assert type(module) is ModuleType and module.stdout == 3
