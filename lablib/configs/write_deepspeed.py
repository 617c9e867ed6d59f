"""A plan as DeepSpeed's JSON: batch, ZeRO, offload, precision and optimizer; deepspeed.py has the fields and sources.

Tensor, context and expert ranks, stages and recomputation are in the program, so they are remarks. DeepSpeed's pipeline
takes ZeRO up to stage 1 (deepspeed/runtime/pipe/engine.py), and offloading the optimizer needs ZeRO.
"""

import json

from lablib.configs.writing import Draft, Written

_HALVES = {"bfloat16": "bf16", "float16": "fp16", "float32": ""}
_OPTIMIZERS = {"adamw": "AdamW", "adam": "Adam", "lamb": "Lamb", "lion": "Lion", "sgd": "SGD", "muon": "Muon"}


def write_deepspeed(plan: Draft, gpus_per_node: int | None = None) -> Written:
    """The configuration of a plan. Raises ValueError for choices that DeepSpeed does not have."""
    half, optimizer = plan.choose("precision", _HALVES), plan.choose("optimizer", _OPTIMIZERS)
    stage, parts = plan["zero_stage"], plan["zero_plus_plus"]
    plan.refuse(plan.named("replicas", "compression", "trainable", "reshard_after_forward"))
    if stage > 1 and plan["pipeline"] > 1:
        plan.refuse(f"zero_stage {stage} with pipeline {plan['pipeline']}")
    if "optimizer" in plan["offload"] and not stage:
        plan.refuse("offload of the optimizer with zero_stage 0")
    if "parameters" in plan["offload"] and stage < 3:
        plan.refuse(f"offload of the parameters with zero_stage {stage}")
    if "hpZ" in parts and not gpus_per_node:
        plan.refuse("hpZ without the number of GPUs of a node")
    axes = ("tensor", "pipeline", "context", "expert", "expert_tensor", "chunks", "sequence_parallel")
    if outside := plan.named(*axes, "schedule", "recompute", "seq_len"):
        plan.remark(f"DeepSpeed's file does not hold, as the program chooses it: {outside}.")
    zero = {"stage": stage, "overlap_comm": True}
    if {"optimizer", "parameters"} & set(plan["offload"]):
        zero["offload_optimizer"] = {"device": "cpu"}
    if "parameters" in plan["offload"]:
        zero["offload_param"] = {"device": "cpu"}
    flags = {"qwZ": "zero_quantized_weights", "qgZ": "zero_quantized_gradients"}
    zero |= {flag: True for name, flag in flags.items() if name in parts}
    if "hpZ" in parts:
        zero["zero_hpz_partition_size"] = gpus_per_node
    batch, micro_batch = plan["batch"], plan["micro_batch"]
    config = {"train_batch_size": batch, "train_micro_batch_size_per_gpu": micro_batch}
    config["gradient_accumulation_steps"] = batch // (plan["data"] * micro_batch)
    config |= {half: {"enabled": True}} if half else {}
    config |= {"optimizer": {"type": optimizer}, "zero_optimization": zero}
    if "activations" in plan["offload"]:
        config["activation_checkpointing"] = {"cpu_checkpointing": True}
    return plan.done(lambda: json.dumps(config, indent=2) + "\n")
