"""`torch.cuda` and `torch.accelerator` on a simulated rank.

    device_count, get_device_properties, ...   from the records of the cluster (lablib/hardware)
    set_per_process_memory_fraction            a limit, which a note of the run compares with the peak
    memory_allocated, max_memory_allocated     from the rank's memory tracker; reserved equals allocated
    Event, Stream, synchronize                 virtual time (streams.py)
    manual_seed, get_rng_state, ...            the device's own generator (placement.py)

Unsupported functions raise a `NotSimulatedError` with their name.
"""

import types
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import torch

from lablib.process.rank_state import device_seed
from lablib.script.patches import Patches
from lablib.script.process import NotSimulatedError, Process, here, refuse
from lablib.script.streams import Event, Stream
from lablib.sim.ranks.streams import StreamContext
from lablib.torch_compat import place

# ---- devices ----


def _index(process: Process, device: Any = None) -> int:
    """The index of a device argument; by default the current device."""
    if device is None:
        return process.placement.device_index
    if isinstance(device, int) and not isinstance(device, bool):
        index = device
    else:
        device = torch.device(device)
        index = process.placement.device_index if device.index is None else device.index
    if not 0 <= index < process.num_devices:
        raise RuntimeError(f"CUDA error: invalid device ordinal: this node has {process.num_devices}; got {device}")
    return index


def _set_device(process: Process, device: Any) -> None:
    if not (isinstance(device, int) and device < 0):  # a negative number has no effect, as in torch
        process.placement.device_index = process.placement.use(_index(process, device))


def _properties(process: Process, device: Any = None) -> Any:
    _index(process, device)
    record = process.cluster.device
    major, minor = _capability(process, device)
    sizes = {"total_memory": int(record.memory_bytes), "multi_processor_count": record.num_cores, "warp_size": 32}
    others = {"is_integrated": 0, "is_multi_gpu_board": 0, "gcnArchName": ""}
    return types.SimpleNamespace(name=record.name, major=major, minor=minor, **sizes, **others)


def _capability(process: Process, device: Any = None) -> tuple[int, int]:
    record = process.cluster.device
    if record.compute_capability == (0, 0):
        why = f"{record.name} has no CUDA compute capability"
        refuse("torch.cuda.get_device_capability", why, "ask for the device's name")
    return record.compute_capability


class DeviceGuard:
    """Replacement of `torch.cuda.device(...)`: another current device inside the block."""

    def __init__(self, device: Any):
        process = here()
        self.idx = -1 if device is None or process is None else _index(process, device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        if (process := here()) is not None and self.idx >= 0:
            self.prev_idx, process.placement.device_index = process.placement.device_index, self.idx

    def __exit__(self, *_: Any) -> None:
        if (process := here()) is not None and self.idx >= 0:
            process.placement.device_index = self.prev_idx


class DeviceOfGuard(DeviceGuard):
    """Replacement of `torch.cuda.device_of(tensor)`."""

    def __init__(self, tensor: Any):
        super().__init__(tensor.get_device() if tensor.is_cuda else None)


# ---- memory ----


def _tracker(process: Process, device: Any = None) -> Any:
    tracker = process.rank.memory_tracker
    if tracker is None:
        refuse("torch.cuda's memory statistics", "this run counts no memory", "run it with trace=True")
    # A rank uses one device of the node: it holds no memory on the others.
    nothing = types.SimpleNamespace(allocated_bytes=lambda: 0, peak_bytes=lambda: 0, reset_peak=lambda: None)
    return tracker if _index(process, device) == process.local_rank else nothing


def _asked(name: str) -> Callable[..., Any]:
    """The method of the memory tracker, as a function of the process and a device."""
    return lambda process, device=None: getattr(_tracker(process, device), name)()


_allocated, _peak, _reset_peak = map(_asked, ("allocated_bytes", "peak_bytes", "reset_peak"))


def _mem_get_info(process: Process, device: Any = None) -> tuple[int, int]:
    total = int(process.cluster.device.memory_bytes)
    return total - _allocated(process, device), total


def _set_memory_fraction(process: Process, fraction: float, device: Any = None) -> None:
    """With torch's checks. A peak above the fraction becomes a note of the run: the simulator ends no program."""
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    if _index(process, device) == process.local_rank:
        process.rank.memory_fraction = fraction


def _memory_fraction(process: Process, device: Any = None) -> float:
    return process.rank.memory_fraction if _index(process, device) == process.local_rank else 1.0


def _memory_stats(process: Process, device: Any = None) -> dict[str, int]:
    held, peak = _allocated(process, device), _peak(process, device)
    kinds = ("allocated_bytes", "active_bytes", "reserved_bytes", "requested_bytes")
    stats = {f"{kind}.all.current": held for kind in kinds} | {f"{kind}.all.peak": peak for kind in kinds}
    return stats | {"num_alloc_retries": 0, "num_ooms": 0}


def _memory_summary(process: Process, device: Any = None, abbreviated: bool = False) -> str:
    held, peak = _allocated(process, device), _peak(process, device)
    return f"simulated {process.cluster.device.name}: {held:,} bytes allocated, {peak:,} at the peak"


# ---- random numbers ----


def _seed(process: Process) -> None:
    # Seeds from the operating system would differ in every run; the rank's number makes ranks differ.
    process.placement.generator.manual_seed(device_seed(process.rank.rank))


# ---- time ----


def _nvtx_push(process: Process, msg: str) -> int:
    process.rank.enter_block(msg)
    return len(process.rank.phases) - 1


def _nvtx_pop(process: Process) -> int:
    process.rank.leave_block()
    return len(process.rank.phases)


@contextmanager
def _nvtx_range(process: Process, msg: str, *args: Any, **kwargs: Any):
    _nvtx_push(process, msg.format(*args, **kwargs))
    try:
        yield
    finally:
        _nvtx_pop(process)


def _nothing(process: Process, *args: Any, **kwargs: Any) -> None:
    return None


def _initialized(answer: Callable[..., Any]) -> Callable[..., Any]:
    """Mark CUDA as initialized when the function is called."""

    def initializes(process: Process, *args: Any, **kwargs: Any) -> Any:
        process.placement.is_initialized = True
        return answer(process, *args, **kwargs)

    return initializes


def _always(value: Any) -> Callable[..., Any]:
    return lambda process, *args, **kwargs: value


ANSWERS: dict[str, Callable[..., Any]] = {
    "is_available": _always(True),
    "is_initialized": lambda process: process.placement.is_initialized,
    "is_bf16_supported": lambda process, *a, **k: "bfloat16" in process.cluster.device.peak_flops_per_s,
    "is_tf32_supported": lambda process, *a, **k: "tfloat32" in process.cluster.device.peak_flops_per_s,
    "init": _initialized(_nothing),
    "device_count": lambda process: process.num_devices,
    "current_device": lambda process: process.placement.use(process.placement.device_index),
    "set_device": _set_device,
    "get_device_name": _initialized(lambda process, device=None: _properties(process, device).name),
    "get_device_properties": _initialized(_properties),
    "get_device_capability": _initialized(_capability),
    "can_device_access_peer": _always(True),
    "get_arch_list": _always([]),
    "synchronize": _initialized(lambda process, device=None: process.streams.synchronize()),
    "current_stream": _initialized(lambda process, device=None: process.streams.current),
    "default_stream": _initialized(lambda process, device=None: process.streams.default),
    "set_stream": lambda process, stream: process.streams.switch(stream),
    "stream": lambda process, stream: StreamContext(stream),
    "is_current_stream_capturing": _always(False),
    **dict.fromkeys(("empty_cache", "ipc_collect", "reset_accumulated_memory_stats", "set_sync_debug_mode"), _nothing),
    **dict.fromkeys(("memory_allocated", "memory_reserved", "memory_cached"), _allocated),
    **dict.fromkeys(("max_memory_allocated", "max_memory_reserved", "max_memory_cached"), _peak),
    **dict.fromkeys(("reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached"), _reset_peak),
    "memory_stats": _memory_stats,
    "memory_summary": _memory_summary,
    "mem_get_info": _initialized(_mem_get_info),
    "set_per_process_memory_fraction": _initialized(_set_memory_fraction),
    "get_per_process_memory_fraction": _initialized(_memory_fraction),
    **dict.fromkeys(
        ("manual_seed", "manual_seed_all"),
        lambda process, seed: process.placement.generator.manual_seed(int(seed)),
    ),
    **dict.fromkeys(("seed", "seed_all"), _seed),
    "initial_seed": lambda process: process.placement.generator.seed,
    "get_rng_state": _initialized(lambda process, device="cuda": process.placement.generator.get_state()),
    "get_rng_state_all": lambda process: [process.placement.generator.get_state()] * process.num_devices,
    "set_rng_state": lambda process, new_state, device="cuda": process.placement.generator.set_state(new_state),
    "set_rng_state_all": lambda process, states: process.placement.generator.set_state(
        states[process.placement.device_index]
    ),
    "_get_rng_state_offset": lambda process, device="cuda": process.placement.generator.offset,
    "_set_rng_state_offset": lambda process, offset, device="cuda": process.placement.generator.set_offset(offset),
    "get_sync_debug_mode": _always(0),
}
_ALSO_OF_ACCELERATOR = (
    "is_available device_count current_stream set_stream empty_cache memory_allocated max_memory_allocated "
    "memory_reserved max_memory_reserved reset_peak_memory_stats reset_accumulated_memory_stats memory_stats"
).split()
ACCELERATOR: dict[str, Callable[..., Any]] = {name: ANSWERS[name] for name in _ALSO_OF_ACCELERATOR} | {
    "current_accelerator": lambda process, check_available=False: torch.device("cuda"),
    **dict.fromkeys(("current_device_index", "current_device_idx"), ANSWERS["current_device"]),
    **dict.fromkeys(("set_device_index", "set_device_idx"), _set_device),
    "synchronize": lambda process, device=None: process.streams.synchronize(),
    "get_memory_info": _mem_get_info,
}
NVTX = {"range_push": _nvtx_push, "range_pop": _nvtx_pop, "range": _nvtx_range, "mark": _nothing}
CLASSES: dict[str, Any] = {"Stream": Stream, "Event": Event, "StreamContext": StreamContext}
CLASSES |= {"device": DeviceGuard, "_DeviceGuard": DeviceGuard, "device_of": DeviceOfGuard}
_WHY = "it asks for what only a GPU and its driver have"
_REMEDY = "leave the call out when simulating, or run the script on GPUs"


def answer_cuda(patches: Patches) -> None:
    for owner in (torch.cuda, torch.cuda.memory, torch.cuda.random, torch.cuda.streams):
        for name, value in vars(owner).copy().items():
            if name in CLASSES:
                patches.replace(owner, name, CLASSES[name])
            elif name in ANSWERS and callable(value):
                patches.answer(owner, name, ANSWERS[name])
            elif _is_unanswered(name, value) and isinstance(value, type):
                patches.replace(owner, name, _refusing_class(f"torch.cuda.{name}"))
            elif _is_unanswered(name, value):
                refusing = partial(refuse, f"torch.cuda.{name}", _WHY, _REMEDY)
                patches.answer(owner, name, lambda process, *args, refusing=refusing, **kwargs: refusing())
    for name, function in NVTX.items():
        patches.answer(torch.cuda.nvtx, name, function)
    for name in vars(torch.accelerator).copy():
        if name in ACCELERATOR:
            patches.answer(torch.accelerator, name, ACCELERATOR[name])
    patches.replace(torch, "Stream", Stream)
    patches.replace(torch, "Event", Event)
    patches.answer(torch.backends.cudnn, "is_acceptable", _always(False))  # called by recurrent layers
    patches.replace(*place("cuda_lazy_init"), _lazy_init)
    patches.replace(*place("cuda_is_initialized"), True)  # checkpointing reads it before it saves the random state
    patches.answer(*place("cuda_is_in_bad_fork"), _always(False))
    patches.answer(*place("get_accelerator"), lambda process, *a: torch.device("cuda", _index(process)))
    patches.answer(import_module("torch.cuda.nccl"), "version", _always((0, 0, 0)))  # used in torch's messages


def _is_unanswered(name: str, value: Any) -> bool:
    """Whether this is an unsupported public function or class of torch.cuda that needs a device."""
    if name.startswith("_") or not (getattr(value, "__module__", None) or "").startswith("torch.cuda"):
        return False
    is_legacy = isinstance(value, type) and name.endswith(("Tensor", "Storage"))
    return isinstance(value, types.FunctionType) or is_legacy or name in ("CUDAGraph", "MemPool", "ExternalStream")


def _refusing_class(call: str) -> type:
    """A class without instances, which cannot be instantiated."""

    def __new__(cls: type, *args: Any, **kwargs: Any) -> Any:
        refuse(call, _WHY, _REMEDY)

    return type(call.rsplit(".", 1)[-1], (), {"__new__": __new__})


def _lazy_init() -> None:
    """Replacement of torch's CUDA initialization, which is called before an unsupported access to a GPU."""
    where = "in a thread that the script started itself" if here() is None else "in a call below Python"
    raise NotSimulatedError(
        f"CUDA has no answer on the simulator {where}: the simulated device is the rank's own thread's; "
        "use the device from the script's main thread, through torch's Python functions"
    )
