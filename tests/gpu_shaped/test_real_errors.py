"""Hangs and failures of a GPU are told as the program's: never as a line of the launcher that waited for the GPU."""

import sys
import time
from threading import Thread

import pytest
import torch
import torch.distributed as dist

from lablib.errors import LaunchTimeoutError, RankError
from lablib.real import run_real
from lablib.real.frames import main_thread_stack, traceback_text
from lablib.real.measurement import measure as real_measure
from lablib.real.measurement.calls import Call, CallRecorder
from lablib.real.measurement.measure import measure
from lablib.real.workers.failure import failure_error, timeout_error
from lablib.real.workers.messages import Failed, Whereabouts
from lablib.real.workers.pickling import pack

ASSERT = "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported"


class Pending(dist.Work):
    def is_completed(self):
        return False


@pytest.fixture
def recorder(monkeypatch):
    """Of a rank on a GPU, whose second all_reduce never ends. It is not timed."""
    recorder = CallRecorder(on_gpu=True)
    call = Call("allreduce_", "all_reduce", "dp", "0", (0, 1), 1, -1, -1, 0, 64.0, 64.0, thread=1, line="lab.py:7")
    recorder.under_way._works["0", -1, -1].append((call, Pending()))
    monkeypatch.setattr(real_measure, "profiler_of", lambda trace, on_gpu: torch.autograd.profiler.profile(False))
    return recorder


def run(program, recorder):
    return measure(program, lambda: None, trace=False, on_gpu=True, recorder=recorder)


def failing(*_):
    raise RuntimeError(ASSERT)


def test_an_assertion_that_surfaces_at_the_end_says_so_and_shows_no_frame_of_the_wait(monkeypatch, recorder):
    monkeypatch.setattr(torch.cuda, "synchronize", failing)
    with pytest.raises(RuntimeError, match="device-side assert") as caught:
        run(int, recorder)
    told = traceback_text(caught.value)
    assert "after the program had returned" in told and "CUDA_LAUNCH_BLOCKING=1" in told
    assert "all_reduce #1 of group dp, 64 bytes  (lab.py:7)" in told
    assert "synchronize" not in told and "failing" not in told and "measure.py" not in told


def test_one_that_surfaces_in_the_program_keeps_its_line(monkeypatch, recorder):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: pytest.fail("the program had not returned"))

    def program():
        failing()  # .item(), say

    with pytest.raises(RuntimeError) as caught:
        run(program, recorder)
    told = traceback_text(caught.value)
    assert "in program" in told and "surfaced at this line" in told


def test_other_errors_of_the_program_are_left_as_they_are(monkeypatch, recorder):
    with pytest.raises(RuntimeError) as caught:
        run(lambda: torch.ones(2) @ torch.ones(3), recorder)
    assert not hasattr(caught.value, "__notes__")


def test_a_hang_at_the_end_is_called_the_end_and_names_the_calls_that_are_not_complete(monkeypatch, recorder):
    seen = []

    def ask():  # as the listening thread of a worker does
        seen.append((main_thread_stack(), recorder.under_way.text()))

    def hang():
        asking = Thread(target=ask)
        asking.start()
        asking.join()

    monkeypatch.setattr(torch.cuda, "synchronize", hang)
    run(int, recorder)
    ((stack, under_way),) = seen
    assert stack.startswith("its end: it had returned") and "synchronize" not in stack
    told = str(timeout_error(5.0, 2, {0: Whereabouts(stack, under_way), 1: Whereabouts("in lab.py")}, {}))
    assert "rank 0 was at\nits end: it had returned" in told
    assert told.count("that were not complete:\n  all_reduce #1 of group dp, 64 bytes  (lab.py:7)") == 1


def test_what_a_rank_wrote_to_stderr_is_a_note_of_its_error():
    error = RuntimeError(ASSERT)
    failed = Failed("RuntimeError", ASSERT, "", pack(error), False, 0, "", "")
    said = {0: "IndexKernel.cu:93: block: [0,0,0] Assertion `index out of bounds` failed.\n"}
    raised = failure_error({0: failed}, {0: 1}, {}, {0: ""}, said)
    assert raised.__notes__ == [f"rank 0 had written to stderr:\n{said[0].strip()}"]


def test_on_real_processes_an_error_and_a_timeout_come_with_stderr():
    def broken():
        print("the kernel's last words", file=sys.stderr)
        raise ValueError("broken")

    def endless():
        print("still here", file=sys.stderr, flush=True)
        time.sleep(60)

    with pytest.raises(RankError) as failed:
        run_real(broken, ranks=1, backend="gloo")
    assert failed.value.__notes__ == ["rank 0 had written to stderr:\nthe kernel's last words"]
    with pytest.raises(LaunchTimeoutError) as late:
        run_real(endless, ranks=1, backend="gloo", timeout_s=1.0)
    assert late.value.__notes__ == ["rank 0 had written to stderr:\nstill here"]
