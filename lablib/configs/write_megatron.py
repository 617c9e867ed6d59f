"""A plan as options of Megatron-LM's pretrain_gpt.py, one per line; megatron.py has the options and sources.

ZeRO-2 and 3 are Megatron-FSDP. Options that others need are added: --use-precision-aware-optimizer for an optimizer in
the host's memory, --ckpt-format fsdp_dtensor for Megatron-FSDP. The vocabulary is padded to a multiple of the tensor
ranks, in a remark. Rates, data and checkpoints are not part of a plan.
"""

from math import gcd
from typing import Any

from lablib.configs.megatron import OPTIMIZERS, STRATEGIES
from lablib.configs.writing import Draft, Written
from lablib.models.transformer import Transformer

_PRECISIONS = {"float32": (), "bfloat16": ("--bf16",), "float16": ("--fp16",)}
_PRECISIONS |= {"float8": ("--bf16", "--fp8-format hybrid"), "float4": ("--bf16", "--fp4-format e2m1")}


def write_megatron(plan: Draft) -> Written:
    """The options of a plan. Raises ValueError for choices that Megatron-LM does not have."""
    model = plan["model"]
    if not isinstance(model, Transformer):
        raise ValueError(f"megatron needs the sizes of the model: got {model!r}; give a Transformer")
    precision = plan.choose("precision", _PRECISIONS)
    optimizer = plan.choose("optimizer", {ours: theirs for theirs, ours in OPTIMIZERS.items()})
    plan.choose("schedule", {"1f1b": "", "interleaved": ""})
    plan.choose("offload", {(): "", ("optimizer",): ""})
    plan.refuse(plan.named("compression", "trainable", "reshard_after_forward", "zero_plus_plus"))
    if model.positions == "alibi":
        plan.refuse("positions 'alibi'")
    if model.block != "sequential":
        plan.refuse(f"block {model.block!r}")
    if model.window and model.window.is_chunked:
        plan.refuse("a window of chunks")
    # If every k-th layer has experts, half of them or more are dense.
    if 0 < model.num_window_layers < model.num_layers or 0 < 2 * model.num_expert_layers <= model.num_layers:
        plan.remark("Layers of one kind are written as one run: change their lists (1 and 0) to those of the model.")
    if plan["zero_stage"] > 1 and optimizer == "muon":
        plan.refuse(f"muon with zero_stage {plan['zero_stage']}")
    if not str(plan["stack"] or "megatron-core").startswith("megatron-core"):
        plan.remark(f"The plan was priced with {plan['stack']}; Megatron-LM today is megatron-core.")
    options = [*_model(model), *_vocabulary(model, plan), *_split(plan), *(precision or ()), f"--optimizer {optimizer}"]
    options += _recompute(plan["recompute"])
    return plan.done(lambda: "\n".join(options) + "\n")


def _model(model: Transformer) -> list[str]:
    sizes: dict[str, Any] = {
        "num-layers": model.num_layers,
        "hidden-size": model.d_model,
        "ffn-hidden-size": model.hidden_size,
        "num-attention-heads": model.num_heads,
        "max-position-embeddings": model.max_seq_len,
        "position-embedding-type": "rope" if model.positions == "rotary" else "learned_absolute",
        "normalization": "RMSNorm" if model.norm == "rms" else "LayerNorm",
    }
    if model.d_head is not None:
        sizes["kv-channels"] = model.d_head
    flags = ["--swiglu"] if model.activation == "swiglu" else []
    flags += ["--disable-bias-linear"] if not model.has_bias else []
    flags += ["--untie-embeddings-and-output-weights"] if not model.tied_head else []
    if model.kv_heads != model.num_heads:
        flags.append("--group-query-attention")
        sizes["num-query-groups"] = model.num_kv_heads
    if latent := model.latent:
        flags.append("--multi-latent-attention")
        sizes |= {"q-lora-rank": latent.query_rank} if latent.query_rank else {}
        sizes |= {"kv-lora-rank": latent.kv_rank, "qk-pos-emb-head-dim": latent.d_rotary}
        sizes |= {"qk-head-dim": latent.d_plain, "v-head-dim": latent.d_value}
    if experts := model.experts:
        sizes |= {"num-experts": experts.num_experts, "moe-router-topk": experts.num_active}
        sizes["moe-ffn-hidden-size"] = experts.d_ff
        if experts.num_shared:
            sizes["moe-shared-expert-intermediate-size"] = experts.num_shared * experts.d_ff
        if dense := experts.num_dense_layers:
            sizes["moe-layer-freq"] = f"([0]*{dense}+[1]*{model.num_layers - dense})"
    if model.window and (near := model.num_window_layers):
        sizes["window-size"] = f"{model.window.tokens - 1},0"
        if near < model.num_layers:
            sizes["window-attn-skip-freq"] = f"([1]*{near}+[0]*{model.num_layers - near})"
    return [*(f"--{name} {value}" for name, value in sizes.items()), *flags]


def _vocabulary(model: Transformer, plan: Draft) -> list[str]:
    multiple = gcd(128, model.vocab_size // gcd(model.vocab_size, plan["tensor"]))
    padded = -model.vocab_size % (multiple * plan["tensor"])
    if padded:
        plan.remark(f"Megatron-LM pads the vocabulary of {model.vocab_size:,} by {padded:,} for its tensor ranks.")
    return [f"--vocab-size {model.vocab_size}", f"--make-vocab-size-divisible-by {multiple}"]


def _split(plan: Draft) -> list[str]:
    options = [f"--{axis}-model-parallel-size {plan[axis]}" for axis in ("tensor", "pipeline")]
    options.append(f"--context-parallel-size {plan['context']}")
    if plan["model"].experts:
        each = plan["tensor"] if plan["expert_tensor"] is None else plan["expert_tensor"]
        options += [f"--expert-model-parallel-size {plan['expert']}", f"--expert-tensor-parallel-size {each}"]
    if plan["chunks"] > 1:
        options.append(f"--num-virtual-stages-per-pipeline-rank {plan['chunks']}")
    options += [f"--micro-batch-size {plan['micro_batch']}", f"--global-batch-size {plan['batch']}"]
    options.append(f"--seq-length {plan['seq_len'] or plan['model'].max_seq_len}")
    if plan["tensor"] > 1 and plan["sequence_parallel"] is not False:
        options.append("--sequence-parallel")
    stage = plan["zero_stage"]
    options += ["--use-distributed-optimizer"] if stage == 1 else []
    if stage > 1:
        options += ["--use-megatron-fsdp", f"--data-parallel-sharding-strategy {STRATEGIES[stage]}"]
        options.append("--ckpt-format fsdp_dtensor")
    if plan["replicas"] > 1:
        options.append(f"--num-distributed-optimizer-instances {plan['replicas']}")
    if plan["offload"]:
        options += ["--optimizer-cpu-offload", "--use-precision-aware-optimizer"]
    return options


def _recompute(policy: str) -> list[str]:
    kind, _, number = policy.partition(" ")
    if kind == "none":
        return []
    if kind == "selective":
        return ["--recompute-granularity selective"]
    method = "block" if kind == "first" else "uniform"
    return ["--recompute-granularity full", f"--recompute-method {method}", f"--recompute-num-layers {number or 1}"]
