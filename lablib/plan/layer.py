"""One transformer layer on one rank of a tensor-parallel group: its passes, and the bytes it keeps for backward.

A layer is products, attention and what lies between. Tensor parallelism (t ranks) gives each rank 1/t of the heads and
of the MLP's hidden width; a row-split product ends in a sum over ranks, so a layer has two all-reduces forward and two
backward, or with sequence parallelism an all-gather and a reduce-scatter in the place of each.

    products, forward     [R, D] x [D, (H + 2G) K / t],  [R, H K / t] x [H K / t, D],  [R, D] x [D, F / t] (twice if
                          gated),  [R, F / t] x [F / t, D]
    backward              for the input the transposed product; for the weight one that sums over the R tokens
    attention             B sequences, H / t heads, S queries, T keys
    communication         B S D numbers, twice forward, twice backward, in an all-reduce or in two halves
    experts               in the place of the MLP: R k / t tokens of this rank (with sequence parallelism; else R k)
                          to e ranks and back, gathered by the x ranks that share an expert: E / e products in one
                          kernel, over R k x / t rows together, of F / x hidden width

Legend: B sequences of a micro-batch, S tokens of each on this rank (T / c with c context ranks), R = B S, D width,
H and G heads of queries and of keys, K their width, F hidden width, t tensor ranks; E experts, k of them for a token.

Kept for backward (Korthikanti's accounting, arXiv 2205.05198, section 4.1): every product's input, every norm's, the
activation's, masks of one byte; of attention Q, K, V, the output and a number a row (flash), or the scores after their
softmax and, with dropout, their mask and what it left (unfused: 2 or 5 bytes a score). For a GPT of `megatron-2021`
with sequence parallelism this is R D (34 + 5 H T / D) / t, equation 4 of the paper. Of experts: the router's input,
what arrived, both sides of the activation (a token's weight is applied there, so outputs are not kept).

Source: Shoeybi et al., 2019, arXiv 1909.08053; Korthikanti et al., 2022, arXiv 2205.05198; Liu et al., "Ring
Attention", 2023, arXiv 2310.01889; DeepSeek-V2, 2024, arXiv 2405.04434 (MLA); GShard, 2020, arXiv 2006.16668 (experts);
Liu et al., "MoE Parallel Folding", 2025, arXiv 2504.14960 (which ranks share them).
Simplified: tokens are spread evenly over experts; context ranks share the causal work evenly (zigzag). With sequence
parallelism backward gathers a product's input once more, which hides behind the input's gradient (section 4.2.2) and is
left out.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from lablib.cost.arrays import Numbers, most
from lablib.models.transformer import Experts, Latent, Transformer
from lablib.plan import dispatch
from lablib.plan.machine import Machine, Pass

# Bytes of a number that is kept for a product in 8 or 4 bits: with one 8-bit scale for 16 numbers of 4 bits.
NARROW: Mapping[str, float] = MappingProxyType({"float8": 1, "float4": 0.5625})


class Sizes(NamedTuple):
    """How one layer is cut: numbers or arrays.

    `sequence_shards` divides what lies outside the products: t with sequence parallelism, else 1.
    """

    micro_batch: Numbers
    tokens: Numbers  # of each sequence, on this rank
    tensor: Numbers
    context: Numbers
    expert: Numbers
    sequence_shards: Numbers
    expert_tensor: Numbers = 1  # ranks that share each expert; they are neighbours

    @property
    def rows(self) -> Numbers:
        return 1.0 * self.micro_batch * self.tokens  # their bytes may be beyond 2^63


class Work(NamedTuple):
    """A layer's passes and what it keeps.

    Attributes:
        forward, input, weight: the passes of one micro-batch.
        core: what of the forward pass selective recomputation runs again: attention between its products.
        saved_bytes: kept from forward to backward.
        core_bytes: of which selective recomputation keeps nothing.
        peak_bytes: what backward needs besides for a moment.
        output_bytes: of its linear layers' outputs.
        attention_bytes: of attention's own output, with a number a row.
        accumulate: what every micro-batch after the first does to add to gradients, where no product does it.
        skipped: what of the forward pass recomputation leaves out.
    """

    forward: Pass
    input: Pass
    weight: Pass
    core: Pass = Pass()
    saved_bytes: Numbers = 0.0
    core_bytes: Numbers = 0.0
    peak_bytes: Numbers = 0.0
    output_bytes: Numbers = 0.0
    attention_bytes: Numbers = 0.0
    accumulate: Pass = Pass()
    skipped: Pass = Pass()

    def plus(self, other: "Work") -> "Work":
        return Work(
            self.forward.plus(other.forward),
            self.input.plus(other.input),
            self.weight.plus(other.weight),
            self.core.plus(other.core),
            self.saved_bytes + other.saved_bytes,
            self.core_bytes + other.core_bytes,
            most(self.peak_bytes, other.peak_bytes),
            self.output_bytes + other.output_bytes,
            self.attention_bytes + other.attention_bytes,
            self.accumulate.plus(other.accumulate),
            self.skipped.plus(other.skipped),
        )

    def times(self, n: Numbers) -> "Work":
        """So many of them (or a share of one)."""
        return Work(
            self.forward.times(n),
            self.input.times(n),
            self.weight.times(n),
            self.core.times(n),
            n * self.saved_bytes,
            n * self.core_bytes,
            self.peak_bytes,
            n * self.output_bytes,
            n * self.attention_bytes,
            self.accumulate.times(n),
            self.skipped.times(n),
        )


def linear(
    on: Machine,
    rows: Numbers,
    k: Numbers,
    n: Numbers,
    dtype: str = "",
    keeps_input: bool = True,
    matrices: Numbers = 1,
) -> Work:
    """A linear layer [rows, k] x [k, n]; its gradients are one product each.

    Arguments:
        dtype: of the products; the training precision by default.
        keeps_input: False where another product has kept the same input already.
        matrices: so many of them share the rows evenly, in one grouped kernel: the experts of a rank.
    """
    width = on.width
    dtype = dtype or on.precision
    cast_forward_s = cast_backward_s = 0.0
    if dtype in NARROW:
        # Operands are cast where they are made: 2 bytes read, 1 written, and a transposed copy for the backward pass.
        cast_forward_s = on.stream_s(rows * k * (width + 2))
        cast_backward_s = on.stream_s(rows * n * (width + 2))
    # Where the product does not add the weight's gradient up itself: the sum and it are read, the sum written.
    adding_s = 0.0 if on.stack.fused_accumulation else on.stream_s(matrices * k * n * on.gradient_bytes * 3)
    each = rows / matrices
    weight_s = on.product_s(k, n, each, matrices, dtype, is_over_tokens=True)
    return Work(
        Pass(product_s=on.product_s(each, n, k, matrices, dtype), memory_s=cast_forward_s, kernels=1),
        Pass(product_s=on.product_s(each, k, n, matrices, dtype), memory_s=cast_backward_s, kernels=1),
        Pass(product_s=weight_s, memory_s=adding_s, kernels=2),
        saved_bytes=rows * k * NARROW.get(dtype, width) if keeps_input else 0.0,
        output_bytes=rows * n * width,
    )


def passes(on: Machine, numbers: Numbers, forward: float, backward: float, saved_bytes: Numbers = 0.0) -> Work:
    """A kernel that reads and writes a tensor of so many numbers so many times."""
    size = numbers * on.width
    return Work(
        Pass(memory_s=on.stream_s(size * forward), kernels=1),
        Pass(memory_s=on.stream_s(size * backward), kernels=1),
        Pass(),
        saved_bytes=saved_bytes,
    )


def tensor_exchange(on: Machine, model: Transformer, at: Sizes) -> Work:
    """What one block sends over the tensor axis: a sum forward, a sum backward (or both halves of each)."""
    size = at.rows * model.d_model * on.width
    reduce_s = on.collective_s("all_reduce", size, at.tensor)
    # A reduce-scatter takes as long as an all-gather of the same size.
    halves_s = 2 * on.collective_s("all_gather", size, at.tensor)
    is_split = at.sequence_shards > 1
    once = Pass(tensor_s=reduce_s + is_split * (halves_s - reduce_s), kernels=(at.tensor > 1) * 1.0)
    return Work(once, once, Pass())


def core_attention(on: Machine, model: Transformer, at: Sizes) -> Work:
    """Attention between its products, on H / t heads and T / c queries."""
    if on.stack.attention == "flash":
        return _flash(on, model, at)
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
    return Work(forward, backward, Pass(), forward, saved_bytes=saved, core_bytes=saved)


def _flash(on: Machine, model: Transformer, at: Sizes) -> Work:
    """One kernel forward, three backward; with context ranks a ring of keys and values, behind which it works on.

    The ring has c rounds, in each the keys and values of another rank; backward their gradients travel too.
    """
    heads, tokens, batch = model.num_heads / at.tensor, at.tokens, at.micro_batch
    keys, d = tokens * at.context, (model.head_size + model.value_size) / 2
    forward_s, backward_s = (on.attention_s(batch, heads, tokens, keys, d, is_back) for is_back in (False, True))
    ring_bytes = 2 * batch * keys * model.kv_heads / at.tensor * d * on.width
    ring_s = on.collective_s("all_gather", ring_bytes, at.context, at.tensor)
    forward = Pass(attention_s=forward_s, context_s=most(0.0, ring_s - forward_s), kernels=1)
    backward = Pass(attention_s=backward_s, context_s=most(0.0, 2 * ring_s - backward_s), kernels=3)
    rows = at.rows * model.num_heads / at.tensor
    saved = rows * model.value_size * on.width + rows * 4
    return Work(forward, backward, Pass(), forward, saved_bytes=saved, core_bytes=0.0 * saved, attention_bytes=saved)


def attention(on: Machine, model: Transformer, at: Sizes) -> Work:
    """Norm, queries, keys and values, attention, output, residual."""
    width, stack = on.width, on.stack
    rows, d_model = at.rows, model.d_model
    outside = rows * d_model / at.sequence_shards
    heads, kv_heads = model.num_heads / at.tensor, most(model.kv_heads / at.tensor, 1)
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
    return work.plus(_residual(on, outside))


def _residual(on: Machine, outside: Numbers) -> Work:
    return passes(on, outside, *on.stack.passes_residual, saved_bytes=outside * on.stack.has_dropout)


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


def mlp(on: Machine, model: Transformer, at: Sizes) -> Work:
    """Norm, the MLP or the experts, residual."""
    width, stack = on.width, on.stack
    outside = at.rows * model.d_model / at.sequence_shards
    work = passes(on, outside, *stack.passes_norm, saved_bytes=outside * width)
    work = work.plus(inner_mlp(on, model, at, at.rows, model.hidden_size / at.tensor, at.sequence_shards))
    return work.plus(tensor_exchange(on, model, at)).plus(_residual(on, outside))


def inner_mlp(
    on: Machine,
    model: Transformer,
    at: Sizes,
    rows: Numbers,
    hidden: Numbers,
    shards: Numbers,
    matrices: Numbers = 1,
) -> Work:
    """Up, activation, down; of `matrices` experts the same, each with its share of the rows."""
    gated = model.activation == "swiglu"
    up = linear(on, rows, model.d_model, hidden * (2 if gated else 1), matrices=matrices)
    forward, backward = on.stack.passes_activation
    # A gated activation reads two tensors for one, and its gradient writes two.
    extra = 1 if gated else 0
    act = passes(on, rows * hidden, forward + extra, backward + 2 * extra, rows * hidden * on.width * (1 + extra))
    down = linear(on, rows, hidden, model.d_model, matrices=matrices)
    work = up._replace(saved_bytes=up.saved_bytes / shards).plus(act).plus(down)
    # In backward: the gradients of the activation and of what it read; the input and its gradient, whole again.
    whole = (shards > 1) * 2 * rows * model.d_model
    return work._replace(peak_bytes=(rows * hidden * (2 + extra) + whole) * on.width)


def experts(on: Machine, model: Transformer, mixture: Experts, at: Sizes) -> Work:
    """Norm, router, tokens to their experts and back (two all-to-alls a pass), shared experts, residual."""
    width, stack, d_model = on.width, on.stack, model.d_model
    # With sequence parallelism each tensor rank routes and sends its own tokens; else each does so with all.
    rows, is_own = at.rows / at.sequence_shards, 1.0 * (at.sequence_shards == at.tensor)
    work = passes(on, rows * d_model, *stack.passes_norm, saved_bytes=rows * d_model * width)
    work = work.plus(linear(on, rows, d_model, mixture.num_experts, on.plain))
    local, sent = mixture.num_experts / at.expert, rows * mixture.num_active
    # What arrives from all expert ranks is as much as was sent; ranks that share an expert gather theirs.
    arrived = sent * (1 + is_own * (at.expert_tensor - 1))
    work = work.plus(_dispatch(on, model, mixture, at, sent, arrived, is_own))
    routed = inner_mlp(on, model, at, arrived, mixture.d_ff / at.expert_tensor, 1, local)
    # Besides, the gradients of what the experts read and wrote.
    work = work.plus(routed._replace(peak_bytes=routed.peak_bytes + 2 * arrived * d_model * width))
    if mixture.num_shared:
        hidden = mixture.num_shared * mixture.d_ff / at.tensor
        shared = inner_mlp(on, model, at, at.rows, hidden, at.sequence_shards)
        # The router has kept their input, though not in 8 bits.
        again = 0.0 if on.is_narrow else rows * d_model * width
        work = work.plus(shared._replace(saved_bytes=shared.saved_bytes - again))
    summed = 1.0 if mixture.num_shared else 1 - is_own
    return work.plus(tensor_exchange(on, model, at).times(summed)).plus(_residual(on, rows * d_model))


def _dispatch(
    on: Machine, model: Transformer, mixture: Experts, at: Sizes, sent: Numbers, arrived: Numbers, is_own: Numbers
) -> Work:
    """Tokens to experts and back: copied k times in order of ranks, exchanged, gathered, put in order of experts."""
    row_bytes = model.d_model * on.width
    tokens = sent / mixture.num_active
    exchange_s = 2 * dispatch.exchange_s(on, mixture, tokens, row_bytes, at.expert, at.expert_tensor)
    gather_s = is_own * 2 * on.collective_s("all_gather", arrived * row_bytes, at.expert_tensor)
    is_sorted = 1.0 * (mixture.num_experts > at.expert)  # more than one expert on a rank
    copied = 2 * sent * (1 + 1 / mixture.num_active) + 4 * arrived * is_sorted
    once = Pass(
        memory_s=on.stream_s(copied * row_bytes),
        tensor_s=gather_s,
        expert_s=exchange_s,
        kernels=4 + 2 * is_sorted + 2 * is_own * (at.expert_tensor > 1),
    )
    return Work(once, once, Pass())
