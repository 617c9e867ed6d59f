"""Process-wide functions of Python and torch on a rank of a script.

    atexit.register     the rank's own list, run when the rank ends
    os.close, os.dup2   do not affect the process's standard streams: a rank's own have no numbers
    os._exit            ends the rank, not the process
    os.kill, raise_signal  to this process: the rank's own handler is called; without one the rank ends
    os.fork             error: the child would be a copy of the simulator
    subprocess          a child inherits the rank's environment
    faulthandler        remains the process's own
    time.perf_counter   this machine's clock, as time.time and time.monotonic; a note adds the virtual time
    torch.compile       runs the function eagerly, with a note
    mp.spawn            error: the processes that it starts are not simulated ranks
    DataLoader          loads in the rank's own thread for any `num_workers`, with a note
    torch.save, load    a checkpoint names the device of its tensors, as on a GPU; `map_location` is followed
    torch.autocast      "cuda" switches the autocast of the CPU, which computes

Simplified: the CPU's autocast keeps fewer operators in float32 than CUDA's does.
"""

import atexit
import faulthandler
import inspect
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, NoReturn

import torch
from torch.utils.data import DataLoader

from lablib.script.marks import index_of_storage, mark_storage
from lablib.script.patches import Patches
from lablib.script.process import Process, here, refuse
from lablib.sim.source import is_program
from lablib.torch_compat import current, place

_WORKERS = (
    "DataLoader(num_workers={}) loads in the rank's own thread: worker processes have nothing to gain here, as the "
    "host's work takes no virtual time. Without workers get_worker_info() is None and worker_init_fn is not called: a "
    "dataset that splits or shuffles by worker gives other batches than on a real machine."
)
_LOADER_ARGUMENTS = (  # in positional order
    "dataset batch_size shuffle sampler batch_sampler num_workers collate_fn pin_memory drop_last timeout "
    "worker_init_fn multiprocessing_context generator"
).split()
_STREAMS = (0, 1, 2)
_WITHOUT_EFFECT = {getattr(signal, name, None) for name in ("SIGCHLD", "SIGCONT", "SIGURG", "SIGWINCH")}
_COMPILE = "torch.compile ran the model eagerly: the times are of eager kernels, without fusion."


def answer_python(patches: Patches) -> None:
    for answer in (_answer_interpreter, _answer_clocks, _answer_signals, _answer_children, _answer_spawn):
        answer(patches)
    for answer in (_answer_compile, _answer_data_loader, _answer_checkpoints, _answer_autocast):
        answer(patches)


def _answer_spawn(patches: Patches) -> None:
    def rank_spawns(process: Process, function: Callable[..., Any], *args: Any, **kwargs: Any) -> NoReturn:
        name = getattr(function, "__name__", "the function")
        why = f"it starts processes, which are not simulated ranks; the {process.ranks} ranks already exist"
        refuse("torch.multiprocessing.spawn", why, f'call {name}(int(os.environ["RANK"]), ...), as under torchrun')

    for owner in (torch.multiprocessing, import_module("torch.multiprocessing.spawn")):
        for start in ("spawn", "start_processes"):
            patches.answer(owner, start, rank_spawns)


def _answer_interpreter(patches: Patches) -> None:
    register, unregister = atexit.register, atexit.unregister
    close, duplicate = os.close, os.dup2

    def rank_registers(process: Process, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        # A library first imported in the run registers for the process.
        if not is_program(sys._getframe(2)):
            return register(function, *args, **kwargs)
        process.exit_handlers.append((function, args, kwargs))
        return function

    def rank_unregisters(process: Process, function: Callable[..., Any]) -> None:
        process.exit_handlers[:] = [one for one in process.exit_handlers if one[0] != function]
        unregister(function)

    def rank_exits(process: Process, status: int) -> NoReturn:
        process.exit_handlers.clear()  # os._exit runs none
        raise SystemExit(status)

    patches.answer(atexit, "register", rank_registers)
    patches.answer(atexit, "unregister", rank_unregisters)
    patches.answer(os, "_exit", rank_exits)
    patches.answer(os, "close", lambda process, fd: None if fd in _STREAMS else close(fd))
    patches.answer(
        os, "dup2", lambda process, fd, fd2, *a, **k: fd2 if fd2 in _STREAMS else duplicate(fd, fd2, *a, **k)
    )


def _answer_clocks(patches: Patches) -> None:
    now = time.perf_counter

    def reading(read: Callable[[], float]) -> Callable[[Process], float]:
        def rank_reads(process: Process) -> float:
            if is_program(frame := sys._getframe(2)):
                process.clock.read(now(), process.rank.clock_s, frame)
            return read()

        return rank_reads

    for name in ("time", "perf_counter", "monotonic"):
        for one in (name, f"{name}_ns"):
            patches.answer(time, one, reading(getattr(time, one)))


def _answer_signals(patches: Patches) -> None:
    send = os.kill

    def rank_raises(process: Process, number: int) -> None:
        own = vars(threading.current_thread()).get("signal_handlers", {})  # lablib/sim/borrowed_process.py
        handler = own.get(number, signal.SIG_DFL)
        if callable(handler) and handler is not signal.default_int_handler:
            handler(number, sys._getframe(2))
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        elif handler != signal.SIG_IGN and number not in _WITHOUT_EFFECT:
            name = signal.Signals(number).name
            raise SystemExit(f"the script sent itself {name}, for which it has no handler: that ends a process")

    def rank_sends(process: Process, pid: int, number: int) -> None:
        if pid == os.getpid() and number:
            rank_raises(process, number)
        else:
            send(pid, number)

    patches.answer(signal, "raise_signal", rank_raises)
    patches.answer(os, "kill", rank_sends)
    for name in ("enable", "register", "dump_traceback_later"):
        patches.answer(faulthandler, name, lambda process, *args, **kwargs: None)


def _answer_children(patches: Patches) -> None:
    start: Any = subprocess.Popen.__init__
    names = inspect.signature(start)

    def rank_starts(process: Process, *args: Any, **kwargs: Any) -> None:
        given = names.bind(*args, **kwargs)
        if given.arguments.get("env") is None:
            given.arguments["env"] = dict(os.environ)
        start(*given.args, **given.kwargs)

    def rank_runs(process: Process, command: str) -> int:
        code = subprocess.run(command, shell=True, close_fds=False).returncode
        return code << 8 if code >= 0 else -code

    def rank_forks(process: Process) -> NoReturn:
        why = "the child would be a copy of the simulator with all its ranks"
        refuse("os.fork", why, "use subprocess, or torchrun")

    patches.answer(subprocess.Popen, "__init__", rank_starts)
    patches.answer(os, "system", rank_runs)
    if hasattr(os, "fork"):
        patches.answer(os, "fork", rank_forks)


def _answer_compile(patches: Patches) -> None:
    def rank_compiles(process: Process, model: Any = None, **_: Any) -> Any:
        process.note(_COMPILE)
        return (lambda function: function) if model is None else model

    patches.answer(torch, "compile", rank_compiles)
    patches.answer(torch.nn.Module, "compile", lambda process, module, *args, **kwargs: process.note(_COMPILE))


def _answer_data_loader(patches: Patches) -> None:
    make: Any = DataLoader.__init__

    def rank_loads(process: Process, loader: DataLoader, *args: Any, **kwargs: Any) -> None:
        given: dict[str, Any] = dict(zip(_LOADER_ARGUMENTS, args, strict=False)) | kwargs
        if workers := given.get("num_workers", 0):
            process.note(_WORKERS.format(workers))
            # These four need workers, and DataLoader rejects them without.
            for name in ("prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context"):
                given.pop(name, None)
        make(loader, **(given | {"num_workers": 0}))

    patches.answer(DataLoader, "__init__", rank_loads)


def _answer_checkpoints(patches: Patches) -> None:
    def location(storage: Any) -> str | None:
        index = index_of_storage(storage) if here() is not None else None
        return None if index is None else f"cuda:{index}"

    def at_location(storage: Any, text: str) -> Any:
        process = here()
        if process is None or not text.startswith("cuda"):
            return None
        index = torch.device(text).index
        mark_storage(storage, process.placement.use(process.placement.device_index if index is None else index))
        return storage

    def to_device(process: Process, storage: Any, device: Any = None, *args: Any, **kwargs: Any) -> Any:
        return at_location(storage.clone(), f"cuda:{device}" if isinstance(device, int) else str(device or "cuda"))

    # torch's hook for unknown devices: functions that give a storage's location, and move it back there.
    registry = [(0, location, at_location), *current("saved_devices")]
    patches.replace(*place("saved_devices"), registry)
    patches.answer(torch.UntypedStorage, "cuda", to_device)


def _answer_autocast(patches: Patches) -> None:
    is_enabled, set_enabled = torch.is_autocast_enabled, torch.set_autocast_enabled
    get_dtype, set_dtype = torch.get_autocast_dtype, torch.set_autocast_dtype

    def rank_is_enabled(process: Process, device_type: str = "cuda") -> bool:
        return is_enabled("cpu" if device_type == "cuda" else device_type)

    def rank_sets_enabled(process: Process, device_type: Any, enabled: bool | None = None) -> None:
        if enabled is None:  # older signature: set_autocast_enabled(True)
            device_type, enabled = "cuda", device_type
        if device_type != "cuda":
            return set_enabled(device_type, bool(enabled))
        set_enabled("cpu", bool(enabled))
        set_dtype("cpu", rank_dtype(process) if enabled else torch.bfloat16)

    def rank_dtype(process: Process, device_type: str = "cuda") -> torch.dtype:
        return process.autocast.get("dtype", torch.float16) if device_type == "cuda" else get_dtype(device_type)

    def rank_sets_dtype(process: Process, device_type: str, dtype: torch.dtype) -> None:
        if device_type != "cuda":
            return set_dtype(device_type, dtype)
        process.autocast["dtype"] = dtype
        if is_enabled("cpu"):
            set_dtype("cpu", dtype)

    patches.answer(torch, "is_autocast_enabled", rank_is_enabled)
    patches.answer(torch, "set_autocast_enabled", rank_sets_enabled)
    patches.answer(torch, "get_autocast_dtype", rank_dtype)
    patches.answer(torch, "set_autocast_dtype", rank_sets_dtype)
    patches.answer(torch, "get_autocast_gpu_dtype", rank_dtype)
