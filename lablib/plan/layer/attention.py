"""Operators of attention between its products, on H / t heads of a rank: one fused kernel, or scores in memory.

    unfused     two products of B H / t matrices, and softmax and dropout over the scores: 4 kernels, 6 in backward
    flash       one kernel forward, three backward

With c context ranks a rank has T / c queries. Keys and values travel in a ring of c rounds: in each, a rank computes on
those that it has, while another rank's arrive (in backward with their gradients). So the wires hide behind the kernels.
The ring of eager torch: ring.py.

In layers with a window, a flash kernel skips the blocks of keys outside of it (cost/attention.py). Unfused attention
computes and keeps all scores, and context ranks exchange all keys and values, as Transformer Engine's do with windows.

Legend, source, simplifications: `__init__.py`.
"""

from lablib.cost.arrays import highest, is_array, maximum
from lablib.plan.layer.op import ATTENTION, FORWARD, INPUT, PRODUCT, RING, Cut, Op


def core_attention(cut: Cut) -> list[Op]:
    """Attention itself, by the kernel of the stack."""
    ops = _flash(cut) if cut.machine.stack.attention == "flash" else _unfused(cut)
    context, kv_heads = cut.sizes.context, maximum(cut.model.kv_heads / cut.sizes.tensor, 1)
    size = 2 * cut.rows * context * kv_heads * _width(cut) * cut.machine.width
    wires = Op("keys, values", FORWARD, "all_gather", size, (context, cut.sizes.tensor), "context", 0)
    ops = [op._replace(is_core=True) for op in (*ops, wires, wires._replace(phase=INPUT, times=2))]
    if not cut.is_eager or highest(context) == 1:
        return ops
    is_ring = 1.0 * (context > 1)
    ring = Op("attention in a ring", kind=RING, shape=(cut.model, cut.sizes), times=is_ring)
    return [*(op.repeated(1 - is_ring) for op in ops), ring] if is_array(is_ring) else [ring]


def _width(cut: Cut) -> float:
    """Of keys and of values, on average."""
    return (cut.model.head_size + cut.model.value_size) / 2


def _flash(cut: Cut) -> list[Op]:
    """The output is kept, and a number of 32 bits per row."""
    heads, tokens = cut.model.num_heads / cut.sizes.tensor, cut.sizes.tokens
    shape = (cut.sizes.micro_batch, heads, tokens, tokens * cut.sizes.context, _width(cut))
    rows = cut.rows * heads
    saves = rows * cut.model.value_size * cut.machine.width + rows * 4
    ops = [
        Op("attention", FORWARD, ATTENTION, shape=(*shape, False), saves=saves),
        Op("attention", INPUT, ATTENTION, shape=(*shape, True), kernels=3),
    ]
    share = cut.model.num_window_layers / cut.model.num_layers
    if not share:
        return ops
    near = [op._replace(shape=(*op.shape, None, cut.model.window), times=share) for op in ops]
    return [*near, *(op.repeated(1 - share) for op in ops)] if share < 1 else near


def _unfused(cut: Cut) -> list[Op]:
    """The scores after the softmax are kept, and with dropout their mask and the result."""
    machine, stack, tokens = cut.machine, cut.machine.stack, cut.sizes.tokens
    width, d, keys, dtype = machine.width, _width(cut), tokens * cut.sizes.context, machine.plain
    pairs = cut.sizes.micro_batch * (cut.model.num_heads / cut.sizes.tensor)
    scores, dropped = pairs * tokens * keys, stack.has_dropout
    # Dropout: scores read, written, their mask written.
    passes = stack.passes_scores
    if machine.plain == "bfloat16":
        passes = [one + more for one, more in zip(passes, stack.passes_bfloat16_scores, strict=True)]
    moved = [scores * (each * width + dropped * (2 * width + 1)) for each in passes]
    both = [Op("scores", kind=PRODUCT, shape=(tokens, keys, d, pairs, dtype))]
    both += [Op("values", kind=PRODUCT, shape=(tokens, d, keys, pairs, dtype))]
    over_tokens = Op("gradients", INPUT, PRODUCT, shape=(keys, d, tokens, pairs, dtype, True))
    return [
        *both,
        Op("softmax", FORWARD, size_bytes=moved[0], kernels=2, saves=scores * (width + dropped * (1 + width))),
        *(op._replace(phase=INPUT) for op in both),
        *[over_tokens] * 2,
        Op("softmax", INPUT, size_bytes=moved[1], kernels=2),
    ]
