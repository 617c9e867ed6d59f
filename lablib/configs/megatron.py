"""Model and plan from the command line of Megatron-LM's pretrain_gpt.py.

    Megatron-LM                                                 here
    --num-layers, --hidden-size, ... --num-query-groups         sizes of a `Transformer`
    --swiglu, --normalization RMSNorm, --disable-bias-linear    its activation, norm and biases
    --multi-latent-attention, --num-experts                     its latent and experts
    --window-size, --window-attn-skip-freq                      its window: one more token, and which layers have it
    --moe-expert-capacity-factor                                imbalance of its experts, as if the busiest were full
    --moe-layer-freq                                            which layers have experts: every N-th, or a list
    --tensor- (pipeline-, context-, expert-)model-parallel-size tensor, pipeline, context, expert
    --num-virtual-stages-per-pipeline-rank                      chunks, and the schedule "interleaved"
    --micro-batch-size, --global-batch-size, --seq-length       micro_batch, batch, seq_len
    --use-distributed-optimizer                                 zero_stage 1
    --use-megatron-fsdp, --data-parallel-sharding-strategy      zero_stage 0 to 3
    --num-distributed-optimizer-instances                       replicas
    --optimizer-cpu-offload                                     offload "optimizer"
    --bf16, --fp16, --fp8-format, --fp4-format                  precision
    --recompute-activations, --recompute-granularity            recompute: "selective", "full", "every k", "first k"

The vocabulary is padded as there: to a multiple of --make-vocab-size-divisible-by times the tensor ranks.

Source: megatron/training/arguments.py (github.com/NVIDIA/Megatron-LM, core 0.20, d98e8a64): names and defaults.
"""

import ast
import math
import re
import shlex
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from lablib.configs.reading import Fields, Omission, Reading
from lablib.models.transformer import Experts, Latent, Transformer, Window
from lablib.signature import checked

# These change neither time nor memory by a part that the planner has: data, logs, checkpoints, rates, seeds.
_WITHOUT_COST = tuple(
    "adam- adlr- attention-dropout ckpt- clip-grad data- dataloader- decoupled- dist- eod- eval- exit- hidden-dropout "
    "hysteresis init-method initial-loss-scale log- loss-scale lr merge-file min-loss-scale min-lr mock-data "
    "moe-aux-loss moe-z-loss no-load no-save norm-epsilon num-workers override- rotary- save load seed sgd- split "
    "start-weight-decay end-weight-decay tensorboard timing- tokenizer- train- vocab-file wandb weight-decay "
    "transformer-impl use-mcore-models use-flash-attn attention-backend no-masked-softmax-fusion "
    "attention-softmax-in-fp32 distributed- local-rank manual-gc cross-entropy- deterministic-".split()
)
OPTIMIZERS = {"adam": "adamw", "sgd": "sgd-momentum", "muon": "muon"}
STRATEGIES = ("no_shard", "optim", "optim_grads", "optim_grads_params")  # of Megatron-FSDP, by ZeRO stage


@checked
def parse_megatron(command: str) -> Reading[dict[str, Any]]:
    """Keyword arguments of `lablib.plan.search`, with the model, from the options of a command line.

    ValueError: a missing or impossible size, or a choice that the planner cannot price.
    """
    given, kept = _options(command).items(), "data-parallel-sharding-strategy"
    options = {name: value for name, value in given if name == kept or not name.startswith(_WITHOUT_COST)}
    fields, omissions = Fields(options, "the arguments of Megatron-LM"), list[Omission]()
    tensor, pipeline = (fields.count(f"{axis}-model-parallel-size", 1) for axis in ("tensor", "pipeline"))
    model = _model(fields, tensor, omissions)
    settings: dict[str, Any] = {
        "model": model,
        "stack": "megatron-core",
        "tensor": [tensor],
        "pipeline": [pipeline],
        "context": [fields.count("context-parallel-size", 1)],
        "precision": _precision(fields),
        "optimizer": OPTIMIZERS[_one_of(fields, "optimizer", tuple(OPTIMIZERS))],
        "zero_stage": [_zero_stage(fields)],
        "recompute": [_recompute(fields)],
    }
    if model.experts:
        settings["expert"] = [fields.count("expert-model-parallel-size", 1)]
        settings["expert_tensor"] = [fields.count("expert-tensor-parallel-size", tensor)]
    settings |= _pipeline(fields, model, pipeline)
    for name, option in {"batch": "global-batch-size", "seq_len": "seq-length"}.items():
        if option in fields:
            settings[name] = fields.count(option)
    if (instances := fields.count("num-distributed-optimizer-instances", 1)) > 1:
        settings["replicas"] = instances
    if fields.flag("optimizer-cpu-offload", False):
        settings["offload"] = ("optimizer",)
    fields.flag("use-precision-aware-optimizer", False)
    if "micro-batch-size" in fields:
        settings["micro_batch"] = [fields.count("micro-batch-size")]
    if tensor > 1 and not fields.flag("sequence-parallel", False):
        settings["sequence_parallel"] = False
    for name in ("overlap-grad-reduce", "overlap-param-gather", "tp-comm-overlap"):
        fields.flag(name, False)
    return Reading(settings, tuple(omissions), tuple(f"--{name}" for name in fields.unread()))


def _options(command: str) -> dict[str, Any]:
    """Option -> value: True without a value, a number where it is one, otherwise text."""
    found, name = dict[str, Any](), ""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ValueError(f"the arguments of Megatron-LM must be words as in a shell: {error}") from None
    for word in words:
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            found[name] = _value(value) if value else True
        elif name:
            found[name] = _value(word) if found[name] is True else f"{found[name]} {word}"
    return found


def _one_of(fields: Fields, name: str, known: tuple[str, ...]) -> str:
    return fields.one_of(name, known, f"--{name}")


def _value(word: str) -> Any:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(word)
    return word


def _model(fields: Fields, tensor: int, omissions: list[Omission]) -> Transformer:
    d_model, heads = fields.count("hidden-size"), fields.count("num-attention-heads")
    is_gated = fields.flag("swiglu", False)
    # As there: a gated MLP of two thirds of the width, in multiples of 64.
    d_ff = fields.count("ffn-hidden-size", int(4 * d_model * 2 / 3 / 64) * 64 if is_gated else 4 * d_model)
    position = _one_of(fields, "position-embedding-type", ("learned_absolute", "rope", "mrope", "yarn", "none"))
    is_rotary = position in ("rope", "mrope", "yarn") or fields.flag("use-rotary-position-embeddings", False)
    kv_heads = fields.count("num-query-groups", 1) if fields.flag("group-query-attention", False) else None
    norm = {"LayerNorm": "layer", "RMSNorm": "rms"}[_one_of(fields, "normalization", ("LayerNorm", "RMSNorm"))]
    model = Transformer(
        name="megatron",
        num_layers=fields.count("num-layers"),
        d_model=d_model,
        num_heads=heads,
        vocab_size=_padded(fields, tensor),
        max_seq_len=fields.count("max-position-embeddings" if "max-position-embeddings" in fields else "seq-length"),
        d_ff=d_ff,
        num_kv_heads=kv_heads,
        d_head=fields.optional_count("kv-channels"),
        activation="swiglu" if is_gated else "gelu",
        positions="rotary" if is_rotary or position == "none" else "learned",
        norm=norm,
        has_bias=not fields.flag("disable-bias-linear", False),
        tied_head=not fields.flag("untie-embeddings-and-output-weights", False),
        latent=_latent(fields) if fields.flag("multi-latent-attention", False) else None,
        experts=_experts(fields, d_ff, fields.count("num-layers")) if fields.get("num-experts") else None,
        window=_window(fields, fields.count("num-layers")),
        source="arguments of Megatron-LM",
    )
    if fields.flag("qk-layernorm", False):
        omissions.append(Omission("norms of queries and keys", model.num_layers * 2 * model.head_size))
    if fields.flag("add-qkv-bias", False) and not model.has_bias:
        wide = (model.num_heads + 2 * model.kv_heads) * model.head_size
        omissions.append(Omission("biases of query, key and value", model.num_layers * wide))
    if modules := fields.count("mtp-num-layers", 0, minimum=0):
        omissions.append(Omission(f"{modules} further prediction modules (--mtp-num-layers)"))
    return model


def _padded(fields: Fields, tensor: int) -> int:
    if "padded-vocab-size" in fields:
        return fields.count("padded-vocab-size")
    multiple = fields.count("make-vocab-size-divisible-by", 128) * tensor
    return math.ceil(fields.count("vocab-size") / multiple) * multiple


def _latent(fields: Fields) -> Latent:
    return Latent(
        query_rank=fields.count("q-lora-rank", 0, minimum=0),
        kv_rank=fields.count("kv-lora-rank", 32),
        d_rotary=fields.count("qk-pos-emb-head-dim", 64),
        d_plain=fields.count("qk-head-dim", 128),
        d_value=fields.count("v-head-dim", 128),
    )


def _experts(fields: Fields, d_ff: int, layers: int) -> Experts:
    own = fields.count("moe-ffn-hidden-size", d_ff)
    shared = fields.count("moe-shared-expert-intermediate-size", 0, minimum=0)
    if shared % own:
        rule = "--moe-shared-expert-intermediate-size must be a multiple of the experts' width"
        raise ValueError(f"{rule}: got {shared} and {own}")
    dense = layers - sum(_of_layers(fields, "moe-layer-freq", layers, lambda i, every: i % every == 0))
    numbers = fields.count("num-experts"), fields.count("moe-router-topk", 2), own, shared // own, dense
    # A rank has at most as many tokens as its experts take, and with padding always.
    fields.flag("moe-pad-expert-input-to-capacity", False)
    return Experts(*numbers, imbalance=fields.number("moe-expert-capacity-factor", 1.0))


def _window(fields: Fields, layers: int) -> Window | None:
    given = str(fields.get("window-size", ""))
    name, near = "window-attn-skip-freq", [True] * layers
    if name in fields:
        near = _of_layers(fields, name, layers, lambda i, every: (i + 1) % every > 0)
    if not given or given.startswith(("-1", "(-1")):
        return None
    sides = re.fullmatch(r"\(?(\d{1,9}) *, *0\)?", given)
    if not sides:
        raise ValueError(f"--window-size must be the number of earlier tokens and 0: got {given}; try 127,0")
    return Window(int(sides[1]) + 1, sum(near) if sum(near) < layers else None) if any(near) else None


def _of_layers(fields: Fields, name: str, layers: int, is_on: Callable[[int, int], bool]) -> list[bool]:
    """A flag per layer: from a list such as ([0]*1+[1]*3)*2, or of a number N by `is_on` of layer and N."""
    given = fields.get(name, 1)
    if isinstance(given, int) and given >= 1:
        return [is_on(i, given) for i in range(layers)]
    try:
        found = _list(ast.parse(str(given), mode="eval").body, layers)
    except (SyntaxError, RecursionError, MemoryError):
        found = []
    if not isinstance(found, list) or len(found) != layers:
        rule = f"--{name} must be a number of at least 1, or a list of 0 and 1 for all {layers} layers"
        raise ValueError(f"{rule}: got {given}")
    return [bool(each) for each in found]


def _list(node: ast.expr, limit: int) -> Any:
    """The value of lists of 0 and 1 with + and *, up to `limit` long; [] of anything else."""
    if isinstance(node, ast.List):
        return [_list(each, limit) for each in node.elts]
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mult)):
        left, right = _list(node.left, limit), _list(node.right, limit)
        if isinstance(node.op, ast.Add) and type(left) is type(right):
            return left + right
        if isinstance(node.op, ast.Mult) and {type(left), type(right)} == {list, int}:
            number, items = (left, right) if isinstance(left, int) else (right, left)
            return items * number if 0 <= number * len(items) <= limit else []
    return []


def _precision(fields: Fields) -> str:
    if "fp8-format" in fields:
        _one_of(fields, "fp8-format", ("e4m3", "hybrid"))
        fields.get("fp8-recipe")
        fields.flag("bf16", True)
        return "float8"
    if "fp4-format" in fields:
        _one_of(fields, "fp4-format", ("e2m1",))
        fields.flag("bf16", True)
        return "float4"
    if fields.flag("bf16", False):
        return "bfloat16"
    return "float16" if fields.flag("fp16", False) else "float32"


def _zero_stage(fields: Fields) -> int:
    is_split = fields.flag("use-distributed-optimizer", False)
    strategy = _one_of(fields, "data-parallel-sharding-strategy", STRATEGIES[::-1])
    return STRATEGIES.index(strategy) if fields.flag("use-megatron-fsdp", False) else int(is_split)


def _recompute(fields: Fields) -> str:
    kind = "selective" if fields.flag("recompute-activations", False) else "none"
    if "recompute-granularity" in fields:
        kind = _one_of(fields, "recompute-granularity", ("full", "selective"))
    number = fields.count("recompute-num-layers", 1)
    if kind != "full":
        return kind
    if _one_of(fields, "recompute-method", ("uniform", "block")) == "block":
        return f"first {number}"
    return "full" if number == 1 else f"every {number}"


def _pipeline(fields: Fields, model: Transformer, pipeline: int) -> dict[str, Any]:
    chunks = fields.count("num-virtual-stages-per-pipeline-rank", 1)
    if "num-layers-per-virtual-pipeline-stage" in fields:
        layers = fields.count("num-layers-per-virtual-pipeline-stage")
        if model.num_layers % (pipeline * layers):
            raise ValueError(
                "--num-layers must be a multiple of --pipeline-model-parallel-size * "
                f"--num-layers-per-virtual-pipeline-stage: got {model.num_layers} and {pipeline} * {layers}"
            )
        chunks = model.num_layers // (pipeline * layers)
    return {"chunks": [chunks], "schedule": ["interleaved" if chunks > 1 else "1f1b"]}
