"""Model and plan from a TOML file of torchtitan, or from the tables of its Python files (torchtitan_python.py).

    torchtitan                                             here
    model.name, model.flavor                               a `Transformer` (torchtitan_models.py)
    model.converters                                       precision "float8": quantize.linear.float8, .mx
    training.local_batch_size, global_batch_size, seq_len  micro_batch or micro-batches of a pipeline, batch, seq_len
    training.mixed_precision_param, training.dtype         precision
    training.enable_cpu_offload                            offload=("parameters",)
    parallelism.data_parallel_replicate_degree, _shard_    data = both, replicas = the first; zero_stage 3 with shards
    .fsdp_reshard_after_forward                            reshard_after_forward; "default": not in a pipeline
    .tensor_, context_, pipeline_, expert_parallel_degree  tensor, context, pipeline, expert
    .expert_tensor_parallel_degree                         expert_tensor, if experts are split
    .pipeline_parallel_schedule, _layers_per_stage         schedule, chunks
    activation_checkpoint.mode, .selective_ac_option       recompute: "none", "selective", "full"; every n-th layer is
                                                           "first k" of a stage's layers
    compile.enable, .components                            stack: "torch-compile"; "torch-compile-2024" without the
                                                           loss, "fsdp-flash" without the model

A shard degree of -1 takes the remaining GPUs, so it needs their number; so does a global batch of -1, one local batch
per data rank. Under tensor or pipeline parallelism without shards, torchtitan trains in `training.dtype`.

Source: torchtitan/config/job_config.py (github.com/pytorch/torchtitan at 238fa995, 2026-02-23, the last commit with
TOML files): names and defaults. Older names since c1c2f55d (2025-04-18) are read as well.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from lablib.configs.reading import Fields, Omission, Reading, read_toml
from lablib.configs.torchtitan_models import model_of
from lablib.configs.torchtitan_python import read_python
from lablib.errors import unknown_name
from lablib.models.transformer import Transformer
from lablib.signature import checked

SCHEDULES = {
    "1F1B": "1f1b",
    "GPipe": "gpipe",
    "Interleaved1F1B": "interleaved",
    "LoopedBFS": "breadth-first",
    "ZBVZeroBubble": "zb-v",
    "DualPipeV": "dualpipe-v",
}
OPTIMIZERS = {"AdamW": "adamw", "Adam": "adam"}
# Sections and fields that change neither time nor memory by a part that the planner has.
_WITHOUT_COST = frozenset(
    "job profiling metrics lr_scheduler checkpoint comm memory_estimation experimental validation debug".split()
)
_FIELDS_WITHOUT_COST = {
    "model": frozenset({"hf_assets_path", "tokenizer_path", "print_after_conversion", "norm_type"}),
    "training": frozenset(
        "dataset dataset_path max_norm steps mixed_precision_reduce gc_freq gc_debug dataloader seed deterministic "
        "disable_cuda_graphs".split()
    ),
    "parallelism": frozenset(
        "pipeline_parallel_expert_parallel_overlap context_parallel_load_balancer enable_compiled_autograd "
        "spmd_backend enable_fsdp_symm_mem context_parallel_ptrr_mask_key".split()
    ),
    "activation_checkpoint": frozenset(
        "per_op_sac_force_recompute_mm_shapes_by_fqns early_stop preserve_rng_state determinism_check debug "
        "memory_budget visualize_memory_budget_pareto".split()
    ),
    "compile": frozenset({"backend"}),
    "optimizer": frozenset({"lr", "beta1", "beta2", "eps", "weight_decay"}),
    "fault_tolerance": frozenset(
        "process_group process_group_timeout_ms replica_id group_size min_replica_size semi_sync_method sync_steps "
        "should_quantize fragment_sync_delay fragment_update_alpha".split()
    ),
}
_NARROW_WITHOUT_COST = frozenset(
    "enable_fsdp_float8_all_gather precompute_float8_dynamic_scale_for_fsdp recipe_name emulate "
    "force_recompute_fp8_weight_in_bwd moe_fqns_prototype mxfp8_dim1_cast_kernel_choice".split()
)
_NARROW = ("quantize.linear.float8", "quantize.linear.mx", "float8", "mx")
_NARROW_EXPERTS = ("quantize.grouped_mm.float8", "quantize.grouped_mm.mx")


@checked
def read_torchtitan(path: str | Path, gpus: int | None = None) -> Reading[dict[str, Any]]:
    """Keyword arguments of `lablib.plan.search`, with the model, from a TOML file, or from FILE.py:FUNCTION.

    Arguments:
        gpus: number of GPUs, for degrees of -1; None: unknown, and the plan has no `data` and perhaps no `batch`.

    ValueError: a missing file, an impossible value, or a choice that the planner cannot price.
    """
    if ".py" in Path(path).suffix:
        tables, unread = read_python(path)
        reading = parse_torchtitan(tables, gpus, str(path))
        return replace(reading, omissions=(*reading.omissions, *unread))
    return parse_torchtitan(read_toml(path), gpus, str(path))


@checked
def parse_torchtitan(
    values: dict[str, Any], gpus: int | None = None, where: str = "config.toml"
) -> Reading[dict[str, Any]]:
    """The same, from the tables in the file."""
    fields, omissions = Fields(values, where), list[Omission]()
    inner = {name: fields.inner(name) for name in _FIELDS_WITHOUT_COST}
    model = model_of(inner["model"].text("name", "llama3"), inner["model"].text("flavor", "debugmodel"), omissions)
    training, parallelism = inner["training"], inner["parallelism"]
    split = _split(parallelism, gpus, model, omissions)
    settings: dict[str, Any] = {"model": model, "seq_len": training.count("seq_len", 2048)} | split
    settings |= _pipeline(parallelism, model, split["pipeline"][0])
    settings |= _batches(training, parallelism, split, settings.pop("is_pipeline"), omissions)
    settings["stack"] = _stack(inner["compile"], training)
    settings["precision"] = _precision(inner["model"], training, split, model, omissions)
    layers = model.num_layers // split["pipeline"][0]
    settings["recompute"] = [_recompute(inner["activation_checkpoint"], layers, settings["stack"], omissions)]
    settings["optimizer"] = _optimizer(inner["optimizer"], omissions)
    if training.flag("enable_cpu_offload", False):
        settings["offload"] = ("parameters",)
    if inner["fault_tolerance"].flag("enable", False):
        omissions.append(Omission("fault_tolerance: the exchange between replica groups"))
    unknown = _quantization(fields, settings["precision"], omissions)
    fields.skip(_WITHOUT_COST)
    for name, each in inner.items():
        each.skip(_FIELDS_WITHOUT_COST[name])
    unknown += [f"{name}.{field}" for name, each in inner.items() for field in each.unread()]
    return Reading(settings, tuple(omissions), (*fields.unread(), *unknown))


def _split(parallelism: Fields, gpus: int | None, model: Transformer, omissions: list[Omission]) -> dict[str, Any]:
    replicas = parallelism.count("data_parallel_replicate_degree", 1)
    tensor, pipeline, context, expert, expert_tensor = (
        parallelism.count(f"{axis}_parallel_degree", 1)
        for axis in ("tensor", "pipeline", "context", "expert", "expert_tensor")
    )
    shards = _shards(parallelism, gpus, replicas * tensor * pipeline * context)
    policy = parallelism.one_of("fsdp_reshard_after_forward", ("default", "always", "never"))
    split: dict[str, Any] = {"tensor": [tensor], "pipeline": [pipeline], "context": [context], "zero_stage": [0]}
    if shards > 0:
        split["data"] = [replicas * shards]
    if shards != 1 or context > 1:
        split["zero_stage"] = [3]
        split |= {"replicas": replicas} if replicas > 1 else {}
        if policy == "never" or policy == "default" and pipeline > 1:
            split["reshard_after_forward"] = False
    elif replicas > 1 < tensor * pipeline:
        raise ValueError(
            f"torchtitan replicates without shards on one axis only: got data_parallel_replicate_degree {replicas}, "
            f"tensor_parallel_degree {tensor} and pipeline_parallel_degree {pipeline}; shard the data"
        )
    if model.experts:
        split["expert"], split["expert_tensor"] = [expert], [expert_tensor if expert > 1 else tensor]
    _name_unpriced(parallelism, tensor, context, expert if model.experts else 1, omissions)
    return split


def _shards(parallelism: Fields, gpus: int | None, others: int) -> int:
    """Data ranks that share the states; -1 if they are the rest of an unknown number of GPUs."""
    shards = parallelism.count("data_parallel_shard_degree", -1, minimum=-1)
    if shards == 0:
        raise ValueError("parallelism.data_parallel_shard_degree must be -1, or at least 1: got 0; try -1")
    if shards > 0 or gpus is None:
        return shards
    if gpus % others:
        raise ValueError(
            "the number of GPUs must be a multiple of data_parallel_replicate_degree * tensor_, pipeline_ and "
            f"context_parallel_degree: got {gpus} and {others}"
        )
    return gpus // others


def _name_unpriced(parallelism: Fields, tensor: int, context: int, expert: int, omissions: list[Omission]) -> None:
    """Name the choices of an axis that the planner does not have, if the axis has several ranks."""
    choices = {
        "disable_loss_parallel": (tensor, False, "the logits are priced as split over tensor ranks"),
        "enable_async_tensor_parallel": (tensor, False, "exchanges of tensor ranks are priced as exposed"),
        "context_parallel_rotate_method": (context, "", "keys and values are priced as sent round a ring"),
        "expert_parallel_comm_backend": (expert, "standard", "tokens are priced with plain all-to-alls"),
    }
    for name, (ranks, usual, text) in choices.items():
        if parallelism.get(name, "allgather" if usual == "" else usual) != usual and ranks > 1:
            omissions.append(Omission(f"{name}: {text}"))


def _pipeline(parallelism: Fields, model: Transformer, pipeline: int) -> dict[str, Any]:
    """Schedule, chunks, and whether there is a pipeline."""
    given = parallelism.text("pipeline_parallel_schedule", "1F1B")
    name = next((known for known in SCHEDULES if known.lower() == given.lower()), None)
    per_stage = parallelism.optional_count("pipeline_parallel_layers_per_stage")
    ends = sum(parallelism.count(f"pipeline_parallel_{end}_stage_less_layers", 1, 0) for end in ("first", "last"))
    parts = parallelism.get("module_fqns_per_model_part")
    points = parallelism.get("pipeline_parallel_split_points")  # the first modules of the pieces after the first
    csv = parallelism.text("pipeline_parallel_schedule_csv")
    if pipeline == 1:
        return {"is_pipeline": False}
    if not isinstance(parts or points or [], (str, list)):
        raise ValueError(f"the pieces of the pipeline must be a list of modules: got {parts or points!r}")
    if csv or name is None:
        raise unknown_name("parallelism.pipeline_parallel_schedule", csv or given, list(SCHEDULES))
    pieces = pipeline * (1 if name in ("1F1B", "GPipe") else 2)
    if parts or points:
        listed = parts or points
        pieces = len(listed.split(",") if isinstance(listed, str) else listed) + (not parts)
    elif per_stage:
        pieces = -(-(model.num_layers + ends) // per_stage)
    if pieces % pipeline:
        rule = "the pieces of the pipeline must be a multiple of pipeline_parallel_degree"
        raise ValueError(f"{rule}: got {pieces} and {pipeline}")
    return {"schedule": [SCHEDULES[name]], "chunks": [pieces // pipeline], "is_pipeline": True}


def _batches(
    training: Fields, parallelism: Fields, split: dict[str, Any], is_pipeline: bool, omissions: list[Omission]
) -> dict[str, Any]:
    local = training.count("batch_size" if "batch_size" in training else "local_batch_size", 8)
    batch = training.count("global_batch_size", -1, minimum=-1)
    micro = parallelism.count("pipeline_parallel_microbatch_size", 1)
    if is_pipeline and local % micro:
        rule = "training.local_batch_size must be a multiple of parallelism.pipeline_parallel_microbatch_size"
        raise ValueError(f"{rule}: got {local} and {micro}")
    settings: dict[str, Any] = {"micro_batch": [micro if is_pipeline else local]}
    if batch > 0:
        settings["batch"] = batch
    elif "data" in split:
        settings["batch"] = local * split["data"][0]
    if "data" in split and settings["batch"] % (local * split["data"][0]):
        rule = "training.global_batch_size must be a multiple of training.local_batch_size * data ranks"
        raise ValueError(f"{rule}: got {batch} and {local} * {split['data'][0]}")
    if is_pipeline and "data" in split and settings["batch"] > local * split["data"][0]:
        omissions.append(Omission("gradient accumulation: priced as one pass of the pipeline with all micro-batches"))
    return settings


def _stack(compile_: Fields, training: Fields) -> str:
    is_on = compile_.flag("enable", training.flag("compile", False))
    components = _words(compile_, "components") if "components" in compile_ else ["model", "loss"]
    if not is_on or "model" not in components:
        return "fsdp-flash"
    return "torch-compile" if "loss" in components else "torch-compile-2024"


def _precision(
    model: Fields, training: Fields, split: dict[str, Any], sizes: Transformer, omissions: list[Omission]
) -> str:
    mixed = training.one_of("mixed_precision_param", ("bfloat16", "float32"))
    dtype = training.one_of("dtype", ("float32", "bfloat16"))
    if dtype == "bfloat16":
        omissions.append(Omission("training.dtype bfloat16: 32-bit copies of the parameters are priced"))
    converters = _words(model, "converters")
    for name in converters:
        if name not in (*_NARROW, *_NARROW_EXPERTS):
            raise unknown_name("model.converters", name, [*_NARROW, *_NARROW_EXPERTS])
    linear, experts = (any(name in kind for name in converters) for kind in (_NARROW, _NARROW_EXPERTS))
    if linear or experts and sizes.experts:
        if sizes.experts and linear != experts:
            omissions.append(Omission(f"model.converters {converters}: all products are priced in 8 bits"))
        return "float8"
    is_mixed = split["zero_stage"] == [3] or split["tensor"] == split["pipeline"] == [1]
    return mixed if is_mixed else dtype


def _recompute(checkpoint: Fields, layers: int, stack: str, omissions: list[Omission]) -> str:
    mode = checkpoint.one_of("mode", ("selective", "full", "none", "memory_budget"))
    option = checkpoint.get("selective_ac_option", "2")
    if mode == "memory_budget":
        raise ValueError("activation_checkpoint.mode memory_budget is not priced: give selective, full or none")
    if mode != "selective":
        return mode
    if option == "op":
        if stack == "fsdp-flash":
            omissions.append(Omission("selective_ac_option op without compile: only attention's core is repeated"))
        return "selective"
    if not str(option).isdecimal():
        raise ValueError(f'activation_checkpoint.selective_ac_option must be "op" or a number: got {option!r}')
    every = int(option)
    if every < 2:
        return "full"
    return f"first {layers // every}" if layers >= every else "none"


def _optimizer(optimizer: Fields, omissions: list[Omission]) -> str:
    name = optimizer.one_of("name", tuple(OPTIMIZERS))
    kind = optimizer.one_of("implementation", ("fused", "foreach", "for-loop"))
    if not optimizer.flag("fused", kind == "fused"):
        omissions.append(Omission("optimizer.implementation: the update is priced as fused"))
    if optimizer.flag("early_step_in_backward", False):
        omissions.append(Omission("optimizer.early_step_in_backward: the update is priced after backward"))
    return OPTIMIZERS[name]


def _quantization(fields: Fields, precision: str, omissions: list[Omission]) -> list[str]:
    """Sections of the converters, and their unknown fields; the head is in 16 bits here, and in torchtitan's files."""
    quantize = fields.inner("quantize")
    linear = quantize.inner("linear")
    quantize.get("grouped_mm")
    sections = {f"quantize.linear.{name}": linear.inner(name) for name in ("float8", "mx")}
    sections |= {name: fields.inner(name) for name in ("float8", "mx")}
    for each in sections.values():
        skipped = set(_words(each, "filter_fqns")) - {"output", "router.gate"}
        if precision == "float8" and skipped:
            omissions.append(Omission(f"filter_fqns {', '.join(sorted(skipped))}: priced in 8 bits"))
        each.skip(_NARROW_WITHOUT_COST)
    sections |= {"quantize": quantize, "quantize.linear": linear}
    return [f"{name}.{field}" for name, each in sections.items() for field in each.unread()]


def _words(fields: Fields, name: str) -> list[str]:
    """A list of texts, or one text with commas."""
    given = fields.get(name, [])
    return list(filter(None, given.replace(" ", "").split(","))) if isinstance(given, str) else fields.items(name, str)
