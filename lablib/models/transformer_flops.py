"""FLOPs of a transformer per token and per step, part by part, and the formulas of papers.

A multiply-add is two FLOPs, and only products of matrices count. Backward makes two products for each of forward's
(the gradients of both operands), so a step is three times a forward. For one token of a sequence of T:

    attention   2 x its matrices' parameters            mlp, experts  the same; of E experts the k active ones
    scores      2 H T (K + Z)                           queries with keys of width K, then values of width Z; in layers
                                                        with a window of w tokens min(w, T) instead of T
    head        2 D V                                   0 for the embedding, a look-up

Four conventions differ, and published numbers mix them:

    model FLOPs       required by the model: 3 forwards (MFU divides them by the peak)
    hardware FLOPs    computed: also a fourth forward of the recomputed part (HFU); the head is not recomputed
    causal            half of the scores are masked: (T + 1) / 2 of T are needed. Papers and torch count all of them;
                      FlashAttention's papers and Megatron-Bridge count half. Here `causal=True` halves. Of a window,
                      the band of w keys for every query is the whole; the first w queries see fewer
    6 N               PaLM's 6 N + 12 L H K T counts the parameters of embedding and norms as if they were multiplied

Legend: B sequences, T (in papers s) tokens of one, L (l) layers, D (h) width, H heads of width K, V vocabulary.

Source: Narayanan et al., SC21, 2021, arXiv 2104.04473, section 3.2 and appendix (96 B s l h^2 ..., with recomputation);
Korthikanti et al., 2022, arXiv 2205.05198, appendix A; Chowdhery et al., "PaLM", 2022, arXiv 2204.02311, appendix B.
Simplified: softmax, norms, activations and the optimizer count nothing; latent attention is trained unabsorbed.
"""

from lablib.cost.arrays import Numbers
from lablib.cost.attention import keys_in_window
from lablib.errors import unknown_name
from lablib.models.transformer import Transformer
from lablib.models.transformer_sizes import layer_matrices

RECOMPUTE = ("none", "selective", "full")


def forward_flops(model: Transformer, seq_len: Numbers | None = None, *, causal: bool = False) -> dict[str, Numbers]:
    """FLOPs of one token's forward pass, the mean over its sequence, by part.

    Arguments:
        seq_len: tokens of a sequence, a number or a numpy array; None means the model's `max_seq_len`.
        causal: whether masked scores are left out.

    Returns:
        "attention" (its matrices), "scores", "mlp", "experts", "shared_experts", "router", "head": of all layers.
    """
    length: Numbers = model.max_seq_len if seq_len is None else seq_len
    flops: dict[str, Numbers] = dict.fromkeys(("attention", "scores", "mlp", "experts", "shared_experts", "router"), 0)
    for is_expert_layer, layers in (
        (False, model.num_layers - model.num_expert_layers),
        (True, model.num_expert_layers),
    ):
        for matrix in layer_matrices(model, is_expert_layer=is_expert_layer):
            flops[matrix.part] += 2 * layers * matrix.active * matrix.rows * matrix.columns
    keys = model.num_layers * ((length + 1) / 2 if causal else length)
    if model.window:
        near = keys_in_window(length, model.window.tokens, model.window.is_chunked, causal)
        keys = keys - model.num_window_layers * (keys / model.num_layers - near)
    flops["scores"] = 2 * model.num_heads * keys * (model.head_size + model.value_size)
    flops["head"] = 2 * model.d_model * model.vocab_size
    return flops


def recompute_flops(
    model: Transformer, seq_len: Numbers | None = None, *, recompute: str = "none", causal: bool = False
) -> Numbers:
    """FLOPs that one token's backward pass computes a second time.

    Arguments:
        recompute: "none"; "selective" (the scores: everything between queries, keys, values and the output) or "full"
            (every layer from its input). Others as in `forward_flops`.

    Raises:
        ValueError: an unknown `recompute`.
    """
    if recompute not in RECOMPUTE:
        raise unknown_name("recompute", recompute, RECOMPUTE)
    flops = forward_flops(model, seq_len, causal=causal)
    if recompute == "full":
        return sum(flops.values()) - flops["head"]
    return flops["scores"] if recompute == "selective" else 0


def step_flops(
    model: Transformer,
    tokens: Numbers,
    seq_len: Numbers | None = None,
    *,
    recompute: str = "none",
    causal: bool = False,
    has_weight_gradients: bool = True,
) -> Numbers:
    """FLOPs of a training step of `tokens`: model FLOPs, and with `recompute` hardware FLOPs.

    Arguments:
        tokens: of the whole step, over all ranks and micro-batches.
        has_weight_gradients: False if only adapters are trained, which count nothing: then matrices have one product in
            backward, and the scores, with no weights as operands, still two.
        Others as in `recompute_flops`.
    """
    flops = forward_flops(model, seq_len, causal=causal)
    forward = sum(flops.values())
    token = 3 * forward if has_weight_gradients else 2 * forward + flops["scores"]
    return tokens * (token + recompute_flops(model, seq_len, recompute=recompute, causal=causal))


def megatron_step_flops(batch: Numbers, s: Numbers, layers: Numbers, h: Numbers, vocab_size: Numbers) -> Numbers:
    """SC21's FLOPs of a step with full recomputation: 96 B s l h^2 (1 + s/6h + V/16lh). Hardware FLOPs."""
    return 96 * batch * s * layers * h**2 * (1 + s / (6 * h) + vocab_size / (16 * layers * h))


def palm_flops_per_token(
    num_parameters: Numbers, layers: Numbers, heads: Numbers, d_head: Numbers, seq_len: Numbers
) -> Numbers:
    """PaLM's model FLOPs of one token, appendix B: 6 N + 12 L H Q T, without the mask."""
    return 6 * num_parameters + 12 * layers * heads * d_head * seq_len
