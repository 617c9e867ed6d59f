"""Parts of a layer as lists of operators: norm, linear layers, kernels between them, sums over the tensor axis.

Eager torch reads and writes a tensor once per operator. A stack with fused kernels replaces a run of operators by one
kernel, which reads and writes the tensor as often as `Stack` states; the run's small operators are gone with it.

    part                        eager, forward and backward                                       fused, in one kernel
    norm                        2; 3 in two kernels: the input's gradient, the sums over rows     passes_norm
    linear                      a product; one for the input, one for the weight                  the same
      its bias                  -; the output's gradient once more, summed over rows              -
      several on one input      each its own; their gradients are added, 3 per addition           one product
    activation, GELU            2; 3                                                              passes_activation
      gated (SiLU, product)     2, 3; three times 3                                               and 1, 2 more
    residual                    3; 3 (two gradients of one tensor are added)                      passes_residual
    sum over the tensor ranks   an all-reduce; with sequence parallelism its two halves           the same
    gradient of a weight        3 over the weight, from the second micro-batch on, added in place the same, or in the
                                                                                                  product

Legend, source: `__init__.py`; int8: google/aqt, `config_v3`, as MaxText calls it (layers/quantizations.py, 3eb77db):
all three products have 8 bits, with a scale for each row of an operand.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from lablib.cost.arrays import Numbers
from lablib.plan.layer.op import ACCUMULATE, FORWARD, INPUT, PRODUCT, WEIGHT, Cut, Op

# Bytes per number kept for a product in 8 or 4 bits: 16 numbers of 4 bits share an 8-bit scale.
NARROW: Mapping[str, float] = MappingProxyType({"float8": 1, "float4": 0.5625, "int8": 1})


def streams(name: str, phase: str, *sizes_bytes: Numbers, kind: str = "") -> list[Op]:
    """Streaming kernels, one after another."""
    return [Op(name, phase, kind, size_bytes) for size_bytes in sizes_bytes]


def passes(cut: Cut, name: str, numbers: Numbers, forward: float, backward: float, saves: Numbers = 0.0) -> list[Op]:
    """A kernel that reads and writes a tensor of `numbers` elements so many times."""
    size = numbers * cut.machine.width
    return [Op(name, FORWARD, size_bytes=size * forward, saves=saves), Op(name, INPUT, size_bytes=size * backward)]


def norm(cut: Cut, keeps_input: bool = True) -> list[Op]:
    """Scale and shift (or scale alone) of a rank's own rows; eager torch keeps two 32-bit numbers (or one) per row."""
    model, stack, size = cut.model, cut.machine.stack, cut.own_rows * cut.row_bytes
    if not cut.is_eager:
        reads = stack.passes_rms_norm if model.norm == "rms" and stack.passes_rms_norm else stack.passes_norm
        return passes(cut, "norm", cut.own_rows * model.d_model, *reads, saves=keeps_input * size)
    params, kind = (2, "native_layer_norm") if model.norm == "layer" else (1, "_fused_rms_norm")
    per_row = 4 * params * cut.own_rows
    moved = (2 * size + params * cut.row_bytes + per_row, 3 * size + 2 * params * cut.row_bytes + per_row)
    return [
        Op("norm", FORWARD, kind, moved[0], saves=keeps_input * size + per_row),
        Op("norm", INPUT, f"{kind}_backward", moved[1], kernels=2),
        Op("norm", ACCUMULATE, size_bytes=3 * cut.row_bytes, times=params),
    ]


def rotation(cut: Cut, heads: Numbers) -> list[Op]:
    """Rotation of queries or of keys by eager torch, in 32 bits: products of halves with cosines and with sines.

    The angles of a layer, of 64 bits, have no gradient. In backward each half's gradient is put into zeros, and heads
    are put next to each other, as the products before have them.
    """
    numbers = cut.rows * heads * cut.model.head_size
    width, pairs, tokens = cut.machine.width, cut.model.head_size / 2, cut.sizes.tokens
    angles = tokens * pairs
    to_16_bits = [(4 + width) * numbers] if width < 4 else []
    halves = 2 * numbers * width  # both gradients put together: a half read, zeros and the half written; then added
    return [
        *streams("frequencies", FORWARD, 8 * pairs, *[16 * pairs] * 3),
        *streams("angles", FORWARD, 16 * tokens, 8 * (tokens + pairs + angles)),
        *streams("cosines, sines", FORWARD, *[16 * angles] * 2),
        *[Op("cosines, sines", size_bytes=12 * angles, saves=4 * angles)] * 2,
        *streams("products", FORWARD, *[(width + 4) / 2 * numbers + 4 * angles] * 4),
        *streams("rotated", FORWARD, *[6 * numbers] * 2, 8 * numbers, *to_16_bits),
        *streams("to 32 bits", INPUT, *to_16_bits, kind="widening"),
        *streams(
            "products", INPUT, 4 * numbers, *[4 * numbers + 4 * angles] * 4, *[each / 2 for each in to_16_bits] * 4
        ),
        *streams("halves", INPUT, *[3 / 4 * halves] * 4, 3 / 2 * halves),
        Op("heads", INPUT, size_bytes=halves, times=1.0 * (heads > 1)),
    ]


def linear(
    cut: Cut,
    name: str,
    rows: Numbers,
    k: Numbers,
    n: Numbers,
    dtype: str = "",
    keeps: Numbers = 1.0,
    matrices: Numbers | None = None,
    has_bias: bool = True,
) -> list[Op]:
    """[rows, k] x [k, n] and its gradients, one product each.

    Arguments:
        dtype: of the products; the training precision by default.
        keeps: share of its input that is kept for it; 0 if another operator keeps the same tensor.
        matrices: that share the rows evenly, in one grouped kernel: the experts of a rank.
        has_bias: if the model has biases.
    """
    machine, width, dtype = cut.machine, cut.machine.width, dtype or cut.machine.precision
    count = 1 if matrices is None else matrices
    each, added = rows / count, 3 * count * k * n * machine.gradient_bytes
    kept = keeps * rows * k * NARROW.get(dtype, width)
    ops = [
        Op(name, FORWARD, PRODUCT, shape=(each, n, k, count, dtype), saves=kept, makes=rows * n * width),
        Op(name, INPUT, PRODUCT, shape=(each, k, n, count, dtype)),
        Op(name, WEIGHT, PRODUCT, shape=(k, n, each, count, dtype, True)),
        # With fused accumulation the product adds to the sum.
        Op(name, ACCUMULATE, size_bytes=0.0 if machine.stack.fused_accumulation else added),
    ]
    if dtype == "int8":
        # Both operands of each product: read for the scales of their rows, read again, and written; scales are along
        # the dimension that remains, so no operand serves two products.
        sides = ((FORWARD, rows * k + count * k * n), (INPUT, rows * n + count * k * n), (WEIGHT, rows * (k + n)))
        ops += [Op("cast", phase, size_bytes=numbers * (2 * width + 1), kernels=0) for phase, numbers in sides]
    elif dtype in NARROW:
        # Operands are cast by their producer: 2 bytes read, 1 written, and a transposed copy for the backward pass.
        ops += [
            Op("cast", phase, size_bytes=rows * numbers * (width + 2), kernels=0)
            for phase, numbers in ((FORWARD, k), (INPUT, n))
        ]
    if cut.is_eager and cut.model.has_bias and has_bias:
        size = n * width
        ops += [Op("bias", WEIGHT, "sum over rows", (rows + (matrices is None)) * size)]
        ops += [Op("bias", ACCUMULATE, size_bytes=3 * count * size)]
    return ops


def columns(
    cut: Cut,
    name: str,
    rows: Numbers,
    widths: Sequence[Numbers],
    keeps: Numbers,
    matrices: Numbers | None = None,
    is_joined: bool = False,
) -> list[Op]:
    """Linear layers of these widths on one input of D numbers: a single product if `is_joined`, and where fused."""
    d_model = cut.model.d_model
    if is_joined or not cut.is_eager:
        return linear(cut, name, rows, d_model, sum(widths), keeps=keeps, matrices=matrices)
    each = [
        op
        for i, n in enumerate(widths)
        for op in linear(cut, name, rows, d_model, n, keeps=0.0 if i else keeps, matrices=matrices)
    ]
    return each + streams("gradients added", INPUT, *[3 * rows * cut.row_bytes] * (len(widths) - 1))


def inner_mlp(
    cut: Cut,
    name: str,
    rows: Numbers,
    hidden: Numbers,
    keeps: Numbers,
    matrices: Numbers | None = None,
    holds: Numbers | None = None,
) -> list[Op]:
    """Up (and gate), activation, down; or of `matrices` experts, each with its share of the rows.

    Arguments:
        keeps: share of the input that is kept.
        holds: where fused, temporary bytes of backward next to the gradients of the activation and of its input. None:
            with sequence parallelism the input and its gradient, of all tensor ranks.
    """
    holds = cut.is_split * 2 * cut.rows * cut.row_bytes if holds is None else holds
    is_gated, width = cut.model.activation == "swiglu", cut.machine.width
    numbers, inner = rows * hidden, rows * hidden * width
    up = columns(cut, f"{name} up", rows, (hidden,) * (1 + is_gated), keeps, matrices)
    if not cut.is_eager:
        # A gated activation reads two tensors instead of one, and its gradient writes two.
        forward, backward = cut.machine.stack.passes_activation
        saves = inner * (1 + is_gated)
        act = passes(cut, "activation", numbers, forward + is_gated, backward + 2 * is_gated, saves)
        act[1] = act[1]._replace(holds=inner * (2 + is_gated) + holds)
    elif is_gated:
        act = [Op("silu", size_bytes=2 * inner, saves=inner), Op("gate", size_bytes=3 * inner, saves=2 * inner)]
        act += [*streams("gate", INPUT, 3 * inner, 3 * inner), Op("silu", INPUT, size_bytes=3 * inner, holds=inner)]
    else:
        act = [
            Op("gelu", FORWARD, "gelu", 2 * inner, (numbers,), saves=inner),
            Op("gelu", INPUT, "gelu_backward", 3 * inner, (numbers,), holds=inner),
        ]
    return [*up, *act, *linear(cut, f"{name} down", rows, hidden, cut.model.d_model, matrices=matrices)]


def residual(cut: Cut) -> list[Op]:
    """The sum with the residual; where fused, with bias and dropout, whose mask is kept; of a parallel block both."""
    numbers, stack = cut.own_rows * cut.model.d_model, cut.machine.stack
    if cut.is_eager:
        return passes(cut, "residual", numbers, 3, 3)
    forward, backward = stack.passes_residual
    more = 0 if cut.model.block == "sequential" else 1
    return passes(cut, "residual", numbers, forward + more, backward, numbers * stack.has_dropout * (1 + more))


def gathered(cut: Cut, phase: str = FORWARD, times: Numbers = 1) -> list[Op]:
    """With sequence parallelism, the rows of all tensor ranks."""
    size = cut.rows * cut.row_bytes
    return [Op("all-gather", phase, "all_gather", size, (cut.sizes.tensor,), "tensor", 0, times * cut.is_split)]


def summed(cut: Cut, phase: str = FORWARD, times: Numbers = 1, starts: bool = True) -> list[Op]:
    """The sum over the tensor ranks; with sequence parallelism of each rank's own rows.

    `starts`: whether it is a kernel of the compute stream. An eager collective is none.
    """
    size, ranks = cut.rows * cut.row_bytes, (cut.sizes.tensor,)
    kernels = (cut.sizes.tensor > 1) * 1.0 if starts and not cut.is_eager else 0
    return [
        Op("all-reduce", phase, "all_reduce", size, ranks, "tensor", kernels, times * (1 - cut.is_split)),
        Op("reduce-scatter", phase, "reduce_scatter", size, ranks, "tensor", kernels, times * cut.is_split),
    ]


def exchange(cut: Cut, times: Numbers = 1) -> list[Op]:
    """Between two blocks: the rows of all tensor ranks before the products, their sum after them; and in backward."""
    return [op for phase in (FORWARD, INPUT) for op in (*gathered(cut, phase, times), *summed(cut, phase, times))]
