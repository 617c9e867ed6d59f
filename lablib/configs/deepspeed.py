"""Settings of a plan from a DeepSpeed configuration, as keyword arguments of `lablib.plan.search`.

    DeepSpeed                                          plan
    train_batch_size                                   batch, in sequences
    train_micro_batch_size_per_gpu                     micro_batch
    both, and gradient_accumulation_steps              data = batch / (micro_batch * steps)
    zero_optimization.stage                            zero_stage
    .offload_optimizer.device, .cpu_offload            offload=("optimizer",)
    .offload_param.device                              offload=("parameters",), with stage 3
    .zero_quantized_weights, _gradients,               zero_plus_plus: "qwZ", "qgZ",
     .zero_hpz_partition_size                          "hpZ" (Wang et al., 2023, arXiv 2306.10209)
    bf16.enabled, fp16.enabled                         precision; float32 if neither is
    optimizer.type                                     optimizer
    activation_checkpointing.cpu_checkpointing         offload=("activations",)

Sizes of buckets, clipping, schedules of the rate, loss scaling and logs change neither time nor memory by a part that
the planner has. Values "auto" are left to the planner. DeepSpeed checkpoints the layers that the model's code names, so
the configuration says nothing of recomputation.

Source: DeepSpeed's documentation, "DeepSpeed Configuration JSON" (deepspeed.ai/docs/config-json), and
deepspeed/runtime/config.py (github.com/deepspeedai/DeepSpeed).
"""

from pathlib import Path
from typing import Any

from lablib.configs.reading import Fields, Omission, Reading, read_json
from lablib.errors import unknown_name
from lablib.signature import checked

_WITHOUT_COST = frozenset(
    "scheduler gradient_clipping prescale_gradients gradient_predivide_factor steps_per_print wall_clock_breakdown "
    "dump_state zero_allow_untested_optimizer tensorboard wandb csv_monitor monitor_config comms_logger flops_profiler "
    "checkpoint data_types elasticity autotuning disable_allgather sparse_gradients zero_force_ds_cpu_optimizer "
    "memory_breakdown seed".split()
)
ZERO_WITHOUT_COST = frozenset(
    "contiguous_gradients reduce_scatter reduce_bucket_size allgather_partitions allgather_bucket_size "
    "round_robin_gradients load_from_fp32_weights elastic_checkpoint sub_group_size legacy_stage1 "
    "stage3_prefetch_bucket_size stage3_param_persistence_threshold stage3_max_live_parameters "
    "stage3_max_reuse_distance stage3_model_persistence_threshold ignore_unused_parameters "
    "stage3_gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save "
    "stage3_use_all_reduce_for_fetch_params stage3_module_granularity_threshold memory_efficient_linear "
    "use_multi_rank_bucket_allreduce cpu_offload_use_pin_memory".split()
)
CHECKPOINTING_WITHOUT_COST = frozenset(
    {"contiguous_memory_optimization", "number_checkpoints", "synchronize_checkpoint_boundary", "profile"}
)
_OPTIMIZERS = {name: name for name in ("adam", "adamw", "lamb", "lion", "sgd", "muon")}
_OPTIMIZERS |= {"fusedadam": "adamw", "deepspeedcpuadam": "adamw", "fusedlamb": "lamb", "fusedlion": "lion"}


@checked
def read_deepspeed(path: str | Path) -> Reading[dict[str, Any]]:
    """The settings in a DeepSpeed configuration file.

    ValueError: a missing file, an impossible value, or a choice that the planner cannot price.
    """
    return parse_deepspeed(read_json(path), str(path))


@checked
def parse_deepspeed(values: dict[str, Any], where: str = "ds_config.json") -> Reading[dict[str, Any]]:
    """The same, from the object in the file."""
    fields, omissions, settings = Fields(without_auto(values), where), list[Omission](), dict[str, Any]()
    settings |= _batches(fields)
    settings["precision"] = precision_of(fields)
    if (kind := fields.inner("optimizer").get("type")) is not None:
        if str(kind).lower() not in _OPTIMIZERS:
            raise unknown_name("optimizer.type", kind, ["Adam", "AdamW", "Lamb", "Lion", "SGD", "Muon"])
        settings["optimizer"] = _OPTIMIZERS[str(kind).lower()]
    zero = fields.inner("zero_optimization")
    settings |= _zero(zero, omissions)
    offload = ["optimizer"] * _offloads_optimizer(zero) + ["parameters"] * _offloads_parameters(zero)
    checkpointing = fields.inner("activation_checkpointing")
    if checkpointing.flag("cpu_checkpointing", False):
        offload.append("activations")
    if checkpointing.flag("partition_activations", False):
        omissions.append(Omission("partition_activations: each tensor rank is priced with whole checkpoints"))
    checkpointing.skip(CHECKPOINTING_WITHOUT_COST)
    settings["offload"] = tuple(offload)
    if fields.inner("pipeline").get("stages") not in (None, "auto"):
        omissions.append(Omission("pipeline.stages: give --pipeline"))
    if (dtype := fields.get("communication_data_type")) is not None:
        omissions.append(Omission(f"communication_data_type {dtype!r}: gradients travel in the training precision"))
    fields.skip(_WITHOUT_COST)
    zero.skip(ZERO_WITHOUT_COST)
    inner = {"zero_optimization": zero, "activation_checkpointing": checkpointing}
    unknown = [f"{name}.{field}" for name, each in inner.items() for field in each.unread()]
    return Reading(settings, tuple(omissions), (*fields.unread(), *unknown))


def without_auto(values: Any) -> Any:
    """The same fields without those that are "auto" (Hugging Face's Trainer fills them in)."""
    if not isinstance(values, dict):
        return values
    return {name: without_auto(value) for name, value in values.items() if value != "auto"}


def _batches(fields: Fields) -> dict[str, Any]:
    batch, micro, steps = (
        fields.count(name, 0, minimum=0)
        for name in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    )
    settings: dict[str, Any] = {"batch": batch, "micro_batch": [micro]}
    if batch and micro and steps:
        if batch % (micro * steps):
            rule = "train_batch_size must be a multiple of train_micro_batch_size_per_gpu * gradient_accumulation_steps"
            raise ValueError(f"{rule}: got {batch} and {micro} * {steps}")
        settings["data"] = [batch // (micro * steps)]
    return {name: value for name, value in settings.items() if value not in (0, [0])}


def precision_of(fields: Fields) -> str:
    """The dtype of bf16 or fp16, or float32. Raises ValueError if both are enabled."""
    halves = {"bfloat16": ("bf16", "bfloat16"), "float16": ("fp16",)}
    enabled = [
        dtype for dtype, names in halves.items() if any([fields.inner(name).flag("enabled", False) for name in names])
    ]
    if len(enabled) > 1:
        raise ValueError("bf16 and fp16 cannot both be enabled: enable one of them")
    return enabled[0] if enabled else "float32"


def _zero(zero: Fields, omissions: list[Omission]) -> dict[str, Any]:
    stage = zero.count("stage", 0, minimum=0)
    if not zero.flag("overlap_comm", stage == 3):
        omissions.append(Omission("overlap_comm false: communication is priced as the training software overlaps it"))
    parts = {
        "qwZ": zero.flag("zero_quantized_weights", False),
        "hpZ": zero.count("zero_hpz_partition_size", 1) > 1,
        "qgZ": zero.flag("zero_quantized_gradients", False),
    }
    settings: dict[str, Any] = {"zero_stage": [stage]}
    if any(parts.values()):
        settings["zero_plus_plus"] = tuple(name for name, is_on in parts.items() if is_on)
    return settings


def _offloads_parameters(zero: Fields) -> bool:
    device, stage = zero.inner("offload_param").text("device", "none"), zero.count("stage", 0, minimum=0)
    if device not in ("none", "cpu"):
        raise ValueError(f"offload_param.device must be cpu or none: got {device!r}, which is not priced")
    if device == "cpu" and stage < 3:
        raise ValueError(f"offload_param needs stage 3, which splits the parameters: got stage {stage}; remove it")
    return device == "cpu"


def _offloads_optimizer(zero: Fields) -> bool:
    """Whether the optimizer state is on the host, by today's field or the old flag. Raises ValueError for NVMe."""
    device = zero.inner("offload_optimizer").text("device", "none")
    if device not in ("none", "cpu"):
        raise ValueError(f"offload_optimizer.device must be cpu or none: got {device!r}, which is not priced")
    return device == "cpu" or zero.flag("cpu_offload", False)
