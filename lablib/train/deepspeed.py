"""A DeepSpeed configuration as a training configuration, with DeepSpeed's meaning and defaults.

    found = read_deepspeed_training("ds_config.json", tables, ranks=8)      # tables: of `read_tables`, or {}
    config = parse_config(found.record)                                     # found.sentences(...): the rest, named

    DeepSpeed                                    here
    train_batch_size                             data.batch_size, sequences of a step over all ranks
    train_micro_batch_size_per_gpu               data.micro_batch; two of the three give the third, one is enough
    gradient_accumulation_steps                  batch_size / (micro_batch x data ranks)
    gradient_clipping                            optimizer.max_norm; 0 is no clipping
    optimizer.type Adam, AdamW, ...              optimizer.name. Adam is AdamW unless adam_w_mode is false
    optimizer.params lr, betas, eps,             optimizer.*; missing ones have DeepSpeed's defaults: lr 1e-3 and no
        weight_decay, momentum                   decay
    scheduler.type WarmupLR, WarmupDecayLR       optimizer.schedule deepspeed-log or deepspeed-linear
    .params warmup_max_lr, warmup_min_lr         optimizer.lr, optimizer.first as a share of it
    .params warmup_num_steps, total_num_steps    optimizer.num_warmup (1000), optimizer.schedule_steps
    bf16.enabled, fp16.enabled                   precision.products; precision.master: parameters and gradients in 16
                                                 bits, sharded master copies in 32
    fp16.loss_scale                              precision.loss_scale; 0 is dynamic
    fp16.initial_scale_power (16)                precision.initial_scale = 2^power
    fp16.loss_scale_window (1000)                precision.scale_interval
    fp16.hysteresis (2), min_loss_scale (1)      precision.hysteresis, precision.min_scale; no largest scale
    zero_optimization.stage                      parallel.zero_stage; true is stage 1
    .reduce_bucket_size (5e8 numbers)            parallel.bucket_bytes = size x bytes of a gradient
    .overlap_comm, contiguous_gradients,         always so here; false is named, and changes no value
        reduce_scatter
    .offload_optimizer, offload_param, and the   named, for cpu and nvme: state and parameters stay on the device; no
        old cpu_offload, cpu_offload_param       value changes
    tensor_parallel.autotp_size                  parallel.tensor
    wall_clock_breakdown, steps_per_print        monitor.breakdown, monitor.every

"auto" is the value of the other sources (`tables`), as Hugging Face's Trainer fills it in. Fields that change values
and are not here are refused. Those that do not are named, and so are unknown ones. A step with overflow does not
advance the schedule, as in the trainer.

Source: DeepSpeed 0.18, deepspeed/runtime/config.py (batch sizes), constants.py, precision_config.py, zero/config.py,
lr_schedules.py and engine.py (optimizers); deepspeed.ai/docs/config-json.
Simplified: with 16 bits, stage 0 is trained as stage 1: the same values, with sharded state. Training goes on at the
smallest loss scale, where DeepSpeed ends the run.
"""

from collections.abc import Iterator, Mapping
from math import inf
from pathlib import Path
from typing import Any

from lablib.configs.deepspeed import CHECKPOINTING_WITHOUT_COST, ZERO_WITHOUT_COST, precision_of, without_auto
from lablib.configs.reading import Fields, Omission, Reading, read_json
from lablib.errors import unknown_name
from lablib.signature import Count, checked, shown
from lablib.train.config import TrainConfig
from lablib.train.read_config import parse_config

ADAM = ("adam", "adamw", "fusedadam", "deepspeedcpuadam")
OTHER_OPTIMIZERS = {"sgd": {"momentum": 0.0}, "lion": {"betas": (0.9, 0.99)}}
SCHEDULERS = ("WarmupLR", "WarmupDecayLR")
BATCHES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
WITHOUT_EFFECT: Mapping[str, frozenset[str]] = {
    "": frozenset({"dump_state", "memory_breakdown", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer"}),
    "zero_optimization": ZERO_WITHOUT_COST,
    "activation_checkpointing": CHECKPOINTING_WITHOUT_COST,
    "fp16": frozenset({"enabled", "auto_cast", "fused_mode"}),
    "bf16": frozenset({"enabled", "immediate_grad_update"}),
    "bfloat16": frozenset({"enabled", "immediate_grad_update"}),
}  # by section; "" is the top
# Field that may be "auto" -> the field here that then keeps its value.
AUTO: Mapping[str, str] = {
    "gradient_clipping": "optimizer.max_norm",
    "steps_per_print": "monitor.every",
    "optimizer.params.lr": "optimizer.lr",
    "optimizer.params.betas": "optimizer.betas",
    "optimizer.params.eps": "optimizer.eps",
    "optimizer.params.weight_decay": "optimizer.weight_decay",
    "scheduler.params.warmup_min_lr": "optimizer.first",
    "scheduler.params.warmup_num_steps": "optimizer.num_warmup",
    "zero_optimization.stage": "parallel.zero_stage",
    "zero_optimization.reduce_bucket_size": "parallel.bucket_bytes",
}
# Field -> value that changes nothing; another one is named, or refused if it changes values.
NAMED: Mapping[str, Mapping[str, Any]] = {
    "": {"prescale_gradients": False, "gradient_predivide_factor": 1.0, "communication_data_type": None},
    "zero_optimization": {"contiguous_gradients": True, "reduce_scatter": True},
    "activation_checkpointing": {"cpu_checkpointing": False, "partition_activations": False},
    "bf16": {"check_grad_overflow": False},
}
REFUSED: Mapping[str, Mapping[str, Any]] = {
    "": {"sparse_gradients": False, "disable_allgather": False},
    "fp16": {"consecutive_hysteresis": False, "fp16_master_weights_and_grads": False},
    "bf16": {"bf16_master_weights_and_grads": False, "bf16_optimizer_states": False},
    "zero_optimization": {
        "zero_quantized_weights": False, "zero_quantized_gradients": False, "zero_hpz_partition_size": 1,
        "zero_quantized_nontrainable_weights": False,
    },
}  # fmt: skip
# Sections of further tools: named if enabled. Methods change values, and are refused.
TOOLS = ("tensorboard", "wandb", "csv_monitor", "comet", "flops_profiler", "comms_logger", "elasticity", "autotuning")
METHODS = ("amp", "curriculum_learning", "progressive_layer_drop", "eigenvalue", "torch_autocast")


@checked
def read_deepspeed_training(
    path: str | Path, tables: Mapping[str, Any] | None = None, ranks: Count = 1
) -> Reading[dict[str, Any]]:
    """As `deepspeed_tables`, of a file. ValueError also for a file that is missing, or not JSON."""
    return deepspeed_tables(read_json(path), tables or {}, ranks, str(path))


@checked
def deepspeed_tables(
    values: Mapping[str, Any], tables: Mapping[str, Any], ranks: Count = 1, where: str = "ds_config.json"
) -> Reading[dict[str, Any]]:
    """`tables` with the fields of a DeepSpeed configuration put in, and names of all that was left out.

    Arguments:
        tables: other sources, as `read_tables` gives them; DeepSpeed's fields replace theirs.
        ranks: of the run; the batch size depends on it.

    ValueError: batch sizes that do not agree, an impossible value, or a choice that would train differently here.
    """
    fields, base, auto = Fields(without_auto(values), where), parse_config(tables), frozenset(_auto(values))
    omissions, found = list[Omission](), dict[str, Any]()
    inner = {name: fields.inner(name) for name in ("fp16", "bf16", "bfloat16", "activation_checkpointing")}
    inner["tensor_parallel"] = tensor = fields.inner("tensor_parallel")
    stages = fields.get("zero_optimization", {})
    stages = {"stage": int(stages)} if isinstance(stages, bool) else stages
    inner["zero_optimization"] = zero = Fields(stages, f"zero_optimization of {where}")
    found |= _optimizer(fields, inner) | {"optimizer.max_norm": _number(fields, "gradient_clipping", 0.0) or inf}
    found |= _precision(fields, inner["fp16"], auto, base)
    found |= _zero(zero, found, omissions)
    found["parallel.tensor"] = tensor.count("autotp_size", base.parallel.tensor)
    found["monitor.breakdown"] = fields.flag("wall_clock_breakdown", base.monitor.breakdown)
    found["monitor.every"] = fields.count("steps_per_print", base.monitor.every)
    for name in auto & AUTO.keys():
        found.pop(AUTO[name], None)
    found |= _scheduler(fields, inner, {"optimizer.lr": base.optimizer.lr, **found}, auto, base.num_steps)
    found |= _batch(fields, base, ranks, found["parallel.tensor"], auto)
    for name in (*TOOLS, *METHODS):
        part = fields.inner(name)
        if part.flag("enabled", False) and name in METHODS:
            raise ValueError(f"{name} of {where} trains differently and is not here: remove it")
        omissions += [Omission(f"{name}: not started")] if part.flag("enabled", False) else []
    for section, part in {"": fields, **inner}.items():
        _rest(section, part, omissions)
    unknown = [f"{name}.{field}" for name, part in inner.items() for field in part.unread()]
    merged = {name: dict(table) if isinstance(table, Mapping) else table for name, table in tables.items()}
    for name, value in found.items():
        section, _, key = name.partition(".")
        merged.setdefault(section, {})[key] = value
    return Reading(merged, tuple(omissions), (*fields.unread(), *unknown))


def _auto(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Fields that are "auto", as "section.field"."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _auto(value, f"{prefix}{name}.")
        elif value == "auto":
            yield f"{prefix}{name}"


def _batch(fields: Fields, base: TrainConfig, ranks: int, tensor: int, auto: frozenset[str]) -> dict[str, Any]:
    """The three batch sizes by DeepSpeed's rules: two give the third, one of the first two is enough."""
    replicas, rest = divmod(ranks, tensor * base.parallel.context * base.parallel.pipeline)
    if rest or not replicas:
        raise ValueError(f"tensor, context and pipeline ranks must divide the ranks: got {ranks}; change one of them")
    batch, micro, steps = (fields.optional_count(name) for name in BATCHES)
    if batch is None and micro is None:
        if steps is None and auto & set(BATCHES):
            return {}
        raise ValueError(f"{BATCHES[0]} or {BATCHES[1]} must be given: got neither; try {BATCHES[1]}=1")
    if batch is None:
        batch = (micro or 1) * (steps or 1) * replicas
    if micro is None:
        micro = batch // ((steps or 1) * replicas)
    if steps is None:
        steps = batch // (micro * replicas) if micro else 0
    if not micro or batch != micro * steps * replicas:
        raise ValueError(
            f"{BATCHES[0]} must be {BATCHES[1]} x {BATCHES[2]} x data ranks: got {batch} for {micro} x {steps} x "
            f"{replicas}; try {BATCHES[0]}={max(1, micro) * max(1, steps) * replicas}"
        )
    return {"data.batch_size": batch, "data.micro_batch": micro}


def _optimizer(fields: Fields, inner: dict[str, Fields]) -> dict[str, Any]:
    part = inner["optimizer"] = fields.inner("optimizer")
    params = inner["optimizer.params"] = part.inner("params")
    if (kind := part.get("type")) is None:
        return {}
    if "max_grad_norm" in params:
        raise ValueError("max_grad_norm is no parameter of an optimizer in DeepSpeed: use gradient_clipping")
    name = str(kind).lower()
    if name not in (*ADAM, *OTHER_OPTIMIZERS):
        raise unknown_name("optimizer.type", kind, ["Adam", "AdamW", "Lion", "SGD"])
    is_decoupled = params.flag("adam_w_mode", True) or name == "adamw"
    params.skip(frozenset({"torch_adam"}))
    defaults = {"lr": 1e-3, "eps": 1e-8, "weight_decay": 0.0, "betas": (0.9, 0.999), "momentum": 0.0}
    defaults |= OTHER_OPTIMIZERS.get(name, {})
    found = {f"optimizer.{one}": params.get(one, default) for one, default in defaults.items()}
    ours = name if name in OTHER_OPTIMIZERS else "adamw" if is_decoupled else "adam"
    return found | {"optimizer.name": ours}


def _scheduler(
    fields: Fields, inner: dict[str, Fields], found: Mapping[str, Any], auto: frozenset[str], num_steps: int
) -> dict[str, Any]:
    part = inner["scheduler"] = fields.inner("scheduler")
    params = inner["scheduler.params"] = part.inner("params")
    if (kind := part.get("type")) is None:
        return {}
    if kind not in SCHEDULERS:
        raise unknown_name("scheduler.type", kind, SCHEDULERS)
    if params.get("last_batch_iteration", -1) != -1:
        raise ValueError("last_batch_iteration must be -1: a run goes on from its checkpoint; remove it")
    decays, prefix = kind == "WarmupDecayLR", "scheduler.params."
    peak = 1e-3 if decays and f"{prefix}warmup_max_lr" not in auto else found["optimizer.lr"]
    peak, lowest = _number(params, "warmup_max_lr", peak), _number(params, "warmup_min_lr", 0.0)
    new: dict[str, Any] = {"optimizer.lr": peak, "optimizer.first": lowest / peak if peak else 0.0}
    new["optimizer.schedule"] = f"deepspeed-{params.one_of('warmup_type', ('log', 'linear'))}"
    new["optimizer.num_warmup"] = params.count("warmup_num_steps", 1000)
    total = num_steps if f"{prefix}total_num_steps" in auto else None
    new["optimizer.schedule_steps"] = params.count("total_num_steps", total) if decays else None
    kept = {AUTO[one] for one in auto & AUTO.keys() if one.startswith(prefix)}
    return {name: value for name, value in new.items() if name not in kept}


def _precision(fields: Fields, fp16: Fields, auto: frozenset[str], base: TrainConfig) -> dict[str, Any]:
    products = precision_of(fields)
    if products == "float32" and auto & {"fp16.enabled", "bf16.enabled", "bfloat16.enabled"}:
        products = base.precision.products
    found: dict[str, Any] = {"precision.products": products, "precision.master": products != "float32"}
    scale = _number(fp16, "loss_scale", 0.0)
    power, window = fp16.count("initial_scale_power", 16, minimum=0), fp16.count("loss_scale_window", 1000)
    hysteresis, smallest = fp16.count("hysteresis", 2), _number(fp16, "min_loss_scale", 1.0)
    if products == "float16":
        found |= {"precision.loss_scale": scale, "precision.initial_scale": 2.0 ** min(power, 1000)}
        found |= {"precision.scale_interval": window, "precision.hysteresis": hysteresis}
        found |= {"precision.min_scale": smallest, "precision.max_scale": inf}
    return found


def _zero(zero: Fields, found: Mapping[str, Any], omissions: list[Omission]) -> dict[str, Any]:
    products = found["precision.products"]
    stage = zero.count("stage", 0, minimum=0)
    if not zero.flag("overlap_comm", stage == 3):
        omissions.append(Omission("overlap_comm false: gradients are always reduced during backward"))
    device = zero.inner("offload_optimizer").text("device", "none")
    if device not in ("none", "cpu", "nvme"):
        raise ValueError(f"offload_optimizer.device must be cpu, nvme or none: got {shown(device)}; try none")
    if zero.flag("cpu_offload", False) or device != "none":
        omissions.append(Omission("offload_optimizer: the optimizer state stays on the device"))
    if zero.flag("cpu_offload_param", False) or zero.inner("offload_param").text("device", "none") != "none":
        omissions.append(Omission("offload_param: the parameters stay on the device"))
    if products != "float32" and stage == 0:
        omissions.append(Omission("stage 0: with 16-bit parameters the optimizer state is sharded, as in stage 1"))
        stage = 1
    size = zero.count("reduce_bucket_size", 500_000_000)
    return {"parallel.zero_stage": stage, "parallel.bucket_bytes": size * (4 if products == "float32" else 2)}


def _rest(section: str, part: Fields, omissions: list[Omission]) -> None:
    """Fields that change nothing, are named, or refused."""
    part.skip(WITHOUT_EFFECT.get(section, frozenset()))
    prefix = f"{section}." if section else ""
    for name, usual in REFUSED.get(section, {}).items():
        value = part.get(name, usual)
        if value != usual:
            raise ValueError(f"{prefix}{name} must be {usual}: got {shown(value)}, which trains differently; remove it")
    for name, usual in NAMED.get(section, {}).items():
        if (value := part.get(name, usual)) != usual:
            omissions.append(Omission(f"{prefix}{name} {value!r}: has no effect here"))


def _number(fields: Fields, name: str, default: float) -> float:
    value = fields.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < inf:
        raise ValueError(f"{name} must be a number, 0 or more: got {shown(value)}; try {default}")
    return float(value)
