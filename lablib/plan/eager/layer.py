"""A layer, the embedding and the head in eager torch: operator by operator, each with its bytes and its launch.

A compiler or a fused kernel reads and writes a tensor once; eager torch once per operator. In tensors of R D numbers of
w bytes that each reads or writes; products (one forward, one backward for the input and one for the weight) are counted
separately:

    operator                    forward    backward
    norm                        2          3, two kernels: the input's gradient, the sums over rows
    product with bias           -          the output's gradient once more, summed over rows for the bias
    queries, keys, values       -          one product: 2 x 2 over [R, 3 D / t] (stack, clone); three: 2 x 3 over [R, D]
    attention                   flash      flash, three kernels; with context ranks: eager/ring.py
    residual                    3          3 (two gradients of one tensor are added)
    GELU over [R, F / t]        2          3
    gradient of a weight        -          3 over the weight, from the second micro-batch on: added in place

    embedding                   rows gathered, masked, positions added; backward zeros a table and adds rows to it
    loss over R V / t logits    t > 1: Megatron's: to 32 bits, largest, minus, exponential, sum; backward zeros,
                                scatter, product, sum, to 16 bits. t = 1: torch's cross-entropy in 32 bits

With sequence parallelism a column-split product keeps its gathered input, where Megatron would gather it again in
backward; the sum of the norms' gradients over the tensor ranks, once per step, is left out.

Recomputation stops as soon as backward has all its inputs: before a layer's last product, its sum over ranks and its
residual.

Legend: as layer/; w bytes per number, V vocabulary.

Source: the operators that torch 2.13 dispatches for such a layer, as a timeline of the simulator lists them;
torch/utils/checkpoint.py (the early stop).
Simplified: latent attention is taken from layer/. Mixtures of experts: eager/experts.py.
"""

from lablib.cost.arrays import Numbers, maximum
from lablib.cost.efficiency import MOST_UNSORTED
from lablib.models.transformer import Transformer
from lablib.plan import layer
from lablib.plan.eager.operators import gelu, kernel, kernels, reduction, sum_over_rows
from lablib.plan.eager.ring import core_attention
from lablib.plan.layer import Sizes, Work
from lablib.plan.machine import Machine, PassTime


def norm(machine: Machine, model: Transformer, rows: Numbers) -> Work:
    """Scale and shift (or scale alone); mean and deviation are kept, 8 bytes per row."""
    size, own = rows * model.d_model * machine.width, model.d_model * machine.width
    params = 2 if model.norm == "layer" else 1
    return Work(
        kernel(machine, 2 * size + params * own + 8 * rows, 1, "native_layer_norm"),
        kernel(machine, 3 * size + 2 * params * own + 8 * rows, 2, "native_layer_norm_backward"),
        PassTime(),
        saved_bytes=size + 8 * rows,
        accumulate=kernel(machine, 3 * own).times(params),
    )


def entrance(machine: Machine, model: Transformer, sizes: Sizes) -> Work:
    """The norm before a column-split product, which keeps its input: all rows, even if the norm has a share of them."""
    work = norm(machine, model, sizes.rows / sizes.sequence_shards)
    share = 1 - 1 / sizes.sequence_shards
    return work._replace(saved_bytes=work.saved_bytes + share * sizes.rows * model.d_model * machine.width)


def linear(
    machine: Machine, model: Transformer, rows: Numbers, k: Numbers, n: Numbers, has_bias: bool | None = None
) -> Work:
    """[rows, k] x [k, n], with its bias (None: if the model has them). Its input's producer counts the kept bytes."""
    width = machine.width
    weight = PassTime(product_s=machine.product_s(k, n, rows, is_over_tokens=True), kernels=1)
    accumulate = kernel(machine, 3 * k * n * width)
    if model.has_bias if has_bias is None else has_bias:
        weight = weight.plus(sum_over_rows(machine, (rows + 1) * n * width))
        accumulate = accumulate.plus(kernel(machine, 3 * n * width))
    return Work(
        PassTime(product_s=machine.product_s(rows, n, k), kernels=1),
        PassTime(product_s=machine.product_s(rows, k, n), kernels=1),
        weight,
        accumulate=accumulate,
    )


def exchange(machine: Machine, model: Transformer, sizes: Sizes) -> Work:
    """The sums over the tensor axis; a collective starts no kernel on the device's compute stream."""
    sums = layer.tensor_exchange(machine, model, sizes)
    return Work(sums.forward._replace(kernels=0.0), sums.input._replace(kernels=0.0), PassTime())


def residual(machine: Machine, size_bytes: Numbers) -> Work:
    return Work(kernel(machine, 3 * size_bytes), kernel(machine, 3 * size_bytes), PassTime(), saved_bytes=size_bytes)


def attention(machine: Machine, model: Transformer, sizes: Sizes) -> Work:
    """Norm, queries, keys and values, attention, output, residual."""
    if model.latent:
        return layer.attention(machine, model, sizes)
    rows, width = sizes.rows, machine.width
    outside = rows * model.d_model * width / sizes.sequence_shards
    q, kv = (
        model.num_heads / sizes.tensor * model.head_size,
        maximum(model.kv_heads / sizes.tensor, 1) * model.head_size,
    )
    work = entrance(machine, model, sizes)
    if machine.stack.is_megatron:
        work = work.plus(linear(machine, model, rows, model.d_model, q + 2 * kv))
        together = 2 * rows * (q + 2 * kv) * width
        work = work.plus(Work(PassTime(), kernels(machine, together, together), PassTime()))
    else:
        each = [linear(machine, model, rows, model.d_model, n) for n in (q, kv, kv)]
        work = work.plus(each[0]).plus(each[1]).plus(each[2])
        sums = 3 * rows * model.d_model * width
        work = work.plus(Work(PassTime(), kernels(machine, sums, sums), PassTime()))
    work = work._replace(saved_bytes=work.saved_bytes + rows * (q + 2 * kv) * width)
    if model.positions == "rotary":
        work = work.plus(layer.passes(machine, rows * (q + kv), 6, 6))
    work = work.plus(core_attention(machine, model, sizes))
    work = work.plus(linear(machine, model, rows, q, model.d_model)).plus(exchange(machine, model, sizes))
    return work.plus(residual(machine, outside))


def mlp(machine: Machine, model: Transformer, sizes: Sizes) -> Work:
    """Norm, the MLP, residual. Memory peaks in its backward pass: see eager/memory.py."""
    rows, width, hidden = sizes.rows, machine.width, model.hidden_size / sizes.tensor
    outside = rows * model.d_model * width / sizes.sequence_shards
    inner = rows * hidden * width
    work = entrance(machine, model, sizes)
    up, down = linear(machine, model, rows, model.d_model, hidden), linear(machine, model, rows, hidden, model.d_model)
    work = work.plus(up)
    if model.activation == "swiglu":
        work = work.plus(up).plus(Work(PassTime(), kernel(machine, 3 * rows * model.d_model * width), PassTime()))
        gate = Work(
            kernels(machine, 2 * inner, 3 * inner), kernels(machine, 3 * inner, 3 * inner, 3 * inner), PassTime()
        )
        work = work.plus(gate._replace(saved_bytes=4 * inner))
    else:
        work = work.plus(Work(*gelu(machine, inner), PassTime(), saved_bytes=2 * inner))
    last = down.plus(exchange(machine, model, sizes)).plus(residual(machine, outside)._replace(saved_bytes=0.0))
    # With sequence parallelism the first half of the exchange comes before the products, and is repeated.
    half = 1 - 0.5 * (sizes.sequence_shards > 1)
    skipped = last.forward._replace(tensor_s=half * last.forward.tensor_s)
    return work.plus(last)._replace(skipped=skipped, peak_bytes=inner)


def embedding(machine: Machine, model: Transformer, sizes: Sizes) -> Work:
    """Tokens (of this rank's part of the vocabulary), their sum over ranks, learned positions.

    With sequence parallelism a rank gets only the sum of its own tokens, and their positions.
    """
    width, is_split = machine.width, _is_split(machine, sizes)
    size = sizes.rows * model.d_model * width
    places, table = sizes.tokens * model.d_model * width, model.vocab_size / sizes.tensor * model.d_model * width
    masked = kernel(machine, 2 * size).times(is_split)
    # The tokens themselves, their mask and their places have too few numbers to count.
    forward = kernel(machine, 2 * size).plus(masked).plus(PassTime(kernels=1 + 5 * is_split))
    is_sorted = 1.0 * (sizes.rows > MOST_UNSORTED)
    added, sorted_first = (kernel(machine, table + size, 2, kind) for kind in ("", "embedding_dense_backward"))
    backward = added.times(1 - is_sorted).plus(sorted_first.times(is_sorted)).plus(masked)
    accumulate = kernel(machine, 3 * table)
    if model.positions == "learned":
        everywhere = model.max_seq_len * model.d_model * width
        own, there = size / sizes.sequence_shards, places / sizes.sequence_shards
        forward = forward.plus(kernels(machine, 2 * there, 2 * own + there)).plus(PassTime(kernels=1))
        backward = backward.plus(sum_over_rows(machine, own + there)).plus(kernel(machine, there + everywhere, 2))
        accumulate = accumulate.plus(kernel(machine, 3 * everywhere))
    sum_s, half_s = _sums_s(machine, sizes, size)
    forward, backward = forward._replace(tensor_s=sum_s), backward._replace(tensor_s=half_s)
    # The tokens, as 64-bit integers; for a part of the vocabulary also their rows in it and a mask.
    saved = sizes.rows * (8 + 9 * is_split) + 8 * sizes.tokens * (model.positions == "learned")
    return Work(forward, PassTime(), backward, saved_bytes=saved, accumulate=accumulate)


def head(machine: Machine, model: Transformer, sizes: Sizes) -> Work:
    """Final norm, logits, cross-entropy in 32 bits."""
    width, rows, columns = machine.width, sizes.rows, model.vocab_size / sizes.tensor
    plain = _without_bias(machine, rows, model.d_model, columns)
    if model.tied_head:
        # One parameter with two gradients, which are added first.
        table = kernel(machine, 3 * columns * model.d_model * width)
        plain = plain._replace(weight=plain.weight.plus(table), accumulate=PassTime())
    work = entrance(machine, model, sizes).plus(plain)
    sum_s, half_s = _sums_s(machine, sizes, rows * model.d_model * width)
    work = work.plus(Work(PassTime(tensor_s=half_s), PassTime(tensor_s=sum_s), PassTime()))
    size, is_split = 4 * rows * columns, _is_split(machine, sizes)
    split, whole = _split_loss(machine, sizes, size), _whole_loss(machine, size)
    loss = split.times(1.0 * is_split).plus(whole.times(1.0 - is_split))
    if width < 4:
        moved = size * (1 + width / 4)
        loss = loss.plus(Work(kernel(machine, moved, 1, "widening"), kernel(machine, moved), PassTime()))
    return work.plus(loss._replace(saved_bytes=size * (1 + is_split), peak_bytes=2 * size))


def _sums_s(machine: Machine, sizes: Sizes, size: Numbers) -> tuple[Numbers, Numbers]:
    """Seconds of a sum over the tensor ranks, in one pass; or of its half, in each pass."""
    sum_s, half_s = (machine.collective_s(name, size, sizes.tensor) for name in ("all_reduce", "all_gather"))
    is_half = 1.0 * (sizes.sequence_shards > 1)
    return sum_s + is_half * (half_s - sum_s), is_half * half_s


def _is_split(machine: Machine, sizes: Sizes) -> Numbers:
    """Whether the vocabulary is treated as split over ranks: Megatron's program does so even with one rank."""
    return (sizes.tensor > 1) | machine.stack.is_megatron


def _without_bias(machine: Machine, rows: Numbers, k: Numbers, n: Numbers) -> Work:
    return Work(
        PassTime(product_s=machine.product_s(rows, n, k, dtype=machine.plain), kernels=1),
        PassTime(product_s=machine.product_s(rows, k, n, dtype=machine.plain), kernels=1),
        PassTime(product_s=machine.product_s(k, n, rows, dtype=machine.plain, is_over_tokens=True), kernels=1),
        accumulate=kernel(machine, 3 * k * n * machine.width),
    )


def _split_loss(machine: Machine, sizes: Sizes, size: Numbers) -> Work:
    """Megatron's: three small sums over ranks, of one number per row each."""
    sums_s = 3 * machine.collective_s("all_reduce", 4 * sizes.rows, sizes.tensor)
    largest, total, mean = reduction(machine, size), reduction(machine, size), reduction(machine, 4 * sizes.rows)
    forward = kernels(machine, 2 * size, 2 * size).plus(largest).plus(total).plus(mean)
    forward = forward.plus(PassTime(tensor_s=sums_s, kernels=10))
    backward = kernels(machine, size, 2 * size, 2 * size, 3 * size).plus(PassTime(kernels=4))
    return Work(forward, backward, PassTime())


def _whole_loss(machine: Machine, size: Numbers) -> Work:
    """torch's: log-softmax, the targets picked; their gradient, and the gradient of the log-softmax."""
    forward = kernel(machine, 2 * size, 1, "_log_softmax", size / 4).plus(PassTime(kernels=2))
    backward = kernel(machine, size).plus(kernel(machine, 3 * size, 1, "_log_softmax_backward_data"))
    return Work(forward, backward, PassTime())
