"""Each setting, one by one: a rank has its own, the notebook keeps its own, and the next launch starts clean."""

import builtins
import contextlib
import copy
import decimal
import gc
import io
import locale
import logging
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.fsdp._debug_utils import SimpleProfiler
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import _random as dtensor_random
from torch.nn.modules.module import register_module_forward_hook

from lablib import DeadlockError, LaunchTimeoutError, RankError, launch
from lablib.process.settings import OF_THE_PROCESS, SETTINGS, ProcessSetting, taken
from lablib.process.settings.logs import logging_state

# How a program changes each; on one rank with 1, on another with 2.
CHANGES: dict[str, Callable[[int], Any]] = {
    "working directory": lambda n: os.chdir(tempfile.gettempdir() if n == 1 else os.sep),
    "sys.path": lambda n: sys.path.append(f"folder {n}"),
    "sys.argv": lambda n: setattr(sys, "argv", ["script", str(n)]),
    "sys.meta_path": lambda n: sys.meta_path.append(Finder(n)),  # pyright: ignore[reportArgumentType]
    "environment": lambda n: (os.environ.update(LAB_TEST_OWNER=str(n)), os.environ.pop("HOME", None)),
    "standard streams": lambda n: [
        setattr(sys, name, io.StringIO()) for name in ("stdin", "stdout", "stderr")[n - 1 :]
    ],
    "hooks of the interpreter": lambda n: setattr(sys, "excepthook", [print, repr][n - 1]),
    "hook for errors of threads": lambda n: setattr(threading, "excepthook", [print, repr][n - 1]),
    "replaced builtins": lambda n: setattr(builtins, "print", [repr, str][n - 1]),
    "garbage collector": lambda n: (gc.set_threshold(500 + n), gc.disable(), gc.callbacks.append(ignored)),
    "limits of the interpreter": lambda n: (
        sys.setswitchinterval(n / 100),
        sys.setrecursionlimit(5000 + n),
        socket.setdefaulttimeout(n),
    ),
    "umask": lambda n: os.umask(0o70 + n),
    "locale": lambda n: locale.setlocale(locale.LC_ALL, ["C", "POSIX" if os.name != "posix" else "C.UTF-8"][n - 1]),
    "warnings filters": lambda n: warnings.filterwarnings("error", message=str(n)),
    "how warnings are shown": lambda n: setattr(warnings, "showwarning", [print, repr][n - 1]),
    "decimal context": lambda n: setattr(decimal.getcontext(), "prec", n),
    "signal handlers": lambda n: signal.signal(signal.SIGTERM, [ignored, print][n - 1]),
    "logging": lambda n: (
        logging.getLogger().setLevel(n),
        logging.getLogger("torch").addHandler(logging.NullHandler()),
        logging.getLogger(f"new of rank {n}").setLevel(n),
        logging.disable(n),
    ),
    "default dtype": lambda n: torch.set_default_dtype([torch.float64, torch.bfloat16][n - 1]),
    "determinism": torch.set_deterministic_debug_mode,
    "anomaly mode": lambda n: torch.set_anomaly_enabled(True, check_nan=n == 1),
    "float32 precision": lambda n: torch.set_float32_matmul_precision(["high", "medium"][n - 1]),
    "kernels": lambda n: (
        torch.backends.cuda.enable_flash_sdp(n == 1),
        setattr(torch.backends.cudnn, "benchmark", n == 1),
    ),
    "print options": lambda n: torch.set_printoptions(precision=n),
    "repeated warnings of torch": lambda n: torch.set_warn_always(n == 1),
    "debug level of torch.distributed": lambda n: set_debug_level(["INFO", "OFF"][n - 1]),
    "hooks of all modules and optimizers": lambda n: register_module_forward_hook(lambda *_: ignored(n)),
    "default device": lambda n: torch.set_default_device(["meta", None][n - 1]),
    "grad mode": lambda n: torch.set_grad_enabled(n == 2),
    "autocast": lambda n: torch.set_autocast_enabled("cpu", n == 1),
    "number of threads": lambda n: torch.set_num_threads(1 + n),
    "process groups": lambda n: setattr(c10d, "_world", copy.copy(c10d._world)),
    "tables in modules of torch": lambda n: (
        setattr(torch.nn.functional, "scaled_dot_product_attention", [ignored, print][n - 1]),
        vars(DTensor._op_dispatcher)["_custom_op_handlers"].update({n: ignored}),
        SimpleProfiler.profiling.add(str(n)),
        setattr(dtensor_random, "_rng_tracker", n),
    ),
    "random generators": lambda n: (torch.manual_seed(n), random.seed(n), numpy.random.seed(n), numpy.random.randn()),
}

# What differs from rank to rank at the start, and why.
KNOWS_ITS_RANK = {
    "environment": "RANK",
    "standard streams": "each prints for itself",
    "hooks of the interpreter": "init_process_group puts one there that knows its rank",
    "process groups": "each has its own end of a group",
    "random generators": "the seed is the rank",
}


class Finder:
    """Finds nothing."""

    def __init__(self, number: int):
        self.number = number

    def find_spec(self, *_: Any) -> None:
        return None


def seen(setting: ProcessSetting) -> Any:
    """Its state now, of which nothing changes afterwards: tables of torch are given back as they are, and changed."""
    state = setting.take()
    if setting.name.startswith("tables"):
        return [part.copy() if isinstance(part, (dict, set)) else part for part in state]
    return state


def all_seen() -> dict[str, Any]:
    return {setting.name: seen(setting) for setting in SETTINGS}


def functions_in_place() -> dict[tuple[str, ...], int]:
    """Every function and class of torch and Python, by where it stands: in a module, or in a class of one."""
    found = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in {"torch", *sys.stdlib_module_names} or name.startswith("test"):
            continue
        for key, value in list(vars(module).items()):
            if callable(value):
                found[name, key] = id(value)
            if issubclass(type(value), type) and value.__module__ == name:
                found |= {(name, key, inner): id(own) for inner, own in list(vars(value).items()) if callable(own)}
    return found


def set_debug_level(name: str) -> None:
    debug: Any = dist  # its stubs leave the level out
    debug.set_debug_level(getattr(debug.DebugLevel, name))


def ignored(*_: Any) -> None:
    pass


def test_every_owner_has_an_example():
    assert list(CHANGES) == [setting.name for setting in SETTINGS]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_a_rank_has_its_own_the_notebook_keeps_its_own_and_the_next_launch_starts_clean(setting):
    def program() -> tuple[Any, Any, Any]:
        before, rank = seen(setting), dist.get_rank()
        if rank < 2:
            CHANGES[setting.name](rank + 1)
        own = seen(setting)
        for _ in range(3):
            dist.barrier()
        return before, own, seen(setting)

    host = seen(setting)
    first, second, third = launch(program, ranks=3).values
    if setting.name in KNOWS_ITS_RANK:
        assert first[0] != second[0] != third[0] != first[0]
    else:
        assert first[0] == second[0] == third[0]  # All start alike,
        assert launch(seen, setting, ranks=1).values == [first[0]]  # and so does the next launch;
        assert first[0] == host or setting.is_of_thread  # as the notebook has it.
    assert first[1] != second[1] and first[1] != first[0]  # Two change it,
    assert [own == after for _, own, after in (first, second, third)] == [True] * 3  # each sees its own,
    assert third[1] == third[0] and seen(setting) == host  # and the third and the notebook see nothing of it.


_orders = st.lists(st.sampled_from([setting for setting in SETTINGS if setting.setters]), unique=True, min_size=2)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from(SETTINGS), max_size=3), st.tuples(_orders, _orders))
def test_a_rank_keeps_all_that_it_changes_in_one_turn_in_whatever_order(first: list[ProcessSetting], orders: tuple):
    """Setters that are watched come last: each notes what it changes, and forgets nothing that changed before."""

    def program() -> list[str]:
        rank = dist.get_rank()
        for setting in (*first, *orders[rank]):
            CHANGES[setting.name](rank + 1)
        own = all_seen()
        for _ in range(3):
            dist.barrier()
        return [name for name, state in all_seen().items() if state != own[name]]

    assert launch(program, ranks=2).values == [[], []]


def test_on_processes_it_is_the_same():
    def program() -> dict[str, tuple[str, bool, bool]]:
        from lablib.process.settings import SETTINGS  # the worker's own, not a copy

        seen = {}
        for setting in SETTINGS:
            before = repr(setting.take())
            if change:
                CHANGES[setting.name](dist.get_rank() + 1)
            own = setting.take()
            seen[setting.name] = before, own
            dist.barrier()
        return {o.name: (seen[o.name][0], o.take() == seen[o.name][1], o.travels) for o in SETTINGS}

    launch(lambda: DTensor.__name__, ranks=2, backend="gloo")  # what its import adds to the filters is no program's
    change = True
    first, second = launch(program, ranks=2, backend="gloo").values
    assert all(is_own for _, is_own, _ in (*first.values(), *second.values()))
    change = False
    again = launch(program, ranks=2, backend="gloo").values[0]
    simulated = launch(program, ranks=2).values[0]
    host = {name: repr(state) for name, state in taken(OF_THE_PROCESS).items()}
    for name, (start, _, travels) in again.items():
        if " at 0x" not in start:
            assert start == first[name][0]  # a warm worker starts clean,
        if travels and name != "sys.path":  # there without relative folders
            assert start == simulated[name][0]  # and as a simulated rank does;
            assert start == host.get(name, start)  # which is as the notebook is, but for modes of a thread.


@pytest.mark.parametrize("backend", ["sim", "gloo"])
def test_the_next_program_draws_and_finds_in_torch_what_the_first_did(backend: str):
    def program() -> list[Any]:
        found = CHANGES["random generators"], CHANGES["tables in modules of torch"]
        handlers = vars(DTensor._op_dispatcher)["_custom_op_handlers"]
        start = [numpy.random.randn(), random.random(), torch.rand(()).item(), len(handlers)]
        start += [torch.nn.functional.scaled_dot_product_attention.__name__, len(SimpleProfiler.profiling)]
        dist.barrier()
        for change in found:
            change(1 + dist.get_rank())
        return start

    values = [launch(program, ranks=2, backend=backend).values for _ in range(2)]
    assert values[0] == values[1] and values[0][0][:3] != values[0][1][:3]


def fail(rank: int) -> None:
    assert rank


def wait_for_nobody(rank: int) -> None:
    if rank:
        dist.barrier()


def go_on(rank: int) -> None:
    while rank:
        time.sleep(0.01)
    dist.barrier()


def press_stop(rank: int) -> None:
    if rank:
        os.kill(os.getpid(), signal.SIGINT)
        go_on(rank)
    dist.barrier()


ENDS: dict[str, tuple[Callable[[int], None], Any]] = {
    "success": (lambda rank: None, None),
    "failure": (fail, RankError),
    "deadlock": (wait_for_nobody, DeadlockError),
    "interrupt": (press_stop, KeyboardInterrupt),
    "timeout": (go_on, LaunchTimeoutError),
}


def launch_until(end: str, program: Callable[[], None], **options: Any) -> None:
    """Launch a program that then ends in this way, and see that it does."""
    finish, error = ENDS[end]

    def whole() -> None:
        program()
        dist.barrier()
        finish(dist.get_rank())

    with pytest.raises(error) if error else contextlib.nullcontext():
        launch(whole, ranks=2, timeout_s=0.3 if end == "timeout" else None, **options)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("fidelity", ["values", "shapes"])
def test_however_a_run_ends_the_process_is_as_before(end: str, fidelity: str):
    def program() -> None:
        for change in CHANGES.values():
            change(1 + dist.get_rank())

    launch(lambda: torch.ones(2).sum().item() if fidelity == "values" else None, ranks=2, fidelity=fidelity)
    host, functions, classes = all_seen(), functions_in_place(), (type(sys), type(os.environ))
    launch_until(end, program, fidelity=fidelity)
    assert all_seen() == host and functions_in_place() == functions and (type(sys), type(os.environ)) == classes


def test_what_the_notebook_has_set_holds_on_its_ranks():
    host = taken(OF_THE_PROCESS)
    try:
        torch.set_default_dtype(torch.float64)
        torch.set_printoptions(precision=2)
        assert launch(lambda: f"{torch.ones(1) / 3}", ranks=2).values == ["tensor([0.33])"] * 2
        assert launch(lambda: torch.ones(1).dtype, ranks=2).values == [torch.float64] * 2
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_printoptions(profile="default")
    assert taken(OF_THE_PROCESS) == host


@pytest.mark.parametrize("sets", ["property", "flags"])
def test_cudnns_older_switch_of_tf32_is_a_ranks_own_however_it_is_set(sets: str):
    cudnn = torch.backends.cudnn

    def program() -> bool:
        if dist.get_rank() == 0:
            if sets == "property":
                cudnn.allow_tf32 = False
            else:
                cudnn.set_flags(_allow_tf32=False)
        dist.barrier()
        return cudnn.allow_tf32

    assert launch(program, ranks=3).values == [False, True, True] and cudnn.allow_tf32


def test_the_state_of_loggers_is_read_without_a_call_for_each(calls_of: Callable[..., int]):
    """Every launch reads it three times, and torch alone makes a hundred loggers."""
    root = logging.RootLogger(logging.WARNING)
    manager = logging.Manager(root)
    many = [manager.getLogger(f"package{n}.module") for n in range(500)]
    many[7].setLevel(logging.INFO)
    assert calls_of(lambda: logging_state(root, manager)) < 30
    *_, loggers, _ = logging_state(root, manager)
    assert set(loggers) == {root, many[7]}
