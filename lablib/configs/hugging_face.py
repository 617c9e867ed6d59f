"""Sizes of a transformer from the config.json of Hugging Face's transformers.

    model_type                     attention                    MLP
    gpt2                           all heads, with biases       GELU
    llama, mistral                 grouped                      SwiGLU
    qwen2, qwen3                   grouped                      SwiGLU
    gemma, gemma2, gemma3_text     grouped, wide heads          GeGLU (three matrices, as SwiGLU)
    mixtral, qwen2_moe, qwen3_moe  grouped                      experts
    deepseek_v2, deepseek_v3       latent (MLA)                 experts, dense layers at the bottom

`Transformer` has no field for biases of single matrices, norms of queries and keys, further norms of a layer, and
windows of attention. The reader lists them with their parameters, about a ten-thousandth of a model; a window is priced
as full attention. Dense layers between layers with experts are refused.

Source: the configuration and model classes of transformers 5.24 (github.com/huggingface/transformers,
src/transformers/models). tests/configs/test_hugging_face.py has the parameters that these classes make.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lablib.configs.reading import Fields, Omission, Reading, read_json
from lablib.errors import unknown_name
from lablib.models.transformer import Experts, Latent, Transformer
from lablib.signature import checked

# These change neither time nor memory of a training step by a part that the planner has.
_WITHOUT_COST = frozenset(
    {
        "_name_or_path", "architectures", "torch_dtype", "dtype", "transformers_version", "use_cache", "auto_map",
        "bos_token_id", "eos_token_id", "pad_token_id", "chunk_size_feed_forward", "is_encoder_decoder",
        "initializer_range", "initializer_factor", "rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps",
        "rope_theta", "rope_scaling", "rope_parameters", "rope_local_base_freq", "rope_interleave",
        "partial_rotary_factor", "pretraining_tp", "output_attentions", "output_hidden_states", "return_dict",
        "id2label", "label2id", "problem_type", "cache_implementation", "hidden_activation", "activation_function",
        "hidden_act", "attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop", "hidden_dropout", "use_mrope",
        "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
        "task_specific_params", "n_ctx", "scale_attn_weights", "scale_attn_by_inverse_layer_idx",
        "reorder_and_upcast_attn", "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping",
        "router_aux_loss_coef", "router_jitter_noise", "output_router_logits", "norm_topk_prob", "aux_loss_alpha",
        "scoring_func", "topk_method", "topk_group", "n_group", "routed_scaling_factor", "seq_aux", "ep_size",
        "quantization_config", "max_window_layers", "use_bidirectional_attention", "add_cross_attention",
        "sliding_window_pattern", "_sliding_window_pattern",
    }
)  # fmt: skip
_GATED = ("silu", "swish", "gelu", "gelu_pytorch_tanh", "gelu_new", "gelu_fast", "relu")


@checked
def read_hugging_face(path: str | Path) -> Reading[Transformer]:
    """The transformer of a config.json, or of a folder with one.

    Raises:
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
    model = _READERS[kind](fields, name, omissions)
    fields.skip(_WITHOUT_COST)
    return Reading(model, tuple(omissions), fields.unread())


def _gpt2(fields: Fields, name: str, _: list[Omission]) -> Transformer:
    return Transformer(
        name,
        num_layers=fields.count("n_layer"),
        d_model=fields.count("n_embd"),
        num_heads=fields.count("n_head"),
        vocab_size=fields.count("vocab_size"),
        max_seq_len=fields.count("n_positions"),
        d_ff=fields.optional_count("n_inner"),
        tied_head=fields.flag("tie_word_embeddings", True),
        source="config.json, gpt2",
    )


def _common(fields: Fields, kind: str, tied: bool = False) -> dict[str, Any]:
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
        "source": f"config.json, {kind}",
    }


def _dense(kind: str, tied: bool = False, **parts: Any) -> Callable[..., Transformer]:
    """A reader of a dense model. `parts`: as in `_omitted`."""

    def read(fields: Fields, name: str, omissions: list[Omission]) -> Transformer:
        model = Transformer(name, d_head=fields.optional_count("head_dim"), **_common(fields, kind, tied))
        omissions += _omitted(fields, model, **parts)
        return model

    return read


def _omitted(
    fields: Fields,
    model: Transformer,
    qkv_bias: bool = False,
    head_norms: bool = False,
    further_norms: int = 0,
    has_window: bool = True,
) -> list[Omission]:
    """Parts that `Transformer` has no field for.

    Args:
        qkv_bias: biases of query, key and value by default.
        head_norms: a norm of the queries and one of the keys.
        further_norms: norms of a layer beyond two.
        has_window: whether `sliding_window` is used by default.
    """
    layers, d, found = model.num_layers, model.d_model, list[Omission]()
    wide = (model.num_heads + 2 * model.kv_heads) * model.head_size
    if qkv_bias and fields.flag("qkv_bias", True):
        found.append(Omission("biases of query, key and value", layers * wide))
    elif fields.flag("attention_bias", False):
        found.append(Omission("biases of the attention", layers * (wide + d)))
    if fields.flag("mlp_bias", False):
        found.append(Omission("biases of the MLP", layers * (2 * model.hidden_size + d)))
    if head_norms:
        found.append(Omission("norms of queries and keys", layers * 2 * model.head_size))
    if further_norms:
        found.append(Omission(f"{further_norms} further norms of each layer", layers * further_norms * d))
    window = fields.count("sliding_window", 0, minimum=0)
    layer_types = fields.items("layer_types", str)
    is_used = fields.flag("use_sliding_window", has_window) and ("sliding_attention" in layer_types or not layer_types)
    if window and is_used and window < model.max_seq_len:
        some = " in some layers" if "full_attention" in layer_types else ""
        found.append(Omission(f"the window of {window:,} tokens{some}: attention is priced over all tokens before"))
    return found


def _mixtral(fields: Fields, name: str, omissions: list[Omission]) -> Transformer:
    sizes = _common(fields, "mixtral")
    experts = Experts(fields.count("num_local_experts"), fields.count("num_experts_per_tok"), sizes["d_ff"])
    model = Transformer(name, d_head=fields.optional_count("head_dim"), experts=experts, **sizes)
    omissions += _omitted(fields, model)
    return model


def _qwen_moe(kind: str, **parts: bool) -> Callable[..., Transformer]:
    def read(fields: Fields, name: str, omissions: list[Omission]) -> Transformer:
        sizes, d_ff = _common(fields, kind), fields.count("moe_intermediate_size")
        shared = fields.count("shared_expert_intermediate_size", 0, minimum=0)
        if shared % d_ff:
            raise ValueError(
                f"shared_expert_intermediate_size must be a multiple of moe_intermediate_size: got {shared} and {d_ff}"
            )
        every, dense = fields.count("decoder_sparse_step", 1), sorted(fields.items("mlp_only_layers", int))
        if every != 1 or dense != list(range(len(dense))):
            raise ValueError(
                f"layers without experts must be the first ones: got decoder_sparse_step={every} and "
                f"mlp_only_layers={dense}; the planner has no other arrangement"
            )
        num_experts = fields.count("num_experts" if "num_experts" in fields else "num_local_experts")
        experts = Experts(num_experts, fields.count("num_experts_per_tok"), d_ff, shared // d_ff, len(dense))
        model = Transformer(name, d_head=fields.optional_count("head_dim"), experts=experts, **sizes)
        if shared:
            omissions.append(Omission("the gate of the shared expert", model.num_expert_layers * model.d_model))
        omissions += _omitted(fields, model, **parts)
        return model

    return read


def _deepseek(kind: str) -> Callable[..., Transformer]:
    def read(fields: Fields, name: str, omissions: list[Omission]) -> Transformer:
        sizes = _common(fields, kind)
        if (every := fields.count("moe_layer_freq", 1)) != 1:
            raise ValueError(
                f"every layer above the first ones must have experts: got moe_layer_freq={every}; the planner has no "
                "other arrangement"
            )
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
            num_dense_layers=fields.count("first_k_dense_replace", 0, minimum=0),
        )
        model = Transformer(name, latent=latent, experts=experts, **sizes)
        fields.skip(frozenset({"head_dim", "qk_head_dim"}))  # follow from the latent
        if modules := fields.count("num_nextn_predict_layers", 0, minimum=0):
            omissions.append(Omission(f"{modules} further prediction modules (num_nextn_predict_layers)"))
        omissions += _omitted(fields, model)
        return model

    return read


_READERS: dict[str, Callable[[Fields, str, list[Omission]], Transformer]] = {
    "gpt2": _gpt2,
    "llama": _dense("llama"),
    "mistral": _dense("mistral"),
    "mixtral": _mixtral,
    "qwen2": _dense("qwen2", qkv_bias=True, has_window=False),
    "qwen3": _dense("qwen3", head_norms=True, has_window=False),
    "qwen2_moe": _qwen_moe("qwen2_moe", qkv_bias=True, has_window=False),
    "qwen3_moe": _qwen_moe("qwen3_moe", head_norms=True, has_window=False),
    "gemma": _dense("gemma", tied=True),
    "gemma2": _dense("gemma2", tied=True, further_norms=2),
    "gemma3_text": _dense("gemma3_text", tied=True, head_norms=True, further_norms=2),
    "deepseek_v2": _deepseek("deepseek_v2"),
    "deepseek_v3": _deepseek("deepseek_v3"),
}
