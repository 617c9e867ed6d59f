"""Operators of a Transformer layer on one rank, in order, for every stack: some 40 in eager torch.

    attention   norm | queries, keys, values | rotation | attention | output | sum over ranks | residual
    MLP         norm | up (and gate) | activation | down | sum over ranks | residual
    parallel    norm (or two) | queries, .. output | up, activation, down | sum of both over ranks | residual
    experts     norm | router | tokens to their experts and back | up, activation, down of all experts of the rank |
                shared experts | sum over ranks | residual

in tensors of R D numbers, R k D (k), R E (E) and the experts' R k F (F), where eager torch differs from parts.py:

    operator                        eager, forward              eager, backward                  fused, each way
    queries, keys, values           three products, or one      2 sums; stack and clone, 2 x 2   one product
    rotation of queries and keys    parts.py, in 32 bits        parts.py; heads in order         passes_rotary
    output of rotated attention     copied, 2                   -                                -
    attention                       flash, 1 kernel; ring.py    flash, 3 kernels; ring.py        attention.py
    copies of heads                 -                           -                                2 per copy
    scores of the router            2 E, E + k                  E, E + 3 k, 3 E                  -
    places: sort, invert, divide    of 64-bit integers          -                                -
    rows to send                    2 k                         zeroed, added to: 1, 3 k + 2     2 k + 2 in all
    in order of experts, and back   2 k x, twice                2 k x, twice                     4 k x in all
    rows to their tokens            2 k                         zeroed, added to: k, 5 k         -
    times weight; summed            2 k; k + 1                  2 k + 1, k + 1, k                -
    input of router and experts     -                           3: two gradients are added       -

Legend: R tokens of this rank, D width, E experts, k of them for a token, F their hidden width over x ranks each.

Source: the operators that torch 2.13 dispatches for such layers (index_select, all_to_all_single, baddbmm, ...), as a
timeline of the simulator lists them; torch/utils/checkpoint.py: recomputation stops as soon as backward has all its
inputs, before a layer's last product, its sum over ranks and its residual (stack.py, `stops_recomputation`).
Simplified: latent attention and shared experts are fused on every stack. Ranks that share an expert gather the tokens
that arrived and scatter the sums. With sequence parallelism an eager product keeps its gathered input, where Megatron
gathers it again in backward; the sum of the norms' gradients over the tensor ranks, once per step, is left out.
"""

from lablib.cost.arrays import Numbers, maximum, minimum
from lablib.models.transformer import Experts, Latent
from lablib.plan.layer import parts
from lablib.plan.layer.attention import core_attention
from lablib.plan.layer.op import EXCHANGE, FORWARD, INPUT, Cut, Op
from lablib.plan.layer.work import Sizes

_INTEGER = 8


def layer(cut: Cut) -> list[Op]:
    """An average layer: dense ones and those with experts in their proportion."""
    model = cut.model
    if not model.experts:
        return [*attention(cut), *mlp(cut)]
    share = model.num_expert_layers / model.num_layers
    dense = mlp(cut) if share < 1 else []
    mixed = [op.repeated(share) for op in experts(cut, model.experts)]
    return [*attention(cut), *mixed, *(op.repeated(1 - share) for op in dense)]


def attention(cut: Cut) -> list[Op]:
    """Norm, queries, keys and values, attention, output, residual."""
    model, sizes, stack = cut.model, cut.sizes, cut.machine.stack
    # An eager program's input of a layer is counted with its stage (eager/memory.py).
    keeps_input = not cut.is_eager
    if model.latent:
        cut = cut._replace(is_eager=False)
    heads = model.num_heads / sizes.tensor
    # Flash attention keeps its output anyway.
    keeps = 1.0 * (stack.attention == "unfused" and not cut.is_eager)
    copies = 0 if cut.is_eager else 2 * stack.copies
    return [
        *parts.norm(cut, keeps_input),
        *(_latents(cut, model.latent) if model.latent else _heads(cut)),
        *(parts.passes(cut, "copies", cut.rows * heads * model.head_size, copies, copies) if copies else ()),
        *core_attention(cut),
        *parts.linear(cut, "output", cut.rows, heads * model.value_size, model.d_model, keeps=keeps),
        *_to_other_ranks(cut),
        *(parts.residual(cut) if model.block == "sequential" or cut.is_eager else ()),
    ]


def _to_other_ranks(cut: Cut) -> list[Op]:
    """Of attention next to an MLP, whose output is one sum with its own: only what enters norms of two kinds."""
    if cut.model.block == "sequential":
        return parts.exchange(cut)
    return [*parts.gathered(cut), *parts.summed(cut, INPUT)] if cut.model.block == "parallel" else []


def _heads(cut: Cut) -> list[Op]:
    """Queries, keys and values, kept for attention, and their rotation."""
    model, sizes, stack = cut.model, cut.sizes, cut.machine.stack
    heads, kv_heads = model.num_heads / sizes.tensor, maximum(model.kv_heads / sizes.tensor, 1)
    q, kv = heads * model.head_size, kv_heads * model.head_size
    kept = cut.rows * (q + 2 * kv) * cut.machine.width
    share, is_joined = cut.kept_share, stack.is_megatron
    made = parts.columns(cut, "queries, keys, values", cut.rows, (q, kv, kv), share, is_joined=is_joined)
    made[0] = made[0]._replace(saves=made[0].saves + kept)
    if cut.is_eager and stack.is_megatron:
        made += parts.streams("stack, clone", INPUT, 2 * kept, 2 * kept)
    if model.positions != "rotary":
        return made
    if not cut.is_eager:
        return made + parts.passes(cut, "rotation", cut.rows * (q + kv), *stack.passes_rotary)
    # Attention's output has the layout of the rotated queries: it is copied for the next product. (ring.py: anyway.)
    size, is_copied = cut.rows * q * cut.machine.width, 1.0 * ((heads > 1) & (sizes.context == 1))
    return [
        *(*made, Op("positions", size_bytes=8 * sizes.tokens)),
        *(*parts.rotation(cut, heads), *parts.rotation(cut, kv_heads)),
        Op("heads", size_bytes=2 * size, saves=size, times=is_copied),
    ]


def _latents(cut: Cut, latent: Latent) -> list[Op]:
    """Queries, keys and values through their latents (down is whole on every rank, up is split by heads)."""
    rows, width, d_model = cut.rows, cut.machine.width, cut.model.d_model
    heads = cut.model.num_heads / cut.sizes.tensor
    key_width, down, rank = latent.d_plain + latent.d_rotary, latent.kv_rank + latent.d_rotary, latent.query_rank
    kept = rows * heads * (2 * key_width + latent.d_value) * width
    if rank:
        queries = parts.linear(cut, "latents of queries", rows, d_model, rank, keeps=0.0)
        queries += parts.passes(cut, "norm of latents", rows * rank, 2, 3)
        queries += parts.linear(cut, "queries", rows, rank, heads * key_width)
    else:
        queries = parts.linear(cut, "queries", rows, d_model, heads * key_width, keeps=0.0)
    return [
        *parts.linear(cut, "latents of keys, values", rows, d_model, down),
        *queries,
        *parts.passes(cut, "norm of latents", rows * down, 2, 3, saves=rows * down * width),
        *parts.linear(cut, "keys, values", rows, latent.kv_rank, heads * (latent.d_plain + latent.d_value)),
        *parts.passes(cut, "heads", rows * heads * 2 * key_width, 2, 2, saves=kept),
    ]


def mlp(cut: Cut) -> list[Op]:
    """Norm, the MLP, residual. Next to attention the norm's input is kept already, or the output of a shared one."""
    hidden, block = cut.model.hidden_size / cut.sizes.tensor, cut.model.block
    first = parts.norm(cut, block == "sequential")
    if block == "shared norm":  # two gradients of its output; an eager program adds two of its input less
        first = [] if cut.is_eager else parts.streams("gradients added", INPUT, 3 * cut.rows * cut.row_bytes)
    inner = parts.inner_mlp(cut, "MLP", cut.rows, hidden, 0.0 if block == "shared norm" else cut.kept_share)
    ops = [*first, *inner, *parts.exchange(cut), *parts.residual(cut)]
    return _stopped(cut, ops, ("MLP down", "all-reduce", "reduce-scatter", "residual"))


def experts(cut: Cut, mixture: Experts) -> list[Op]:
    """Norm, router, tokens to their experts and back (two all-to-alls a pass), shared experts, residual."""
    machine, sizes, rows = cut.machine, cut.sizes, cut.own_rows
    # With sequence parallelism each tensor rank routes and sends its own tokens; otherwise each handles all tokens.
    is_own = 1.0 * (sizes.sequence_shards == sizes.tensor)
    local, sent = mixture.num_experts / sizes.expert, rows * mixture.num_active
    # Of even tokens as many arrive as this rank sends; ranks that share an expert gather theirs.
    load = load_of(mixture, sizes)
    arrived = load * sent * (1 + is_own * (sizes.expert_tensor - 1))
    move = _moved_one_by_one if cut.is_eager else _moved_at_once
    # Fused, also the gradients of the experts' inputs and outputs.
    hidden, moving = mixture.d_ff / sizes.expert_tensor, 2 * arrived * cut.row_bytes
    ops = [
        *parts.norm(cut),
        *parts.linear(cut, "router", rows, cut.model.d_model, mixture.num_experts, machine.plain, has_bias=False),
        *_on_wires(cut, mixture, load * rows, arrived, is_own),
        *move(cut, mixture, sent, arrived, is_own),
        *parts.inner_mlp(cut, "experts", arrived, hidden, 1.0, local, moving),
    ]
    summed = 1 - is_own
    if mixture.num_shared:
        summed, hidden = 1.0, mixture.num_shared * mixture.d_ff / sizes.tensor
        # The router has kept their input, though not in 8 bits.
        keeps = 1 / sizes.sequence_shards if cut.is_eager or machine.is_narrow else 0.0
        ops += parts.inner_mlp(cut._replace(is_eager=False), "shared experts", cut.rows, hidden, keeps)
    ops += [*parts.exchange(cut, summed), *parts.residual(cut)]
    return _stopped(cut, ops, ("sum over experts", "residual"))


def load_of(mixture: Experts, sizes: Sizes) -> Numbers:
    """Tokens of the busiest expert rank over the mean, which all tokens are e times."""
    return minimum(mixture.imbalance, sizes.expert)


def _stopped(cut: Cut, ops: list[Op], names: tuple[str, ...]) -> list[Op]:
    """The list, with those operators that recomputation does not reach on stacks where it stops early."""
    if not (cut.is_eager or cut.machine.stack.stops_recomputation):
        return ops
    return [op._replace(is_late=True) if op.name in names and op.phase == FORWARD else op for op in ops]


def _on_wires(cut: Cut, mixture: Experts, rows: Numbers, arrived: Numbers, is_own: Numbers) -> list[Op]:
    """To experts and back, in each pass."""
    ranks = (cut.sizes.expert, cut.sizes.expert_tensor)
    wires = Op("all-to-all", FORWARD, EXCHANGE, 0.0, (mixture, rows, cut.row_bytes, *ranks), "expert", 0, 2)
    size, times = arrived * cut.row_bytes, is_own * 2
    shared = Op("all-gather", FORWARD, "all_gather", size, (cut.sizes.expert_tensor,), "tensor", 0, times)
    return [wires, shared, wires._replace(phase=INPUT), shared._replace(phase=INPUT)]


def _moved_at_once(cut: Cut, mixture: Experts, sent: Numbers, arrived: Numbers, is_own: Numbers) -> list[Op]:
    """Tokens copied k times in order of ranks, and sorted by experts."""
    is_sorted = 1.0 * (mixture.num_experts > cut.sizes.expert)  # more than one expert on a rank
    copied = 2 * sent * (1 + 1 / mixture.num_active) + 4 * arrived * is_sorted
    kernels = 4 + 2 * is_sorted + 2 * is_own * (cut.sizes.expert_tensor > 1)
    size = copied * cut.row_bytes
    return [Op("tokens in order", phase, size_bytes=size, kernels=kernels) for phase in (FORWARD, INPUT)]


def _moved_one_by_one(cut: Cut, mixture: Experts, sent: Numbers, arrived: Numbers, is_own: Numbers) -> list[Op]:
    """The router's choice; rows to send, in order of experts, back in order of tokens, and summed."""
    width, size = cut.machine.width, cut.own_rows * cut.row_bytes
    scores = cut.own_rows * mixture.num_experts * width
    weights, places, sent, arrived = sent * width, sent * _INTEGER, sent * cut.row_bytes, arrived * cut.row_bytes
    # Rows of one expert, or from one rank, are in order already.
    is_sorted = 1.0 * ((mixture.num_experts > cut.sizes.expert) & (cut.sizes.expert > 1))
    ordered = [Op("order of experts", phase, size_bytes=2 * arrived, times=2 * is_sorted) for phase in (FORWARD, INPUT)]
    picked = 2 * sent + places
    choice = parts.streams("choice", FORWARD, 2 * scores, scores + weights + places)
    choice[0] = choice[0]._replace(saves=scores + weights + 3 * places)
    return [
        *choice,
        *parts.streams("choice", INPUT, scores, scores + 3 * weights + places, 3 * scores),
        # Sorted with their indices, numbered, put in their places, divided by k.
        *parts.streams("places", FORWARD, 3 * places, places, 4 * places, 2 * places),
        *ordered,
        *parts.streams("rows", FORWARD, picked, picked),
        Op("times weight", size_bytes=2 * sent, saves=sent),
        Op("sum over experts", size_bytes=sent + size),
        # The gradients of weights, of rows, and their sum; rows zeroed and added; the router's and the experts' added.
        *parts.streams("times weight", INPUT, 2 * sent + size, sent + size, sent),
        *parts.streams("rows", INPUT, sent, 5 * sent, size, 3 * sent + 2 * size, 3 * size),
    ]
