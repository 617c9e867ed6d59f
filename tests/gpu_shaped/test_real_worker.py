"""A worker's round on a GPU, with a stand-in for everything around it: what comes before what."""

import queue
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lablib.real.workers import worker as worker_module
from lablib.real.workers.messages import Finished, Go, Job, Ready, Signal
from lablib.real.workers.pickling import pack
from lablib.real.workers.worker import Worker


class Over(BaseException):
    """No more messages."""


def worker_with(monkeypatch: pytest.MonkeyPatch, messages: list[Any]) -> tuple[Worker, list[str], list[Any]]:
    """A worker that gets these messages; what it does to the GPU, and what it sends."""
    done: list[str] = []
    sent: list[Any] = []
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for message in messages:
        inbox.put(message)

    def get() -> Any:
        if inbox.empty():
            raise Over
        return inbox.get()

    worker = object.__new__(Worker)
    worker._channel = SimpleNamespace(send=sent.append)  # pyright: ignore
    worker._inbox = SimpleNamespace(get=get)  # pyright: ignore
    worker._sessions = 0
    worker._rank, worker._device, worker._on_gpu = 0, torch.device("cpu"), False
    worker._capture = SimpleNamespace(start=lambda: None, stop=lambda: ("", ""))  # pyright: ignore
    worker._state = SimpleNamespace(restore=lambda settings: None, check_nothing_is_left=lambda: None)  # pyright: ignore
    timeouts = SimpleNamespace(allow=lambda timeout_s: done.append(f"allow {timeout_s}"))
    worker._groups = SimpleNamespace(renew=lambda: None, timeouts=timeouts)  # pyright: ignore
    monkeypatch.setattr(worker_module, "begin_count", lambda device: done.append("begin count"))
    monkeypatch.setattr(worker_module, "give_back_cache", lambda device: done.append("give back cache"))
    monkeypatch.setattr(worker_module, "peak_bytes", lambda device: done.append("read peak") or 7)
    monkeypatch.setattr(worker_module, "pack", lambda value: done.append("pack") or pack(value))
    return worker, done, sent


def test_the_peak_is_that_of_the_program_alone_and_its_cache_goes_with_it(monkeypatch):
    job = Job(pack((int, (), {})), trace=False, settings={}, source_lines={}, timeout_s=5.0)
    worker, done, sent = worker_with(monkeypatch, [job, Go(0), Signal.RESET])
    with pytest.raises(Over):
        worker.serve()
    (finished,) = (one for one in sent if isinstance(one, Finished))
    assert finished.peak_bytes == 7
    assert done == ["allow 5.0", "begin count", "read peak", "pack", "give back cache"]
    assert isinstance(sent[-1], Ready) and not sent[-1].error
