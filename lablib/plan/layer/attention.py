"""Attention on one rank: norm, queries, keys and values, attention itself on H / t heads, output, residual.

    plain       one product for queries, keys and values, [R, D] x [D, (H + 2G) K / t]
    latent      down to the latents (whole on every rank), up by heads (DeepSeek-V2's MLA)
    itself      unfused: two products of B H / t matrices, and softmax and dropout over the scores; flash: one kernel
                forward, three backward; either with c context ranks in a ring of c rounds, behind which it works on

Legend, source and what is simplified: the package's own (`__init__.py`).
"""

from lablib.cost.arrays import Numbers, maximum, minimum
from lablib.models.transformer import Latent, Transformer
from lablib.plan.layer.parts import linear, passes, residual, tensor_exchange
from lablib.plan.layer.work import Sizes, Work
from lablib.plan.machine import Machine, Pass


def attention(on: Machine, model: Transformer, at: Sizes) -> Work:
    """Norm, queries, keys and values, attention, output, residual."""
    width, stack = on.width, on.stack
    rows, d_model = at.rows, model.d_model
    outside = rows * d_model / at.sequence_shards
    heads, kv_heads = model.num_heads / at.tensor, maximum(model.kv_heads / at.tensor, 1)
    work = passes(on, outside, *stack.passes_norm, saved_bytes=outside * width)
    if model.latent:
        work = work.plus(_latent(on, model, model.latent, at))
    else:
        q_width, kv_width = heads * model.head_size, 2 * kv_heads * model.head_size
        projected = linear(on, rows, d_model, q_width + kv_width)
        # With sequence parallelism the input is kept as its shard and gathered again in backward.
        work = work.plus(projected._replace(saved_bytes=projected.saved_bytes / at.sequence_shards))
        work = work._replace(saved_bytes=work.saved_bytes + rows * (q_width + kv_width) * width)
        if model.positions == "rotary":
            work = work.plus(passes(on, rows * (q_width + kv_width / 2), 2, 2))
    if stack.copies:
        work = work.plus(passes(on, rows * heads * model.head_size, 2 * stack.copies, 2 * stack.copies))
    core = core_attention(on, model, at)
    work = work.plus(core)
    out = linear(on, rows, heads * model.value_size, d_model)
    kept = out.saved_bytes if on.stack.attention == "unfused" else 0.0 * out.saved_bytes  # flash keeps it already
    work = work.plus(out._replace(saved_bytes=kept)).plus(tensor_exchange(on, model, at))
    return work.plus(residual(on, outside))


def _latent(on: Machine, model: Transformer, latent: Latent, at: Sizes) -> Work:
    """Queries, keys and values through their latents (down is whole on every rank, up is split by heads)."""
    rows, heads, width = at.rows, model.num_heads / at.tensor, on.width
    key_width = latent.d_plain + latent.d_rotary
    down = latent.kv_rank + latent.d_rotary
    work = linear(on, rows, model.d_model, down)
    if latent.query_rank:
        work = work.plus(linear(on, rows, model.d_model, latent.query_rank, keeps_input=False))
        work = work.plus(passes(on, rows * latent.query_rank, 2, 3))
        work = work.plus(linear(on, rows, latent.query_rank, heads * key_width))
    else:
        work = work.plus(linear(on, rows, model.d_model, heads * key_width, keeps_input=False))
    work = work.plus(passes(on, rows * down, 2, 3, saved_bytes=rows * down * width))
    work = work.plus(linear(on, rows, latent.kv_rank, heads * (latent.d_plain + latent.d_value)))
    kept = rows * heads * (2 * key_width + latent.d_value) * width
    return work.plus(passes(on, rows * heads * 2 * key_width, 2, 2, saved_bytes=kept))


def core_attention(on: Machine, model: Transformer, at: Sizes) -> Work:
    """Attention between its products, on H / t heads and T / c queries; with context ranks a ring of c rounds.

    In each round the keys and values of another rank arrive, in backward with their gradients, while the rank works on
    those that it has.
    """
    work = _flash(on, model, at) if on.stack.attention == "flash" else _unfused(on, model, at)
    kv_heads, d = maximum(model.kv_heads / at.tensor, 1), (model.head_size + model.value_size) / 2
    ring_bytes = 2 * at.rows * at.context * kv_heads * d * on.width
    ring_s = on.collective_s("all_gather", ring_bytes, at.context, at.tensor)
    forward, backward = _behind(work.forward, ring_s), _behind(work.input, 2 * ring_s)
    return work._replace(forward=forward, input=backward, core=forward)


def _behind(kernels: Pass, wires_s: Numbers) -> Pass:
    """Kernels, and what goes over the wires meanwhile."""
    hidden_s = minimum(wires_s, kernels.compute_s)
    return kernels._replace(context_s=wires_s - hidden_s, hidden_context_s=hidden_s)


def _unfused(on: Machine, model: Transformer, at: Sizes) -> Work:
    """Two products of B H / t matrices, and softmax and dropout over the scores."""
    heads, tokens, width = model.num_heads / at.tensor, at.tokens, on.width
    keys, d = tokens * at.context, (model.head_size + model.value_size) / 2
    pairs = at.micro_batch * heads
    scores = pairs * tokens * keys
    products = on.product_s(tokens, keys, d, pairs, on.plain) + on.product_s(tokens, d, keys, pairs, on.plain)
    backward_products = 2 * on.product_s(keys, d, tokens, pairs, on.plain, is_over_tokens=True) + products
    dropped = on.stack.has_dropout
    # Softmax: scores read and written; dropout: read, written, its mask written.
    forward = Pass(products, 0.0, on.stream_s(scores * (2 * width + dropped * (2 * width + 1))), kernels=4)
    backward = Pass(backward_products, 0.0, on.stream_s(scores * (3 * width + dropped * (2 * width + 1))), kernels=6)
    saved = scores * (width + dropped * (1 + width))
    return Work(forward, backward, Pass(), saved_bytes=saved, core_bytes=saved)


def _flash(on: Machine, model: Transformer, at: Sizes) -> Work:
    """One kernel forward, three backward."""
    heads, tokens, batch = model.num_heads / at.tensor, at.tokens, at.micro_batch
    keys, d = tokens * at.context, (model.head_size + model.value_size) / 2
    forward_s, backward_s = (on.attention_s(batch, heads, tokens, keys, d, is_back) for is_back in (False, True))
    forward, backward = Pass(attention_s=forward_s, kernels=1), Pass(attention_s=backward_s, kernels=3)
    rows = at.rows * model.num_heads / at.tensor
    saved = rows * model.value_size * on.width + rows * 4
    return Work(forward, backward, Pass(), saved_bytes=saved, core_bytes=0.0 * saved, attention_bytes=saved)
