"""One rank: a process that waits for programs, runs each as a new process would, and reports.

Two threads. The main thread runs programs. The listening thread reads the launcher's messages, so that the process can
answer `Signal.WHERE` while a program hangs, and ends when the launcher is gone.
"""

import faulthandler
import gc
import linecache
import os
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from lablib.process.arguments import note_what_is_left, placed
from lablib.process.lifetime import ends_well
from lablib.process.missing_cuda import note_missing_cuda
from lablib.real.frames import main_thread_stack, traceback_text
from lablib.real.gpu.memory import begin_count, give_back_cache, peak_bytes
from lablib.real.groups import Groups
from lablib.real.measurement.calls import CallRecorder
from lablib.real.measurement.measure import Measurement, measure
from lablib.real.measurement.profiler import warm_up_kernel_count
from lablib.real.workers.capture import Capture
from lablib.real.workers.channel import Channel
from lablib.real.workers.fresh import FreshState
from lablib.real.workers.messages import Failed, Finished, Go, Hello, Job, Ready, Signal, Whereabouts, WorkerSetup
from lablib.real.workers.numa import stay_near
from lablib.real.workers.pickling import PackedObject, pack, unpack
from lablib.real.workers.rendezvous import MeetingFile
from lablib.text.messages import error_text, safe_str, type_name

# Messages of gloo, NCCL and the store for a lost rank: a consequence, never the cause of a failure.
_LOST_PEER = ("closed by peer", "reset by peer", "broken pipe", "connection refused", "remote process exited")


def main(address: str, meeting_file: str) -> None:
    """Serve the launcher that listens at this socket path until it ends. Does not return."""
    faulthandler.enable(all_threads=False)  # write the stack of a crash in C code to stderr, which the launcher reads
    meeting = MeetingFile(meeting_file)
    channel = Channel.connect(address)
    os.register_at_fork(after_in_child=channel.close)  # a child must not keep this end open after the rank has ended
    channel.send(Hello(int(os.environ["RANK"]), os.getpid()))
    Worker(channel, channel.receive(), meeting).serve()


def _call(fn: Callable[..., Any], args: tuple, kwargs: dict[str, Any], on_gpu: bool) -> Any:
    try:
        return fn(*args, **kwargs)
    except SystemExit as end:  # a script may end a rank with exit code 0; any other is a failure
        if ends_well(end.code):
            return None
        raise
    except Exception as error:
        if on_gpu:
            note_what_is_left(error, (fn, args, kwargs))
        else:
            note_missing_cuda(error, 'backend="sim", device="cuda"')
        raise


class Worker:
    """The main thread of a rank."""

    def __init__(self, channel: Channel, setup: WorkerSetup, meeting: MeetingFile):
        self._channel, self._rank = channel, int(os.environ["RANK"])
        self._recorder = CallRecorder()  # of the running program
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()
        self._sessions = 0  # of the profiler
        self._capture = Capture()
        os.environ.update(setup.environment)
        device = torch.device("cpu")
        if setup.backend == "nccl":
            device = torch.device("cuda", self._rank % torch.cuda.device_count())
            torch.cuda.set_device(device)
            stay_near(device)
        self._device, self._on_gpu = device, device.type == "cuda"
        self._state = FreshState(self._rank, device)
        self._groups = Groups(setup.backend, device, meeting)

    def _listen(self) -> None:
        while True:
            try:
                message = self._channel.receive()
            except (EOFError, OSError):
                os._exit(0)  # the launcher is gone: abandon the main thread's work
            if message is Signal.WHERE:
                self._channel.send(Whereabouts(main_thread_stack(), self._recorder.under_way.text()))
            else:
                self._inbox.put(message)

    def serve(self) -> None:
        """Run programs for ever; the listening thread ends the process."""
        self._measure(int, lambda: None, trace=True)  # a process's first profile is slow
        gc.collect()
        gc.freeze()  # existing objects are never garbage: keeps the collection after each program cheap
        self._renew()
        while True:
            message = self._inbox.get()
            if isinstance(message, Job):
                self._channel.send(self._run(message))
            elif message is Signal.RESET:
                gc.collect()  # tensors of the program, and groups it forgot
                give_back_cache(self._device)
                self._renew()

    def _renew(self) -> None:
        try:
            self._state.check_nothing_is_left()
            self._groups.renew()
            self._channel.send(Ready())
        except Exception as error:  # report any error of the backend to the launcher
            self._channel.send(Ready(error_text(error)))

    def _run(self, job: Job) -> Finished | Failed:
        process = os.getpid()
        try:
            self._state.restore(job.settings)
            self._groups.timeouts.allow(job.timeout_s)
            self._capture.start()
            for name, lines in job.source_lines.items():  # without a time stamp linecache does not look for a file
                linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
            program = unpack(job.program)
            if self._on_gpu:
                program = placed(program, self._device)
            begin_count(self._device)
            call = partial(_call, *program, self._on_gpu)
            value, measured = self._measure(call, self._wait_for_start, job.trace)
            peak = peak_bytes(self._device)  # before packing: that moves the value to the host
            return Finished(self._pack(value), *self._capture.stop(), measured, peak)
        except BaseException as error:  # also SystemExit
            return self._failure(error)
        finally:
            if os.getpid() != process:  # end a child that the program forked: it is no rank
                os._exit(0)

    def _measure(
        self, program: Callable[[], Any], wait_for_start: Callable[[], None], trace: bool
    ) -> tuple[Any, Measurement]:
        self._sessions += trace
        self._recorder = CallRecorder(self._on_gpu)
        kernels = warm_up_kernel_count(self._sessions)
        return measure(program, wait_for_start, trace, self._on_gpu, kernels, self._recorder)

    def _wait_for_start(self) -> None:
        """Report that this rank is ready, and start together with all others at the time given."""
        self._channel.send(Signal.ARMED)
        message = self._inbox.get()
        assert isinstance(message, Go)
        time.sleep(max(0.0, (message.at_ns - time.time_ns()) / 1e9))

    def _pack(self, value: Any) -> PackedObject:
        try:
            return pack(value)
        except BaseException as error:  # a class may raise anything while it is pickled
            raise TypeError(
                f"a rank's value is sent to the launching process, so it must be picklable: the "
                f"{type_name(value)} that rank {self._rank} returned is not ({error_text(error)}); "
                f"return plain data and tensors (of a DTensor, its full_tensor() or to_local())"
            ) from None

    def _failure(self, error: BaseException) -> Failed:
        at_ns, text, packed = time.time_ns(), safe_str(error), None
        with suppress(BaseException):  # its class may raise anything; then only name and text are sent
            if isinstance(unpack(sent := pack(error)), BaseException):  # some exceptions can be pickled and not rebuilt
                packed = sent
        says_so = any(sign in text.lower() for sign in _LOST_PEER)
        lost_peer = says_so and issubclass(type(error), (RuntimeError, OSError))
        output = self._capture.stop()
        return Failed(type_name(error), text, traceback_text(error), packed, lost_peer, at_ns, *output)
