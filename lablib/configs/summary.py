"""A model in one sentence, as a reader understood it: layers, heads, windows, MLP or experts, parameters."""

from lablib.models import Transformer, transformer_parameters

_MATRICES = {"gelu": "two matrices", "swiglu": "three matrices"}
_NORMS = {"sequential": "", "parallel": ", each with a norm", "shared norm": " on one norm"}


def summary(model: Transformer) -> str:
    """The sizes of a model that a prediction depends on."""
    parameters, mixture, latent = transformer_parameters(model), model.experts, model.latent
    heads = f"{model.num_heads} heads of {model.head_size}"
    if latent:
        heads += f" (keys and values from a latent of {latent.kv_rank})"
    elif model.kv_heads < model.num_heads:
        heads += f" ({model.kv_heads} of keys and values)"
    block = f", attention next to the MLP{_NORMS[model.block]}" if model.block != "sequential" else ""
    parts = [f"{model.num_layers} layers of width {model.d_model:,}{block}", heads]
    if model.window and model.num_window_layers:
        near = "within chunks of" if model.window.is_chunked else "to the last"
        parts.append(f"attention {near} {model.window.tokens:,} tokens in {model.num_window_layers} layers")
    dense = model.num_layers - model.num_expert_layers
    if dense:
        where = f" in {dense} layers" if mixture else ""
        parts.append(f"an MLP of {_MATRICES[model.activation]}, {model.hidden_size:,} wide{where}")
    if mixture and model.num_expert_layers:
        shared = f" and {mixture.num_shared} shared" if mixture.num_shared else ""
        each = f"{mixture.num_experts} experts, {mixture.d_ff:,} wide, {mixture.num_active}{shared} per token"
        parts.append(f"{each}, in {model.num_expert_layers} layers")
    parts.append(f"{'a tied' if model.tied_head else 'its own'} head over {model.vocab_size:,} tokens")
    count = f"{parameters.total:,} parameters"
    if parameters.active < parameters.total:
        count += f", {parameters.active:,} of them for a token"
    return f"{'; '.join(parts)}; {count}"
