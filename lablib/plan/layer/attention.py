"""Attention on one rank: norm, queries, keys and values, attention itself on H / t heads, output, residual.

    plain       one product for queries, keys and values, [R, D] x [D, (H + 2G) K / t]
    latent      down to the latents (whole on every rank), up by heads (DeepSeek-V2's MLA)
    itself      unfused: two products of B H / t matrices, and softmax and dropout over the scores; flash: one kernel
                forward, three backward; with c context ranks both hide a ring of c rounds

Legend, source, simplifications: `__init__.py`.
"""

from lablib.cost.arrays import Numbers, maximum, minimum
from lablib.models.transformer import Latent, Transformer
from lablib.plan.layer.parts import linear, norm, passes, residual, tensor_exchange
from lablib.plan.layer.work import Sizes, Work
from lablib.plan.machine import Machine, PassTime


def attention(machine: Machine, model: Transformer, sizes: Sizes) -> Work:
    """Norm, queries, keys and values, attention, output, residual."""
    width, stack = machine.width, machine.stack
    rows, d_model = sizes.rows, model.d_model
    outside = rows * d_model / sizes.sequence_shards
    heads, kv_heads = model.num_heads / sizes.tensor, maximum(model.kv_heads / sizes.tensor, 1)
    work = norm(machine, model, outside)
    if model.latent:
        work = work.plus(_latent(machine, model, model.latent, sizes))
    else:
        q_width, kv_width = heads * model.head_size, 2 * kv_heads * model.head_size
        projected = linear(machine, rows, d_model, q_width + kv_width)
        # With sequence parallelism the input is kept as its shard and gathered again in backward.
        work = work.plus(projected._replace(saved_bytes=projected.saved_bytes / sizes.sequence_shards))
        work = work._replace(saved_bytes=work.saved_bytes + rows * (q_width + kv_width) * width)
        if model.positions == "rotary":
            work = work.plus(passes(machine, rows * (q_width + kv_width / 2), *stack.passes_rotary))
    if stack.copies:
        work = work.plus(passes(machine, rows * heads * model.head_size, 2 * stack.copies, 2 * stack.copies))
    core = core_attention(machine, model, sizes)
    work = work.plus(core)
    out = linear(machine, rows, heads * model.value_size, d_model)
    kept = out.saved_bytes if machine.stack.attention == "unfused" else 0.0 * out.saved_bytes  # flash keeps it already
    work = work.plus(out._replace(saved_bytes=kept)).plus(tensor_exchange(machine, model, sizes))
    return work.plus(residual(machine, outside))


def _latent(machine: Machine, model: Transformer, latent: Latent, sizes: Sizes) -> Work:
    """Queries, keys and values through their latents (down is whole on every rank, up is split by heads)."""
    rows, heads, width = sizes.rows, model.num_heads / sizes.tensor, machine.width
    key_width = latent.d_plain + latent.d_rotary
    down = latent.kv_rank + latent.d_rotary
    work = linear(machine, rows, model.d_model, down)
    if latent.query_rank:
        work = work.plus(linear(machine, rows, model.d_model, latent.query_rank, keeps_input=False))
        work = work.plus(passes(machine, rows * latent.query_rank, 2, 3))
        work = work.plus(linear(machine, rows, latent.query_rank, heads * key_width))
    else:
        work = work.plus(linear(machine, rows, model.d_model, heads * key_width, keeps_input=False))
    work = work.plus(passes(machine, rows * down, 2, 3, saved_bytes=rows * down * width))
    work = work.plus(linear(machine, rows, latent.kv_rank, heads * (latent.d_plain + latent.d_value)))
    kept = rows * heads * (2 * key_width + latent.d_value) * width
    return work.plus(passes(machine, rows * heads * 2 * key_width, 2, 2, saved_bytes=kept))


def core_attention(machine: Machine, model: Transformer, sizes: Sizes) -> Work:
    """Attention between its products, on H / t heads and T / c queries; with context ranks a ring of c rounds.

    In each round a rank computes on the keys and values that it has, while another rank's arrive (in backward with
    their gradients).
    """
    work = _flash(machine, model, sizes) if machine.stack.attention == "flash" else _unfused(machine, model, sizes)
    kv_heads, d = maximum(model.kv_heads / sizes.tensor, 1), (model.head_size + model.value_size) / 2
    ring_bytes = 2 * sizes.rows * sizes.context * kv_heads * d * machine.width
    ring_s = machine.collective_s("all_gather", ring_bytes, sizes.context, sizes.tensor)
    forward, backward = (
        _behind(kernels, wires_s, machine.derating.contention)
        for kernels, wires_s in ((work.forward, ring_s), (work.input, 2 * ring_s))
    )
    return work._replace(forward=forward, input=backward, core=forward)


def _behind(kernels: PassTime, wires_s: Numbers, contention: float) -> PassTime:
    """Kernels, with communication at the same time."""
    hidden_s = minimum(wires_s, kernels.compute_s) * (1 - contention)
    return kernels._replace(context_s=wires_s - hidden_s, hidden_context_s=hidden_s)


def _unfused(machine: Machine, model: Transformer, sizes: Sizes) -> Work:
    """Two products of B H / t matrices, and softmax and dropout over the scores."""
    heads, tokens, width = model.num_heads / sizes.tensor, sizes.tokens, machine.width
    keys, d = tokens * sizes.context, (model.head_size + model.value_size) / 2
    pairs = sizes.micro_batch * heads
    scores = pairs * tokens * keys
    products = machine.product_s(tokens, keys, d, pairs, machine.plain) + machine.product_s(
        tokens, d, keys, pairs, machine.plain
    )
    backward_products = 2 * machine.product_s(keys, d, tokens, pairs, machine.plain, is_over_tokens=True) + products
    dropped = machine.stack.has_dropout
    # Dropout: scores read, written, their mask written.
    forward_s, backward_s = (
        machine.stream_s(scores * (each * width + dropped * (2 * width + 1))) for each in machine.stack.passes_scores
    )
    forward = PassTime(products, 0.0, forward_s, kernels=4)
    backward = PassTime(backward_products, 0.0, backward_s, kernels=6)
    saved = scores * (width + dropped * (1 + width))
    return Work(forward, backward, PassTime(), saved_bytes=saved, core_bytes=saved)


def _flash(machine: Machine, model: Transformer, sizes: Sizes) -> Work:
    """One kernel forward, three backward."""
    heads, tokens, batch = model.num_heads / sizes.tensor, sizes.tokens, sizes.micro_batch
    keys, d = tokens * sizes.context, (model.head_size + model.value_size) / 2
    forward_s, backward_s = (machine.attention_s(batch, heads, tokens, keys, d, is_back) for is_back in (False, True))
    forward, backward = PassTime(attention_s=forward_s, kernels=1), PassTime(attention_s=backward_s, kernels=3)
    rows = sizes.rows * model.num_heads / sizes.tensor
    saved = rows * model.value_size * machine.width + rows * 4
    return Work(forward, backward, PassTime(), saved_bytes=saved, core_bytes=0.0 * saved, attention_bytes=saved)
