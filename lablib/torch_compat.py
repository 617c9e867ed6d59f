"""Private names of torch that lablib uses, all in one table, each checked on import.

torch gives no guarantee for names that begin with an underscore, nor for those below `torch._C`. The simulator needs
them: it replaces torch's process group, clock and memory from inside. An import of one

    from lablib.torch_compat import TorchDispatchMode, graph_task_id

looks up its whole group, once. If any is missing, one error lists all of them, with torch's version. A name here is the
purpose, without the underscore; `place(name)` returns its location, for temporary replacements, and `current(name)` the
present value there. Attributes of torch's objects have a function each: `schema(op)`, `storage_id(storage)`.

    torch      always        dispatcher, autograd, tensors, torch.distributed
    fsdp2      on demand     importing it takes a while
    dtensor    on demand     importing it takes a while
    compiler   on demand     importing it takes seconds
    loaded     never imported from here: `loaded(module)` is None if the program has not imported it

tests/test_torch_compat.py is made from this table; a lint in it rejects private names in all other files.
tests/sim/test_backend_contract.py reads the required methods of a process group from torch itself.
"""

import os
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from operator import attrgetter
from types import CodeType, FrameType
from typing import Any

_C10D = "torch.distributed.distributed_c10d"
_IN_C10D = "torch._C._distributed_c10d"
_FOREACH = ("add_", "addcdiv_", "addcmul_", "clamp_max_", "clamp_min", "clamp_min_", "copy_", "div_", "lerp", "lerp_")
_FOREACH += ("mul", "mul_", "norm", "reciprocal_", "rsqrt_", "sign_", "sqrt")
# Settings of the process behind torch's Python functions (lablib/process/settings/torch_settings.py).
_SETTINGS = """
get_cublas_allow_bf16_reduced_precision_reduction get_cublas_allow_fp16_accumulation
get_cublas_allow_fp16_reduced_precision_reduction get_cublas_allow_tf32 get_cudnn_allow_tf32 get_cudnn_benchmark
get_cudnn_deterministic get_cudnn_enabled get_cudnn_sdp_enabled get_deterministic_algorithms
get_deterministic_algorithms_warn_only get_deterministic_fill_uninitialized_memory
get_flash_sdp_enabled get_float32_matmul_precision get_fp32_precision_getter get_math_sdp_enabled
get_mem_efficient_sdp_enabled get_mkldnn_deterministic get_mkldnn_enabled get_nnpack_enabled
get_overrideable_sdp_enabled get_qengine get_warnAlways set_cublas_allow_bf16_reduced_precision_reduction
set_cublas_allow_fp16_accumulation set_cublas_allow_fp16_reduced_precision_reduction set_cublas_allow_tf32
set_cudnn_allow_tf32 set_cudnn_benchmark set_cudnn_deterministic set_cudnn_enabled set_deterministic_algorithms
set_deterministic_fill_uninitialized_memory set_float32_matmul_precision set_fp32_precision_setter
set_mkldnn_deterministic set_mkldnn_enabled set_nnpack_enabled set_qengine set_sdp_use_cudnn set_sdp_use_flash
set_sdp_use_math set_sdp_use_mem_efficient set_sdp_use_overrideable set_warnAlways
""".split()

NAMES: Mapping[str, Mapping[str, str]] = {
    "torch": {
        # modes of the dispatcher and of torch functions
        "TorchDispatchMode": "torch.utils._python_dispatch.TorchDispatchMode",
        "disable_current_modes": "torch.utils._python_dispatch._disable_current_modes",
        "get_dispatch_mode": "torch._C._get_dispatch_mode",
        "FAKE_MODE": "torch._C._TorchDispatchModeKey.FAKE",
        "FakeTensorMode": "torch._subclasses.fake_tensor.FakeTensorMode",
        "DisableTorchDispatch": "torch._C._DisableTorchDispatch",
        "DisableTorchFunction": "torch._C.DisableTorchFunction",
        "num_function_modes": "torch._C._len_torch_function_stack",
        "function_mode_at": "torch._C._get_function_stack_at",
        "current_function_modes": "torch.overrides._get_current_function_mode_stack",
        "DispatchKey": "torch._C.DispatchKey",
        "is_key_excluded": "torch._C._dispatch_tls_is_dispatch_key_excluded",
        "keys_after": "torch._C._dispatch_keyset_full_after",
        "has_kernel": "torch._C._dispatch_has_kernel",
        "has_kernel_for": "torch._C._dispatch_has_kernel_for_dispatch_key",
        # operators
        "OpOverload": "torch._ops.OpOverload",
        "HigherOrderOperator": "torch._ops.HigherOrderOperator",
        "to_copy": "torch.ops.aten._to_copy.default",
        "read_number": "torch.ops.aten._local_scalar_dense.default",
        "flash_attention": "torch.ops.aten._scaled_dot_product_flash_attention.default",
        "flash_attention_for_cpu": "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu",
        "flash_attention_for_cpu_backward": "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward",
        "efficient_attention": "torch.ops.aten._scaled_dot_product_efficient_attention.default",
        "efficient_attention_backward": "torch.ops.aten._scaled_dot_product_efficient_attention_backward.default",
        "enter_label": "torch.ops.profiler._record_function_enter_new.default",
        "leave_label": "torch.ops.profiler._record_function_exit._RecordFunction",
        "scaled_mm": "torch._scaled_mm",
        "lazy_clone": "torch._lazy_clone",
        **{f"foreach_{name}": f"torch._foreach_{name}" for name in _FOREACH},
        # autograd
        "graph_task_id": "torch._C._current_graph_task_id",
        "current_autograd_node": "torch._C._current_autograd_node",
        "run_backward": "torch.autograd._engine_run_backward",
        "run_backward_in_graph": "torch.autograd.graph._engine_run_backward",
        "queue_callback": "torch.autograd.Variable._execution_engine.queue_callback",
        "push_saved_tensors_hooks": "torch._C._autograd._push_saved_tensors_default_hooks",
        "call_module": "torch.nn.Module._call_impl",
        # profiler
        "ProfilerActivity": "torch._C._profiler.ProfilerActivity",
        "ProfiledDevice": "torch._C._autograd.DeviceType",
        "is_profiler_enabled": "torch.autograd.profiler._is_profiler_enabled",
        "prepare_profile": "torch.autograd.profiler.profile._prepare_trace",
        "start_profile": "torch.autograd.profiler.profile._start_trace",
        "mark": "torch._C._profiler._RecordFunctionFast",
        # tensors and devices
        "TensorBase": "torch._C.TensorBase",
        "num_storage_users": "torch._C._storage_Use_Count",
        "make_wrapper": "torch.Tensor._make_wrapper_subclass",
        "is_functorch_tensor": "torch._C._functorch.is_functorch_wrapped_tensor",
        "functorch_inner": "torch._C._functorch.get_unwrapped",
        "Generator": "torch._C.Generator",
        "parse_to": "torch._C._nn._parse_to",
        "PRINT_OPTIONS": "torch._tensor_str.PRINT_OPTS",
        "tensor_text": "torch._tensor_str._str",
        "DeviceContext": "torch.utils._device.DeviceContext",
        "device_constructors": "torch.utils._device._device_constructors",
        "foreach_devices": "torch.utils._foreach_utils._get_foreach_kernels_supported_devices",
        "foreach_optimizers": "torch.optim.optimizer._get_foreach_kernels_supported_devices",
        "fused_optimizers": "torch.optim.optimizer._get_fused_kernels_supported_devices",
        "read_num_steps": "torch.optim.optimizer._get_value",
        "group_tensors": "torch._C._group_tensors_by_device_and_dtype",
        "saved_devices": "torch.serialization._package_registry",
        "cuda_lazy_init": "torch.cuda._lazy_init",
        "cuda_is_initialized": "torch.cuda._initialized",
        "cuda_is_in_bad_fork": "torch.cuda._is_in_bad_fork",
        "nvml_index": "torch.cuda._get_nvml_device_index",
        "get_accelerator": "torch._C._get_accelerator",
        "DEVICE_CONTEXT": "torch._GLOBAL_DEVICE_CONTEXT",
        "register_script_builtin": "torch.jit._builtins._register_builtin",
        # trees of values
        "tree_flatten": "torch.utils._pytree.tree_flatten",
        "tree_unflatten": "torch.utils._pytree.tree_unflatten",
        "tree_leaves": "torch.utils._pytree.tree_leaves",
        "tree_map": "torch.utils._pytree.tree_map",
        "tree_map_only": "torch.utils._pytree.tree_map_only",
        # torch.distributed
        "register_process_group": f"{_IN_C10D}._register_process_group",
        "unregister_process_group": f"{_IN_C10D}._unregister_process_group",
        "set_thread_isolation_mode": f"{_IN_C10D}._set_thread_isolation_mode",
        "World": f"{_C10D}._World",
        "WorldMeta": f"{_C10D}._WorldMeta",
        "process_world": f"{_C10D}._world",
        "new_process_group": f"{_C10D}._new_process_group_helper",
        "process_group_name": f"{_C10D}._process_group_name",
        "default_group": f"{_C10D}._get_default_group",
        "default_timeout": f"{_C10D}._get_default_timeout",
        "set_group_timeout": f"{_C10D}._set_pg_timeout",
        "gloo_timeout": f"{_C10D}.default_pg_timeout",
        "nccl_timeout": f"{_C10D}.default_pg_nccl_timeout",
        "default_store": f"{_C10D}._get_default_store",
        "process_group_store": f"{_C10D}._get_process_group_store",
        "rank_not_in_group": f"{_C10D}._rank_not_in_group",
        "warn_not_in_group": f"{_C10D}._warn_not_in_group",
        "ensure_same_dtype": f"{_C10D}._ensure_all_tensors_same_dtype",
        "rendezvous_handlers": "torch.distributed.rendezvous:_rendezvous_handlers",
        "backend_plugins": "torch.distributed.Backend._plugins",
        "BackendPlugin": "torch.distributed.Backend._BackendPlugin",
        "verify_params": "torch.distributed._verify_params_across_processes",
        "start_coalescing": "torch.distributed.ProcessGroup._start_coalescing",
        "end_coalescing": "torch.distributed.ProcessGroup._end_coalescing",
        # settings of the process
        **{name: f"torch._C._{name}" for name in _SETTINGS},
        "optimizer_pre_hooks": "torch.optim.optimizer._global_optimizer_pre_hooks",
        "optimizer_post_hooks": "torch.optim.optimizer._global_optimizer_post_hooks",
    },
    "fsdp2": {
        "refuse_meta_params": "torch.distributed.fsdp._fully_shard._fsdp_param_group"
        ".FSDPParamGroup._validate_no_meta_params",
        "fsdp_device_handle": "torch.distributed.fsdp._fully_shard._fsdp_collectives._get_device_handle",
    },
    "dtensor": {
        "dtensor_fake_argument": "torch.distributed.tensor._op_schema._rebuild_tensor_from_dtensor_meta",
        "dtensor_rng_state": "torch.distributed.tensor._random.OffsetBasedRNGTracker._get_device_state",
        "dtensor_draws": "torch.distributed.tensor._random.OffsetBasedRNGTracker._distribute_region",
    },
    "compiler": {
        "dynamo_reset": "torch._dynamo.reset",
        "dynamo_explain": "torch._dynamo.explain",
        "clear_compilation_metrics": "torch._dynamo.utils.clear_compilation_metrics",
        "get_compilation_metrics": "torch._dynamo.utils.get_compilation_metrics",
        "functorch_config": "torch._functorch.config",
        "inductor_config": "torch._inductor.config",
        "run_and_get_code": "torch._inductor.utils.run_and_get_code",
        "CppCompileError": "torch._inductor.exc.CppCompileError",
        "InvalidCxxCompiler": "torch._inductor.exc.InvalidCxxCompiler",
        "get_cpp_compiler": "torch._inductor.cpp_builder.get_cpp_compiler",
    },
}

COMPILER, DYNAMO_FRAMES, DYNAMO_STANCE = "torch._dynamo", "torch._dynamo.eval_frame", "_callback_from_stance"

# Modules that a program may import, and the attributes that lablib then reads.
LOADED: Mapping[str, tuple[str, ...]] = {
    "torch.distributed.tensor._api": ("DTensor._op_dispatcher._custom_op_handlers",),
    "torch.distributed.tensor._random": ("_rng_tracker",),
    "torch.distributed.fsdp._debug_utils": ("SimpleProfiler.profiling",),
    "torch.distributed.tensor.experimental._context_parallel._attention": ("existing_custom_ops",),
    "torch.distributed._functional_collectives": ("AsyncCollectiveTensor",),
    DYNAMO_FRAMES: (DYNAMO_STANCE,),
}

# Attributes of torch's objects that functions below read, as paths from an example.
ATTRIBUTES = (
    "torch.ops.aten.add.Tensor._schema.arguments",
    "torch.ops.aten.add.Tensor._op_dk",
    "torch.UntypedStorage._cdata",
    "torch.Tensor._version",
    "torch.Tensor._base",
    "torch.Tensor._is_view",
    "torch.Tensor._indices",
    "torch.Tensor._values",
    "torch.distributed.Work._source_rank",
    "torch.library.Library._destroy",
    "torch.distributed.ProcessGroup._set_group_desc",
    "torch.utils.data.dataloader._MultiProcessingDataLoaderIter._shutdown_workers",
)


class TorchNamesError(ImportError):
    """This torch lacks names that lablib needs."""


def __getattr__(name: str) -> Any:
    group = next((group for group, names in NAMES.items() if name in names), None)
    if group is None:
        raise AttributeError(f"lablib.torch_compat has no {name}")
    found = checked_names(group)
    globals().update(found)  # later accesses are plain attributes
    return found[name]


def checked_names(group: str) -> dict[str, Any]:
    """The objects of a group, by name. Raises TorchNamesError: torch lacks some; it lists all of them."""
    found, missing = {}, []
    paths = {**NAMES[group], **({path: path for path in ATTRIBUTES} if group == "torch" else {})}
    for name, path in paths.items():
        try:
            found[name] = _at(path)
        except (AttributeError, ImportError):
            missing.append(path)
    if missing:
        raise TorchNamesError(_told(missing))
    return {name: value for name, value in found.items() if name in NAMES[group]}


def _told(missing: list[str]) -> str:
    import torch

    return (
        f"lablib needs names inside torch that torch {torch.__version__} does not have: {', '.join(missing)}; "
        "install torch 2.11 to 2.13 (`pip install torch==2.13.0`)."
    )


def _at(path: str) -> Any:
    """The object at a dotted path, importing modules on the way.

    "a.b:c" is c of the module a.b, if a also has a function b.
    """
    module, _, inside = path.rpartition(":")
    first, *parts = (inside if module else path).split(".")
    value = getattr(import_module(module), first) if module else import_module(first)
    for number, part in enumerate(parts, 1):
        try:
            value = getattr(value, part)
        except AttributeError:
            value = import_module(".".join((first, *parts[:number])))
    return value


def place(name: str) -> tuple[Any, str]:
    """The location of a name: the object that holds it, and torch's name there."""
    path = _path(name)
    _at(path)  # raises if missing
    holder = path[: -len(name_in_torch(name)) - 1]
    return (import_module(holder) if path[len(holder)] == ":" else _at(holder)), name_in_torch(name)


def name_in_torch(name: str) -> str:
    """Torch's name for it."""
    return re.split("[.:]", _path(name))[-1]


def _path(name: str) -> str:
    return next(names[name] for names in NAMES.values() if name in names)


def current(name: str) -> Any:
    """The present value at a name's location, which may have been replaced."""
    holder, attribute = place(name)
    return getattr(holder, attribute)


def loaded(module: str) -> Any:
    """A module of `LOADED`; None until the program imports it.

    Raises:
        TorchNamesError: it lacks an attribute that lablib reads.
    """
    found = sys.modules.get(module)
    if found is None or getattr(getattr(found, "__spec__", None), "_initializing", False):
        return None  # missing, or its import is in progress
    for path in LOADED[module]:
        value: Any = found
        for part in path.split("."):
            if not hasattr(value, part):
                raise TorchNamesError(_told([f"{module}.{path}"]))
            value = getattr(value, part)
    return found


# ---- attributes of torch's objects ----


# An operator's schema: name, arguments, results, and which of them it writes to.
schema = attrgetter("_schema")
# The kernels of a higher-order operator (flex_attention, cond), by dispatch key.
kernels_of = attrgetter("py_kernels")
# Unique number of a storage while it lives, even without memory.
storage_id = attrgetter("_cdata")
# Number of writes to a tensor.
version = attrgetter("_version")


def untouched_version(tensor: Any) -> int | None:
    """`version` without running code of the tensor's class; None in inference mode, where writes are not counted."""
    tensors = _at("torch.Tensor")
    with current("DisableTorchFunction")():
        return None if tensors.is_inference(tensor) else tensors._version.__get__(tensor)


# The base of a view; None if it is not a view.
base_of = attrgetter("_base")


def is_view(tensor: Any) -> bool:
    return tensor._is_view()


def sparse_parts(tensor: Any) -> tuple[Any, Any]:
    """Raw indices and values of a sparse tensor (COO)."""
    return tensor._indices(), tensor._values()


def run_kernel_of(op: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator's kernel for a dispatch key."""
    return op._op_dk(key, *args, **kwargs)


def source_rank(work: Any) -> int:
    """The sender matched by a `recv` from any source."""
    return work._source_rank()


def add_kernel(library: Any, name: str, key: str, kernel: Any) -> None:
    """Add a kernel to a `torch.library.Library`, whose `impl` refuses operators on "Meta" that torch can decompose."""
    library.m.impl(name, key, kernel, False)


def destroy_library(library: Any) -> None:
    """Remove the kernels of a `torch.library.Library`."""
    library._destroy()


def op_dispatcher(api: Any) -> Any:
    """DTensor's operator dispatcher; `api` is its module."""
    return api.DTensor._op_dispatcher


# The custom operator handlers of DTensor's dispatcher.
op_handlers = attrgetter("_custom_op_handlers")


def set_op_handlers(dispatcher: Any, handlers: Any) -> None:
    dispatcher._custom_op_handlers = handlers


# The tracker that keeps DTensor's random numbers equal over ranks, in DTensor's module.
rng_tracker = attrgetter("_rng_tracker")


def set_rng_tracker(module: Any, tracker: Any) -> None:
    module._rng_tracker = tracker


def set_group_desc(group: Any, desc: str) -> None:
    """Set a process group's description in torch's base class."""
    ProcessGroup = import_module("torch.distributed").ProcessGroup
    ProcessGroup._set_group_desc(group, desc)


def loader_workers(batches: Any) -> list[Any]:
    """The worker processes of a DataLoader's iterator; empty for one without workers, or another object."""
    return getattr(batches, "_workers", [])


def shut_down_workers(batches: Any) -> None:
    """End the worker processes of a DataLoader's iterator, and close its queues."""
    batches._shutdown_workers()


def keep_join_work(joinable: Any, work: Any) -> None:
    """Store the communication that `Join` waits for."""
    joinable._join_work = work


# ---- frames and files of torch's own code ----


def is_call_of(frame: FrameType, name: str) -> bool:
    """Whether this frame is a call of the function with this name."""
    return frame.f_code is _code(name)


def _code(name: str) -> CodeType:
    value = globals().get(name) or __getattr__(name)
    return value.__code__


def torch_file(*parts: str) -> str:
    """The path of a file of torch, such as ("utils", "_device.py"). Raises TorchNamesError: there is none."""
    import torch

    path = os.path.join(os.path.dirname(torch.__file__), *parts)
    if not os.path.exists(path):
        raise TorchNamesError(_told(["/".join(("torch", *parts))]))
    return path
