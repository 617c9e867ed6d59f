"""Sizes of a transformer from the config.json of Hugging Face's transformers.

    model_type                     attention                            MLP
    gpt2                           all heads, with biases               GELU
    gpt_neox, gptj, falcon         next to the MLP; Falcon's grouped    GELU
    llama, mistral, phi3           grouped; a window in all layers      SwiGLU
    qwen2, qwen3                   grouped; in the upper ones, if any   SwiGLU
    gemma, gemma2, gemma3_text     grouped, wide heads; in 1/2 or 5/6   GeGLU (three matrices, as SwiGLU)
    cohere, cohere2                grouped, next to the MLP; in 3/4     SwiGLU
    mixtral, qwen2_moe, qwen3_moe  grouped                              experts, in every layer or every k-th
    gpt_oss                        grouped; a window in 1/2             experts
    llama4_text                    grouped; chunks in 3/4               experts, in every layer or every k-th
    deepseek_v2, deepseek_v3       latent (MLA)                         experts, dense layers at the bottom

`Transformer` has no field for biases of single matrices, norms of queries and keys, further norms of a layer, and soft
caps. The reader lists them with their parameters, about a ten-thousandth of a model.

Source: the configuration and model classes of transformers 5.24 (github.com/huggingface/transformers,
src/transformers/models). tests/configs/test_hugging_face.py has the parameters that these classes make.
"""

import operator
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from lablib.configs.reading import Fields, Omission, Reading, read_json
from lablib.errors import unknown_name
from lablib.models.transformer import Experts, Latent, Transformer, Window
from lablib.signature import checked

# These change neither time nor memory of a training step by a part that the planner has. An explicit list, layer_types
# or moe_layers, goes before the last ones, from max_window_layers on.
_WITHOUT_COST = frozenset(
    "_name_or_path architectures torch_dtype dtype transformers_version use_cache auto_map bos_token_id eos_token_id "
    "pad_token_id chunk_size_feed_forward is_encoder_decoder initializer_range initializer_factor rms_norm_eps "
    "layer_norm_epsilon layer_norm_eps rope_theta rope_scaling rope_parameters rope_local_base_freq rope_interleave "
    "partial_rotary_factor pretraining_tp output_attentions output_hidden_states return_dict id2label label2id "
    "problem_type cache_implementation hidden_activation activation_function activation hidden_act attention_dropout "
    "attn_pdrop embd_pdrop resid_pdrop hidden_dropout use_mrope summary_activation summary_first_dropout "
    "summary_proj_to_labels summary_type summary_use_proj task_specific_params n_ctx scale_attn_weights "
    "scale_attn_by_inverse_layer_idx reorder_and_upcast_attn query_pre_attn_scalar logit_scale floor_scale attn_scale "
    "attn_temperature_tuning swiglu_alpha swiglu_limit original_max_position_embeddings rotary_dim rotary_pct "
    "rotary_emb_base rotary initial_context_length model_max_length tokenizer_class experts_per_token "
    "sliding_window_size for_llm_compressor attention_probs_dropout_prob hidden_dropout_prob classifier_dropout "
    "apply_residual_connection_post_layernorm is_decoder router_aux_loss_coef router_jitter_noise output_router_logits "
    "norm_topk_prob aux_loss_alpha scoring_func topk_method topk_group n_group routed_scaling_factor seq_aux ep_size "
    "max_window_layers sliding_window_pattern _sliding_window_pattern no_rope_layers no_rope_layer_interval "
    "interleave_moe_layer_step".split()
)
_DECODERS_ONLY = ("add_cross_attention", "is_encoder_decoder", "use_bidirectional_attention")
_NEAR, _FAR = ("sliding_attention", "chunked_attention"), "full_attention"
# Which layers attend to the nearest tokens only: of layer i, and `max_window_layers`.
Near = Callable[[int, int], bool]
_GATED = ("silu", "swish", "gelu", "gelu_pytorch_tanh", "gelu_new", "gelu_fast", "relu")


def _all(i: int, limit: int) -> bool:
    return True


def _every(n: int) -> Near:
    """All but every n-th layer."""
    return lambda i, limit: (i + 1) % n > 0


@checked
def read_hugging_face(path: str | Path) -> Reading[Transformer]:
    """The transformer of a config.json, or of a folder with one.

    ValueError: a missing file, a model type without a reader, a missing size, or an arrangement that `Transformer`
    cannot describe.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "config.json"
    name = path.parent.name if path.name == "config.json" and path.parent.name else path.stem
    return parse_hugging_face(read_json(path), name, str(path))


@checked
def parse_hugging_face(values: dict[str, Any], name: str, where: str = "config.json") -> Reading[Transformer]:
    """The same, from the object in the file. `name`: of the model."""
    fields, omissions = Fields(values, where), list[Omission]()
    if isinstance(values.get("text_config"), dict):  # a model of text and images
        omissions.append(Omission("all but the text model (text_config)"))
        fields = fields.inner("text_config")
    kind = fields.get("model_type")
    if not isinstance(kind, str) or kind not in _READERS:
        raise unknown_name("model_type", kind, sorted(_READERS))
    for flag in _DECODERS_ONLY:
        if fields.flag(flag, False):
            raise ValueError(f"{flag} must be false: got true; the planner has decoders with causal attention only")
    model = _READERS[kind](fields, name, omissions)
    for cap, of in {"attn_logit_softcapping": "attention's scores", "final_logit_softcapping": "the logits"}.items():
        if fields.get(cap) is not None:
            omissions.append(Omission(f"{cap}, a tanh of {of}"))
    if fields.get("quantization_config"):
        omissions.append(Omission("quantization_config: the precision of training is --precision"))
    fields.skip(_WITHOUT_COST)
    return Reading(model, tuple(omissions), fields.unread())


def _gpt2(fields: Fields, name: str, _: list[Omission], tied: bool = True) -> Transformer:
    sizes = [fields.count(one) for one in ("n_layer", "n_embd", "n_head", "vocab_size", "n_positions")]
    hidden, is_tied = fields.optional_count("n_inner"), fields.flag("tie_word_embeddings", tied)
    return Transformer(name, *sizes, d_ff=hidden, tied_head=is_tied, source=f"config.json, {fields.get('model_type')}")


def _common(fields: Fields, tied: bool = False) -> dict[str, Any]:
    """The sizes of all kinds but gpt2: grouped queries, gated MLP, rotary positions, RMS norm, no biases."""
    activation = fields.text("hidden_activation") or fields.text("hidden_act", "silu")
    if activation not in _GATED:
        raise unknown_name("hidden_act", activation, _GATED)
    return {
        "num_layers": fields.count("num_hidden_layers"),
        "d_model": fields.count("hidden_size"),
        "num_heads": fields.count("num_attention_heads"),
        "vocab_size": fields.count("vocab_size"),
        "max_seq_len": fields.count("max_position_embeddings"),
        "d_ff": fields.count("intermediate_size"),
        "num_kv_heads": fields.optional_count("num_key_value_heads"),
        "activation": "swiglu",
        "positions": "rotary",
        "norm": "rms",
        "has_bias": False,
        "tied_head": fields.flag("tie_word_embeddings", tied),
        "source": f"config.json, {fields.get('model_type')}",
    }


def _model(
    tied: bool = False,
    near: Near | None = None,
    tokens: int = 0,
    is_used: bool = True,
    block: str = "sequential",
    experts: Callable[[Fields, dict[str, Any]], Experts] | None = None,
    **parts: Any,
) -> Callable[..., Transformer]:
    """A reader. `near`, `tokens`, `is_used`: as in `_window`; `experts` of the sizes; `parts`: as in `_omitted`."""

    def read(fields: Fields, name: str, omissions: list[Omission]) -> Transformer:
        sizes = _common(fields, tied)
        sizes["experts"] = experts(fields, sizes) if experts else None
        sizes["window"] = _window(fields, sizes["num_layers"], near, tokens, is_used=is_used) if near else None
        model = Transformer(name, d_head=fields.optional_count("head_dim"), block=block, **sizes)
        omissions += _omitted(fields, model, **parts)
        return model

    return read


def _window(
    fields: Fields, layers: int, near: Near, tokens: int = 0, name: str = "sliding_window", is_used: bool = True
) -> Window | None:
    """The window and the number of layers with it.

    Args:
        near: whether layer i has it, by default; its second argument is `max_window_layers`.
        tokens: its size, if the file has no field; null: no window.
        name: of the field.
        is_used: whether it is used without a field `use_sliding_window`.
    """
    types, limit = fields.items("layer_types", str), fields.count("max_window_layers", 28, minimum=0)
    if wrong := [each for each in types if each not in (*_NEAR, _FAR)]:
        raise unknown_name("layer_types", wrong[0], (*_NEAR, _FAR))
    if types and len(types) != layers:
        raise ValueError(f"layer_types must have one word per layer: got {len(types)} for {layers} layers")
    size = fields.count(name, 0, minimum=0) if name in fields else tokens
    number = sum(each in _NEAR for each in types) if types else sum(near(i, limit) for i in range(layers))
    if not (fields.flag("use_sliding_window", is_used) and size and number):
        return None
    return Window(size, number if number < layers else None, name == "attention_chunk_size")


def _neox(fields: Fields, name: str, omissions: list[Omission]) -> Transformer:
    sizes: dict[str, Any] = _common(fields) | {"activation": "gelu", "norm": "layer"}
    sizes["has_bias"] = fields.flag("attention_bias", True)
    block = "parallel" if fields.flag("use_parallel_residual", True) else "sequential"
    model = Transformer(name, block=block, **sizes)
    if not model.has_bias:
        omissions.append(Omission("biases of the MLP", model.num_layers * (model.hidden_size + model.d_model)))
    return model


def _gptj(fields: Fields, name: str, omissions: list[Omission]) -> Transformer:
    model = replace(_gpt2(fields, name, omissions, tied=False), block="shared norm", has_bias=False, positions="rotary")
    omissions.append(Omission("biases of the MLP", model.num_layers * (model.hidden_size + model.d_model)))
    omissions.append(Omission("biases of the head", model.vocab_size))
    return model


def _falcon(fields: Fields, name: str, _: list[Omission]) -> Transformer:
    heads, is_new = fields.count("num_attention_heads"), fields.flag("new_decoder_architecture", False)
    is_parallel, norms = fields.flag("parallel_attn", True), fields.optional_count("num_ln_in_parallel_attn") or 2
    groups, has_one_group = fields.optional_count("num_kv_heads") or heads, fields.flag("multi_query", True)
    block = "shared norm" if is_parallel else "sequential"
    if is_new:
        block = "parallel" if norms == 2 else "shared norm"
    return Transformer(
        name,
        num_layers=fields.count("num_hidden_layers"),
        d_model=fields.count("hidden_size"),
        num_heads=heads,
        vocab_size=fields.count("vocab_size"),
        max_seq_len=fields.count("max_position_embeddings", 2048),
        d_ff=fields.optional_count("ffn_hidden_size"),
        num_kv_heads=groups if is_new else 1 if has_one_group else heads,
        positions="alibi" if fields.flag("alibi", False) else "rotary",
        has_bias=fields.flag("bias", False),
        tied_head=fields.flag("tie_word_embeddings", True),
        block=block,
        source="config.json, falcon",
    )


def _omitted(
    fields: Fields, model: Transformer, qkv_bias: bool = False, head_norms: bool = False, further_norms: int = 0
) -> list[Omission]:
    """Parts that `Transformer` has no field for.

    Args:
        qkv_bias: biases of query, key and value by default.
        head_norms: a norm of the queries and one of the keys.
        further_norms: norms of a layer beyond two.
    """
    layers, d, found = model.num_layers, model.d_model, list[Omission]()
    if model.experts and model.experts.num_shared and "shared_expert_intermediate_size" in fields:
        found.append(Omission("the gate of the shared expert", model.num_expert_layers * d))
    wide = (model.num_heads + 2 * model.kv_heads) * model.head_size
    if qkv_bias and fields.flag("qkv_bias", True):
        found.append(Omission("biases of query, key and value", layers * wide))
    elif fields.flag("attention_bias", False):
        found.append(Omission("biases of the attention", layers * (wide + d)))
    if fields.flag("mlp_bias", False):
        found.append(Omission("biases of the MLP", layers * (2 * model.hidden_size + d)))
    if head_norms:
        found.append(Omission("norms of queries and keys", layers * 2 * model.head_size))
    if not model.experts and fields.flag("use_qk_norm", False):  # Llama 4's have no parameters
        wide = (model.num_heads + model.kv_heads) * model.head_size
        found.append(Omission("norms of queries and keys, one for each head", layers * wide))
    if further_norms:
        found.append(Omission(f"{further_norms} further norms of each layer", layers * further_norms * d))
    return found


def _local_experts(fields: Fields, sizes: dict[str, Any], num_active: int | None = None) -> Experts:
    return Experts(fields.count("num_local_experts"), fields.count("num_experts_per_tok", num_active), sizes["d_ff"])


def _gpt_oss(fields: Fields, name: str, omissions: list[Omission]) -> Transformer:
    sizes = _common(fields)
    sizes["has_bias"] = fields.flag("attention_bias", True)
    if not sizes["has_bias"]:
        raise ValueError("attention_bias of gpt_oss must be true: got false; its experts have biases")
    experts, window = _local_experts(fields, sizes), _window(fields, sizes["num_layers"], _every(2), 128)
    model = Transformer(name, d_head=fields.optional_count("head_dim"), experts=experts, window=window, **sizes)
    further = model.num_layers * (experts.num_experts + model.num_heads)
    omissions.append(Omission("the router's bias, and a sink for each head", further))
    return model


def _llama4(fields: Fields, name: str, omissions: list[Omission]) -> Transformer:
    sizes = _common(fields)
    layers, every = sizes["num_layers"], fields.count("interleave_moe_layer_step", 1)
    mixed = fields.items("moe_layers", int) if fields.get("moe_layers") else range(every - 1, layers, every)
    experts = replace(_local_experts(fields, sizes, 1), num_shared=1, num_dense_layers=layers - len(mixed))
    sizes["d_ff"] = fields.count("intermediate_size_mlp")
    rope, interval = fields.items("no_rope_layers", int), fields.count("no_rope_layer_interval", 4)
    near = (lambda i, _: bool(rope[i])) if len(rope) >= layers else _every(interval)
    window = _window(fields, layers, near, 8192, "attention_chunk_size")
    model = Transformer(name, d_head=fields.optional_count("head_dim"), experts=experts, window=window, **sizes)
    if fields.flag("use_qk_norm", True):
        omissions.append(Omission("norms of queries and keys, without parameters"))
    omissions += _omitted(fields, model)
    return model


def _qwen_experts(fields: Fields, sizes: dict[str, Any]) -> Experts:
    d_ff = fields.count("moe_intermediate_size")
    shared = fields.count("shared_expert_intermediate_size", 0, minimum=0)
    if shared % d_ff:
        rule = "shared_expert_intermediate_size must be a multiple of moe_intermediate_size"
        raise ValueError(f"{rule}: got {shared} and {d_ff}")
    every, without = fields.count("decoder_sparse_step", 1), fields.items("mlp_only_layers", int)
    dense = sum(i in without or (i + 1) % every > 0 for i in range(sizes["num_layers"]))
    num_experts = fields.count("num_experts" if "num_experts" in fields else "num_local_experts")
    return Experts(num_experts, fields.count("num_experts_per_tok"), d_ff, shared // d_ff, dense)


def _deepseek(fields: Fields, name: str, omissions: list[Omission]) -> Transformer:
    sizes = _common(fields)
    first, every = fields.count("first_k_dense_replace", 0, minimum=0), fields.count("moe_layer_freq", 1)
    latent = Latent(
        query_rank=fields.count("q_lora_rank", 0, minimum=0),
        kv_rank=fields.count("kv_lora_rank"),
        d_rotary=fields.count("qk_rope_head_dim"),
        d_plain=fields.count("qk_nope_head_dim"),
        d_value=fields.count("v_head_dim"),
    )
    experts = Experts(
        num_experts=fields.count("n_routed_experts"),
        num_active=fields.count("num_experts_per_tok"),
        d_ff=fields.count("moe_intermediate_size"),
        num_shared=fields.count("n_shared_experts", 0, minimum=0),
        num_dense_layers=sum(i < first or i % every > 0 for i in range(sizes["num_layers"])),
    )
    model = Transformer(name, latent=latent, experts=experts, **sizes)
    fields.skip(frozenset({"head_dim", "qk_head_dim"}))  # follow from the latent
    if modules := fields.count("num_nextn_predict_layers", 0, minimum=0):
        omissions.append(Omission(f"{modules} further prediction modules (num_nextn_predict_layers)"))
    omissions += _omitted(fields, model)
    return model


def _gemma3(fields: Fields, name: str, omissions: list[Omission]) -> Transformer:
    old, new = "_sliding_window_pattern", "sliding_window_pattern"
    near = _every(fields.count(new if new in fields else old, 6))
    return _model(True, near, 4096, head_norms=True, further_norms=2)(fields, name, omissions)


_READERS: dict[str, Callable[[Fields, str, list[Omission]], Transformer]] = {
    "gpt2": _gpt2,
    "gpt_neox": _neox,
    "gptj": _gptj,
    "falcon": _falcon,
    "llama": _model(),
    "mistral": _model(near=_all, tokens=4096),
    "phi3": _model(near=_all),
    "mixtral": _model(near=_all, experts=_local_experts),
    "qwen2": _model(near=operator.ge, is_used=False, qkv_bias=True),
    "qwen3": _model(near=operator.ge, is_used=False, head_norms=True),
    "qwen2_moe": _model(
        False, lambda i, limit: i % 2 == 0 and i < limit, 4096, False, experts=_qwen_experts, qkv_bias=True
    ),
    "qwen3_moe": _model(False, _all, 4096, False, experts=_qwen_experts, head_norms=True),
    "gemma": _model(tied=True),
    "gemma2": _model(tied=True, near=_every(2), tokens=4096, further_norms=2),
    "gemma3_text": _gemma3,
    "cohere": _model(tied=True, block="shared norm"),
    "cohere2": _model(tied=True, near=_every(4), tokens=4096, block="shared norm"),
    "gpt_oss": _gpt_oss,
    "llama4_text": _llama4,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
}
