"""A plan as torchtitan's TOML; torchtitan.py has the fields and sources.

torchtitan trains the models of its tables, shards parameters, gradients and states together (ZeRO-3, fully_shard) or
not at all, and replicates without shards on one axis only (DistributedDataParallel).
"""

from dataclasses import replace
from typing import Any

from lablib.configs.torchtitan import OPTIMIZERS, SCHEDULES
from lablib.configs.torchtitan_models import FLAVORS, sizes_of
from lablib.configs.writing import Draft, Written
from lablib.models.transformer import Transformer
from lablib.text.toml import toml_table

_COMPONENTS = {"torch-compile": ["model", "loss"], "torch-compile-2024": ["model"], "fsdp-flash": []}


def write_torchtitan(plan: Draft) -> Written:
    """The configuration of a plan. Raises ValueError for choices that torchtitan does not have."""
    model = plan["model"]
    if not isinstance(model, Transformer):
        raise ValueError(f"torchtitan needs the sizes of the model: got {model!r}; give a Transformer")
    name, flavor = next((each for each in FLAVORS if _sizes(sizes_of(*each)) == _sizes(model)), ("", ""))
    if not name:
        known = ", ".join(" ".join(each) for each in FLAVORS)
        plan.refuse(f"the model {model.name} (it has {known})")
    precision = plan.choose("precision", {"bfloat16": "bfloat16", "float32": "float32", "float8": "bfloat16"})
    optimizer = plan.choose("optimizer", {ours: theirs for theirs, ours in OPTIMIZERS.items()})
    stack = plan["stack"] or "torch-compile"
    if stack not in _COMPONENTS:
        plan.remark(f"The plan was priced with {stack}; torchtitan is torch-compile.")
    plan.refuse(plan.named("zero_plus_plus", "compression", "trainable"))
    on_host = plan.choose("offload", {(): False, ("parameters",): True})
    if on_host and _is_unsharded(plan):
        plan.refuse("offload of parameters without shards")
    tensor, pipeline = plan["tensor"], plan["pipeline"]
    if tensor > 1 and plan["sequence_parallel"] is False:
        plan.refuse("tensor ranks without sequence_parallel")
    if plan["expert"] > 1 and plan["expert_tensor"] not in (None, 1, tensor):
        plan.refuse(f"expert_tensor {plan['expert_tensor']} (it has 1, or as many as tensor)")
    if plan["expert"] == 1 and plan["expert_tensor"] not in (None, tensor):
        plan.refuse(f"expert_tensor {plan['expert_tensor']} without expert ranks")
    local = plan["micro_batch"] if pipeline == 1 else plan["batch"] // plan["data"]
    components = _COMPONENTS.get(stack, ["model", "loss"])
    config: dict[str, dict[str, Any]] = {
        "model": {"name": name, "flavor": flavor},
        "optimizer": {"name": optimizer},
        "training": {
            "local_batch_size": local,
            "global_batch_size": plan["batch"],
            "seq_len": plan["seq_len"] or model.max_seq_len,
            "mixed_precision_param": precision,
            **({"enable_cpu_offload": True} if on_host else {}),
        },
        "parallelism": _parallelism(plan),
        "activation_checkpoint": _checkpoint(plan, model.num_layers // pipeline),
        "compile": {"enable": bool(components), **({"components": components} if components else {})},
    }
    if plan["precision"] == "float8":
        converters = ["quantize.linear.float8", *(["quantize.grouped_mm.float8"] if model.experts else [])]
        config["model"]["converters"] = converters
        config["quantize.linear.float8"] = {"filter_fqns": ["output", *(["router.gate"] if model.experts else [])]}
        config |= {"quantize.grouped_mm.float8": {"fqns": ["experts"]}} if model.experts else {}
    elif _is_unsharded(plan) and tensor * pipeline > 1 and precision == "bfloat16":
        config["training"]["dtype"] = "bfloat16"
        plan.remark("Without shards torchtitan trains in bfloat16 without 32-bit copies, which are priced.")
    lines = [line for name, fields in config.items() for line in [*toml_table(name, fields)[1:], ""]]
    return plan.done(lambda: "\n".join(lines))


def _sizes(model: Transformer) -> Transformer:
    """The model with its sizes alone, their defaults written out."""
    heads = {"num_kv_heads": model.kv_heads, "d_head": model.head_size}
    return replace(model, name="", source="", max_seq_len=1, d_ff=model.hidden_size, **heads)


def _is_unsharded(plan: Draft) -> bool:
    return plan["zero_stage"] == 0 or plan["data"] * plan["context"] == 1


def _parallelism(plan: Draft) -> dict[str, Any]:
    data, replicas, stage = plan["data"], plan["replicas"], plan["zero_stage"]
    ranks = data * plan["context"]
    if stage in (1, 2) and ranks > 1:
        plan.refuse(f"zero_stage {stage} (it has 0 and 3)")
    if stage == 3 and ranks > 1 and ranks == replicas:
        plan.refuse(f"zero_stage 3 over one rank (data {data}, replicas {replicas})")
    if stage == 0 and ranks > 1:
        replicas = data
        if plan["context"] > 1 or plan["tensor"] * plan["pipeline"] > 1:
            plan.refuse("zero_stage 0 with other axes than data")
    config = {"data_parallel_replicate_degree": replicas, "data_parallel_shard_degree": data // replicas}
    config |= {f"{axis}_parallel_degree": plan[axis] for axis in ("tensor", "context", "pipeline")}
    if not _is_unsharded(plan):
        config["fsdp_reshard_after_forward"] = "always" if plan["reshard_after_forward"] else "never"
    if plan["expert"] > 1:
        each = plan["tensor"] if plan["expert_tensor"] is None else plan["expert_tensor"]
        config |= {"expert_parallel_degree": plan["expert"], "expert_tensor_parallel_degree": each}
    return config | (_pipeline(plan) if plan["pipeline"] > 1 else {})


def _pipeline(plan: Draft) -> dict[str, Any]:
    schedule = plan.choose("schedule", {ours: theirs for theirs, ours in SCHEDULES.items()})
    pieces, layers = plan["pipeline"] * plan["chunks"], plan["model"].num_layers
    config = {"pipeline_parallel_schedule": schedule, "pipeline_parallel_microbatch_size": plan["micro_batch"]}
    if plan["chunks"] == (1 if schedule in ("1F1B", "GPipe") else 2):
        return config
    # As there: layers and both ends, in pieces of equal size but the last.
    per_stage = next((n for n in range(1, layers + 3) if -(-(layers + 2) // n) == pieces), None)
    if per_stage is None:
        plan.refuse(f"{pieces} pieces of {layers} layers")
    return config | {"pipeline_parallel_layers_per_stage": per_stage}


def _checkpoint(plan: Draft, layers: int) -> dict[str, Any]:
    policy = plan["recompute"]
    if policy == "selective":
        if plan["stack"] == "fsdp-flash":
            plan.remark("Without compile, selective recomputation is priced as attention's core only.")
        return {"mode": "selective", "selective_ac_option": "op"}
    kind, _, number = policy.partition(" ")
    if not number:
        return {"mode": policy}
    every = layers // int(number)
    if kind == "first" and every > 1 and layers // every == int(number):
        return {"mode": "selective", "selective_ac_option": str(every)}
    plan.refuse(f"recompute {policy!r} (it has every n-th layer)")
    return {}
