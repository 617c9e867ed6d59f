"""lablib.process.thread_errors: an exception raised in another thread."""

import sys
import threading
import time

import pytest

from lablib.process.thread_errors import raise_in_thread


class Stop(BaseException):
    pass


def ident_of(thread: threading.Thread) -> int:
    assert thread.ident is not None
    return thread.ident


class Sleeper:
    """A thread that waits in C code for `release`, then raises what is pending."""

    def __init__(self) -> None:
        self.release, self.raised, self.begun = threading.Lock(), [], threading.Event()
        self.release.acquire()
        self.thread = threading.Thread(target=self._wait, daemon=True)
        self.thread.start()
        self.begun.wait()

    def _wait(self) -> None:
        try:
            self.begun.set()
            self.release.acquire()
        except Stop as error:
            self.raised.append(error)

    def wake(self) -> None:
        self.release.release()
        self.thread.join()


def called() -> int:
    return 3


@pytest.mark.parametrize("set_function", [sys.setprofile, sys.settrace])
def test_a_traced_thread_goes_on_while_an_exception_waits_for_a_sleeping_one(set_function):
    """Without the cleared flag the call ends when the sleeper wakes, after the timer's 20 s."""
    before = sys.getprofile() if set_function is sys.setprofile else sys.gettrace()
    sleeper, is_late = Sleeper(), threading.Event()
    raise_in_thread(ident_of(sleeper.thread), Stop)
    timer = threading.Timer(20.0, lambda: (is_late.set(), sleeper.release.release()))
    timer.start()
    set_function(lambda *event: None)
    try:
        assert called() == 3
    finally:
        set_function(before)
    assert not is_late.is_set()
    timer.cancel()
    sleeper.wake()
    assert len(sleeper.raised) == 1


def test_a_thread_that_runs_raises_at_its_next_instruction_and_one_may_name_itself():
    ended = threading.Event()

    def spin() -> None:
        try:
            while True:
                time.sleep(0)
        except Stop:
            ended.set()

    thread = threading.Thread(target=spin, daemon=True)
    thread.start()
    raise_in_thread(ident_of(thread), Stop)
    thread.join()
    assert ended.is_set()
    with pytest.raises(Stop):
        raise_in_thread(threading.get_ident(), Stop)
        called()


def test_an_exception_for_a_thread_that_has_ended_is_dropped():
    thread = threading.Thread(target=called)
    thread.start()
    thread.join()
    raise_in_thread(ident_of(thread), Stop)
    assert called() == 3
