"""Embedding before the first layer; final norm, head and loss after the last: their operators on one rank.

The head is a product with V columns: for BLOOM's vocabulary of 250,880 the FLOPs of 1.4 layers, all of them on the
last stage; the loss reads V numbers per token several times, in FP32.

    embedding   reads and writes R rows of D (twice with learned positions), summed over the tensor ranks; backward
                zeroes a gradient of V / t rows, and adds R rows to it (3 g V D / t + 2 w R D bytes)
    head        a norm, [R, D] x [D, V / t] and its two gradients, a sum over the tensor ranks in backward
    loss        R V / t logits, `loss_bytes` of each: to FP32, largest, exponential, sum, pick; half of them in backward

    kept        R D / t or R D masks of dropout; the inputs of norm and head; `loss_saved_bytes` of each logit

One by one, in eager torch:

    embedding   rows gathered, masked, positions added; backward zeroes a table and adds rows to it, sorted if many
    loss        t > 1: Megatron's: to 32 bits, largest, minus, exponential, sum; backward zeroes, scatter, product, sum,
                to 16 bits. t = 1: torch's cross-entropy in 32 bits

Legend: `__init__.py`; g bytes of a gradient, w of any other number. Each of the t tensor ranks holds V / t rows of both
tables, rounded up.

Source: Shoeybi et al., 2019, arXiv 1909.08053, section 3 (vocabulary-parallel embedding and cross-entropy); Korthikanti
et al., 2022, arXiv 2205.05198, section 4.3 (their activations); for eager torch as operators.py.
Simplified: fused, the kernels of the embedding and of the loss are counted as 5 each way, and 10 and 5: an estimate.
"""

from lablib.cost.arrays import Numbers, ceil_div
from lablib.cost.efficiency import MOST_UNSORTED
from lablib.plan.layer.op import ACCUMULATE, FORWARD, INPUT, WEIGHT, Cut, Op
from lablib.plan.layer.parts import gathered, linear, norm, streams, summed


def embedding(cut: Cut) -> list[Op]:
    """Tokens (of this rank's part of the vocabulary), their sum over ranks, learned positions."""
    return _embedding_one_by_one(cut) if cut.is_eager else _embedding_at_once(cut)


def _embedding_at_once(cut: Cut) -> list[Op]:
    """The mask of the dropout is kept, and the tokens."""
    machine, model, sizes = cut.machine, cut.model, cut.sizes
    size, table = cut.rows * cut.row_bytes, ceil_div(model.vocab_size, sizes.tensor) * model.d_model
    masks = cut.own_rows * model.d_model * machine.stack.has_dropout
    moved = size * (4 if model.positions == "learned" else 2)
    lookup = []
    if machine.stack.embeds_by_product:
        # Without gradients of the one-hot rows, which are written and read by each product.
        one_hot = 2 * cut.rows * machine.width * table / model.d_model
        products = linear(cut, "lookup", cut.rows, table / model.d_model, model.d_model, machine.plain, has_bias=False)
        lookup = [op for op in products if op.phase in (FORWARD, WEIGHT)]
        lookup += [Op("one-hot rows", phase, size_bytes=one_hot) for phase in (FORWARD, WEIGHT)]
    return [
        *lookup,
        Op("embedding", FORWARD, size_bytes=moved, kernels=5, saves=masks + cut.rows * 8),
        Op("all-reduce", FORWARD, "all_reduce", size, (sizes.tensor,), "tensor", 0),
        Op("embedding", WEIGHT, size_bytes=table * machine.gradient_bytes * 3 + size * 2, kernels=5),
    ]


def _embedding_one_by_one(cut: Cut) -> list[Op]:
    """With sequence parallelism a rank gets only the sum of its own tokens, and their positions."""
    model, sizes, size, is_split = cut.model, cut.sizes, cut.rows * cut.row_bytes, _is_split(cut)
    table, is_sorted = model.vocab_size / sizes.tensor * cut.row_bytes, 1.0 * (cut.rows > MOST_UNSORTED)
    has_positions = model.positions == "learned"
    # The tokens, as 64-bit integers; for a part of the vocabulary also their rows in it and a mask.
    saves = cut.rows * (8 + 9 * is_split) + 8 * sizes.tokens * has_positions
    added = Op("rows added", WEIGHT, size_bytes=table + size, kernels=2, times=1 - is_sorted)
    ops = [
        Op("rows", FORWARD, size_bytes=2 * size, saves=saves),
        Op("rows masked", FORWARD, size_bytes=2 * size, times=is_split),
        # The tokens themselves, their mask and their places have too few numbers to count.
        Op("tokens", FORWARD, kernels=1 + 5 * is_split),
        *summed(cut, FORWARD),
        added,
        added._replace(kind="embedding_dense_backward", times=is_sorted),
        Op("rows masked", WEIGHT, size_bytes=2 * size, times=is_split),
        Op("table", ACCUMULATE, size_bytes=3 * table),
        *gathered(cut, WEIGHT),
    ]
    if not has_positions:
        return ops
    everywhere, own = model.max_seq_len * cut.row_bytes, cut.own_rows * cut.row_bytes
    there = sizes.tokens / sizes.sequence_shards * cut.row_bytes
    return [
        *ops,
        *streams("positions", FORWARD, 2 * there, 2 * own + there),
        Op("places", FORWARD),
        Op("positions", WEIGHT, "sum over rows", own + there),
        Op("positions", WEIGHT, size_bytes=there + everywhere, kernels=2),
        Op("positions", ACCUMULATE, size_bytes=3 * everywhere),
    ]


def head(cut: Cut) -> list[Op]:
    """Final norm, logits and loss, which eager torch computes in 32 bits."""
    machine, model, sizes, is_eager = cut.machine, cut.model, cut.sizes, cut.is_eager
    columns = model.vocab_size / sizes.tensor if is_eager else ceil_div(model.vocab_size, sizes.tensor)
    logits = linear(
        cut, "logits", cut.rows, model.d_model, columns, machine.plain, keeps=cut.kept_share, has_bias=False
    )
    if is_eager and model.tied_head:
        # One parameter with two gradients, which are added first.
        logits = [op._replace(phase=WEIGHT) if op.phase == ACCUMULATE else op for op in logits]
    # An eager program's last layer is counted with its stage (eager/memory.py).
    ops = [*norm(cut, keeps_input=not is_eager), *logits]
    if is_eager:
        return [*ops, *gathered(cut, FORWARD), *summed(cut, INPUT), *_loss_one_by_one(cut, 4 * cut.rows * columns)]
    size, kernels = cut.rows * cut.row_bytes, (sizes.tensor > 1) * 1.0
    return [
        *ops,
        Op("all-reduce", INPUT, "all_reduce", size, (sizes.tensor,), "tensor", kernels),
        *_loss_at_once(cut, cut.rows * columns),
    ]


def _loss_at_once(cut: Cut, logits: Numbers) -> list[Op]:
    stack = cut.machine.stack
    peak = stack.loss_peak_bytes
    split = peak if stack.split_loss_peak_bytes is None else stack.split_loss_peak_bytes
    peak = peak + (cut.sizes.tensor > 1) * (split - peak)
    loss = Op("loss", FORWARD, size_bytes=logits * stack.loss_bytes / 2, kernels=10)
    backward = loss._replace(phase=INPUT, kernels=5, holds=logits * peak)
    return [loss._replace(saves=logits * stack.loss_saved_bytes), backward]


def _loss_one_by_one(cut: Cut, size: Numbers) -> list[Op]:
    """Of logits of `size` bytes in 32 bits."""
    rows, width, is_split = cut.rows, cut.machine.width, _is_split(cut)
    # Megatron's has three small sums over ranks, of one number per row each.
    split = [
        *streams("minus, exponential", FORWARD, 2 * size, 2 * size),
        *streams("largest, sum, mean", FORWARD, size, size, 4 * rows, kind="sum"),
        Op("of rows", FORWARD, kernels=10),
        Op("all-reduce", FORWARD, "all_reduce", 4 * rows, (cut.sizes.tensor,), "tensor", 0, 3),
        *streams("loss", INPUT, size, 2 * size, 2 * size, 3 * size),
        Op("of rows", INPUT, kernels=4),
    ]
    # torch's: log-softmax, the targets picked; their gradient, and the gradient of the log-softmax.
    whole = [
        Op("log-softmax", FORWARD, "_log_softmax", 2 * size, (size / 4,)),
        Op("targets", FORWARD, kernels=2),
        Op("targets", INPUT, size_bytes=size),
        Op("log-softmax", INPUT, "_log_softmax_backward_data", 3 * size),
    ]
    ops = [op.repeated(1.0 * is_split) for op in split] + [op.repeated(1.0 - is_split) for op in whole]
    if width < 4:
        moved = size * (1 + width / 4)
        ops += [Op("to 32 bits", FORWARD, "widening", moved), Op("to 16 bits", INPUT, size_bytes=moved)]
    return [*ops, Op("logits", FORWARD, kernels=0, saves=size * (1 + is_split), holds=2 * size)]


def _is_split(cut: Cut) -> Numbers:
    """Whether the vocabulary is treated as split over ranks: Megatron's program does so even with one rank."""
    return (cut.sizes.tensor > 1) | cut.machine.stack.is_megatron
