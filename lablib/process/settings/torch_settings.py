"""Per-process settings of torch: dtype, determinism, precision, kernels, hooks, thread modes."""

import itertools
from functools import partial
from typing import Any

import torch
from torch.nn.modules import module
from torch.utils.hooks import RemovableHandle

from lablib import torch_compat
from lablib.process.settings.setting import Pair, ProcessSetting, attributes, flags
from lablib.torch_compat import PRINT_OPTIONS, current, optimizer_post_hooks, optimizer_pre_hooks, place

_dist: Any = torch.distributed
_PRECISIONS = [("generic", "all"), *itertools.product(("cuda", "mkldnn"), ("all", "matmul", "conv", "rnn"))]
_HOOKS = [hooks for name, hooks in vars(module).items() if name.startswith("_global_") and isinstance(hooks, dict)]
_HOOKS += [optimizer_pre_hooks, optimizer_post_hooks]


# ---- determinism ----


_DETERMINISM = (
    torch_compat.get_deterministic_algorithms,
    torch_compat.get_deterministic_algorithms_warn_only,
    torch_compat.get_deterministic_fill_uninitialized_memory,
)


def _determinism() -> tuple[int, bool]:
    return torch.get_deterministic_debug_mode(), torch_compat.get_deterministic_fill_uninitialized_memory()


def _set_determinism(state: tuple[int, bool]) -> None:
    # torch.use_deterministic_algorithms does the same, but first imports the compiler, which takes a second.
    torch_compat.set_deterministic_algorithms(state[0] > 0, warn_only=state[0] == 1)
    torch_compat.set_deterministic_fill_uninitialized_memory(state[1])


# ---- float32 precision ----


_OLDER_PRECISIONS: tuple[Pair, ...] = (
    (torch_compat.get_float32_matmul_precision, torch_compat.set_float32_matmul_precision),
    (torch_compat.get_cublas_allow_tf32, torch_compat.set_cublas_allow_tf32),
    (torch_compat.get_cudnn_allow_tf32, torch_compat.set_cudnn_allow_tf32),
)


def _either(read: Any) -> Any:
    """torch has two interfaces, and the older one raises after the newer has been used."""
    try:
        return read()
    except RuntimeError:
        return None


def _precisions() -> tuple:
    each = tuple([torch_compat.get_fp32_precision_getter(*which) for which in _PRECISIONS])
    return (*(_either(read) for read, _ in _OLDER_PRECISIONS), each)


def _set_precisions(state: tuple) -> None:
    """Set the older settings first, as they set some of the newer; only differing ones, so that inherited ones stay."""
    *older, each = state
    for (read, write), value in zip(_OLDER_PRECISIONS, older, strict=True):
        if value is not None and _either(read) != value:
            write(value)
    for which, value in zip(_PRECISIONS, each, strict=True):
        if torch_compat.get_fp32_precision_getter(*which) != value:
            torch_compat.set_fp32_precision_setter(*which, value)


# ---- which kernels ----


def _pair(name: str, write: str = "") -> Pair:
    return getattr(torch_compat, f"get_{name}"), getattr(torch_compat, write or f"set_{name}")


def _reduced_precision(name: str) -> Pair:
    read, write = _pair(f"cublas_allow_{name}_reduced_precision_reduction")
    return read, lambda on: write(*on)


_KERNELS: tuple[Pair, ...] = (
    *map(_pair, ("cudnn_benchmark", "cudnn_deterministic", "cudnn_enabled", "cublas_allow_fp16_accumulation")),
    *map(_reduced_precision, ("fp16", "bf16")),
    *(
        _pair(f"{name}_sdp_enabled", f"set_sdp_use_{name}")
        for name in ("flash", "mem_efficient", "math", "cudnn", "overrideable")
    ),
    *map(_pair, ("mkldnn_enabled", "mkldnn_deterministic", "nnpack_enabled", "qengine")),
)


# ---- hooks ----


def _set_hooks(state: tuple) -> None:
    for hooks, items in zip(_HOOKS, state, strict=True):
        hooks.clear()
        hooks.update(items)


# ---- modes of the thread ----


def _default_device() -> torch.device | None:
    context = getattr(current("DEVICE_CONTEXT"), "device_context", None)
    return None if context is None else context.device


def _autocast_pairs() -> list:
    pairs: list = [(torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled)]
    for kind in ("cpu", "cuda"):
        reads = partial(torch.is_autocast_enabled, kind), partial(torch.get_autocast_dtype, kind)
        writes = partial(torch.set_autocast_enabled, kind), partial(torch.set_autocast_dtype, kind)
        pairs += zip(reads, writes, strict=True)
    return pairs


SETTINGS = (
    flags("default dtype", (torch.get_default_dtype, torch.set_default_dtype)),
    ProcessSetting("determinism", _determinism, _set_determinism, travels=True, reads=lambda: _DETERMINISM),
    flags(
        "anomaly mode",
        (torch.is_anomaly_enabled, lambda on: torch.set_anomaly_enabled(on, torch.is_anomaly_check_nan_enabled())),
        (torch.is_anomaly_check_nan_enabled, lambda on: torch.set_anomaly_enabled(torch.is_anomaly_enabled(), on)),
    ),
    ProcessSetting(
        "float32 precision",
        _precisions,
        _set_precisions,
        setters=(
            place("set_float32_matmul_precision"),
            place("set_cublas_allow_tf32"),
            place("set_cudnn_allow_tf32"),
            (vars(type(torch.backends.cudnn))["allow_tf32"], "setter"),
            place("set_fp32_precision_setter"),
        ),
        travels=True,
    ),
    flags("kernels", *_KERNELS),
    attributes(
        "print options", PRINT_OPTIONS, "precision", "threshold", "edgeitems", "linewidth", "sci_mode", travels=True
    ),
    flags("repeated warnings of torch", (torch_compat.get_warnAlways, torch_compat.set_warnAlways)),
    ProcessSetting(
        "debug level of torch.distributed",
        _dist.get_debug_level,
        _dist.set_debug_level,
        setters=((_dist, "set_debug_level"),),
        travels=True,
    ),
    ProcessSetting(
        "hooks of all modules and optimizers",
        lambda: tuple([tuple(hooks.items()) for hooks in _HOOKS]),
        _set_hooks,
        setters=((RemovableHandle, "__init__"), (RemovableHandle, "remove")),
    ),
    ProcessSetting("default device", _default_device, torch.set_default_device, is_of_thread=True),
    flags("grad mode", (torch.is_grad_enabled, torch.set_grad_enabled), is_of_thread=True),
    flags("autocast", *_autocast_pairs(), is_of_thread=True),
    # Setting it also sets the number for new threads, which cannot be read.
    ProcessSetting(
        "number of threads", torch.get_num_threads, torch.set_num_threads, is_of_thread=True, is_always=True
    ),
)
