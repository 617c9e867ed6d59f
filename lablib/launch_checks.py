"""Checks of the arguments of `launch`: the program, the number of ranks, the time limit."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Any

from lablib.errors import unknown_name
from lablib.signature import whole_number
from lablib.text.messages import safe_repr

BACKENDS = ("sim", "gloo", "nccl")
FIDELITIES = ("values", "shapes")
MAX_RANKS = {"sim": 16_384, "gloo": 1024, "nccl": 1024}  # threads of one process; processes of one machine


def check_program(fn: Any, args: Sequence[Any]) -> None:
    """Check that ranks can call `fn(*args)`."""
    if not callable(fn):
        raise TypeError(
            f"launch needs a function to run on every rank: got {safe_repr(fn)}; pass the function, not its result"
        )
    name = _name(fn)
    if what := _not_run_by_a_call(fn):
        raise TypeError(f"launch runs plain functions: {name} is {what}; {_REMEDIES[what]}")
    try:
        signature = inspect.signature(fn)
    except Exception:
        return  # some builtins have none; the call itself may fail
    try:
        signature.bind(*args)
    except TypeError as error:
        raise TypeError(f"{name} cannot be called with the {len(args)} arguments given to launch: {error}") from None


_REMEDIES = {
    "an async function": "call asyncio.run inside a plain function",
    "an async generator": "call asyncio.run inside a plain function",
    "a generator function": "return a list instead of yielding",
}


def _not_run_by_a_call(fn: Any) -> str:
    """The kind of function, if a call only makes an object and runs nothing; otherwise ""."""
    while isinstance(fn, partial):
        fn = fn.func
    for called in (fn, type(fn).__call__):
        if inspect.iscoroutinefunction(called):
            return "an async function"
        if inspect.isasyncgenfunction(called):
            return "an async generator"
        if inspect.isgeneratorfunction(called):
            return "a generator function"
    return ""


def check_value(value: Any) -> None:
    """Check that a program's return value is a result, not a body that has not run."""
    for is_one, what in (
        (inspect.iscoroutine, "an async function"),
        (inspect.isasyncgen, "an async generator"),
        (inspect.isgenerator, "a generator function"),
    ):
        if is_one(value):
            if what != "an async generator":
                value.close()  # avoids Python's warning about an unawaited coroutine
            raise TypeError(f"the program returned the result of {what}, but its body has not run; {_REMEDIES[what]}")


def checked_size(ranks: Any, backend: Any) -> int:
    """Check the number of ranks for this backend, and return it."""
    if not isinstance(backend, str) or backend not in BACKENDS:
        raise unknown_name("backend", backend, BACKENDS)
    ranks = whole_number("ranks", ranks, example=4, maximum=inf)
    if ranks > (max_ranks := MAX_RANKS[backend]):
        what = "threads of one process" if backend == "sim" else "processes of one machine"
        remedy = "; the planner (lablib.plan) predicts larger runs" if backend == "sim" else '; try backend="sim"'
        raise ValueError(
            f"ranks on {backend} are {what}, at most {max_ranks:,}: got {safe_repr(ranks)}{remedy}, "
            f"or ranks={max_ranks}"
        )
    return ranks


def checked_timeout(timeout_s: Any) -> float | None:
    """`timeout_s` as a number of seconds; None for no limit."""
    if timeout_s is None:
        return None
    is_number = isinstance(timeout_s, (int, float)) and not isinstance(timeout_s, bool)
    if not (is_number and timeout_s > 0):
        raise ValueError(f"timeout_s must be positive seconds, or None for the default: got {safe_repr(timeout_s)}")
    return float(timeout_s) if timeout_s < _FOR_EVER_S else inf


_FOR_EVER_S = 1e9  # 30 years


def check_fidelity(fidelity: Any, backend: str) -> None:
    """Check that this backend supports this fidelity."""
    if not isinstance(fidelity, str) or fidelity not in FIDELITIES:
        raise unknown_name("fidelity", fidelity, FIDELITIES)
    if fidelity == "shapes" and backend != "sim":
        raise ValueError(f'fidelity="shapes" is for the simulator: {backend} computes with values; use backend="sim"')


def check_device(device: Any, backend: str, fidelity: str) -> None:
    """Check that ranks of this backend can have this default device."""
    if device is None or (device == "cuda" and backend == "nccl"):
        return
    if not isinstance(device, str) or device != "cuda":
        raise ValueError(f'device must be "cuda", or None for the default: got {safe_repr(device)}')
    if backend == "gloo":
        raise ValueError('device="cuda" needs GPUs, real or simulated: gloo has none; use backend="sim"')
    if fidelity == "shapes":
        raise ValueError('device="cuda" computes with values: got fidelity="shapes"; leave one of the two out')


def checked_simulate(
    simulate: Any, ranks: int, backend: str, fidelity: str, faults: Sequence[Any]
) -> tuple[int, ...] | None:
    """The ranks to run, in order; None for all."""
    if simulate is None:
        return None
    is_list = isinstance(simulate, Sequence) and not isinstance(simulate, str | bytes)
    chosen = [rank for rank in simulate if isinstance(rank, int) and not isinstance(rank, bool)] if is_list else []
    if not chosen or len(chosen) < len(simulate):
        raise ValueError(
            f"simulate must hold the ranks to run, 1 or more: got {safe_repr(simulate)}; try simulate=range(8)"
        )
    wrong = next((rank for rank in chosen if not 0 <= rank < ranks), None)
    if wrong is not None or len(set(chosen)) < len(chosen):
        problem = "one of them twice" if wrong is None else f"rank {wrong}"
        raise ValueError(f"simulate must hold some of the ranks 0 to {ranks - 1}, each once: got {problem}")
    if backend != "sim":
        raise ValueError(f'simulate is for the simulator: {backend} runs all ranks; leave it out, or use backend="sim"')
    if fidelity != "shapes":
        raise ValueError(
            'simulate needs fidelity="shapes": ranks that are not run have no values to send; '
            f"got fidelity={fidelity!r}"
        )
    if faults:
        raise ValueError("faults happen to single ranks, and those that are not run do what others do: leave one out")
    return None if len(chosen) == ranks else tuple(sorted(chosen))


def check_trace(trace: Any) -> None:
    """Check that `trace` is a boolean."""
    if not isinstance(trace, bool):
        raise TypeError(f"trace must be True or False: got {safe_repr(trace)}")


def check_share_gpus(share_gpus: Any, backend: str) -> None:
    """Check that `share_gpus` is a boolean, and True only on a backend with GPUs."""
    if not isinstance(share_gpus, bool):
        raise TypeError(f"share_gpus must be True or False: got {safe_repr(share_gpus)}")
    if share_gpus and backend != "nccl":
        raise ValueError(f'share_gpus is for backend="nccl": got {backend}, which has no GPUs to share; leave it out')


def check_like(like: Any, backend: str) -> None:
    """Check that ranks of this backend can be limited to another one."""
    if like is None or (like == "nccl" and backend == "nccl"):
        return
    if not isinstance(like, str) or like != "nccl":
        raise ValueError(f'like must be "nccl", or None for no limits: got {safe_repr(like)}')
    if backend != "sim":
        raise ValueError(f'like="nccl" is for the simulator: got backend={backend!r}; use backend="sim"')


def _name(fn: Callable[..., Any]) -> str:
    name = getattr(fn, "__name__", None)
    return name if isinstance(name, str) else safe_repr(fn)
